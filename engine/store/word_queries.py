"""The words of a run: its kept text with where blocks and tokens begin, and the worst audited rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.engine.store.compare_queries import SETTINGS
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.words import Words

__all__ = ["Words", "segment_of", "traced", "words", "worst_rows"]


def words(store: OwnerView, run_id: str) -> Words | None:
    """The prompt of a run, where the user kept its text."""
    found = store.rows(
        "SELECT text, block_starts, token_starts FROM prompt JOIN run USING (run_key) WHERE run_id = ?",
        [run_id],
        of=[run_id],
    )
    if not found:
        return None
    text, blocks, tokens = found[0]
    return Words(text, np.frombuffer(blocks, "<i4"), None if tokens is None else np.frombuffer(tokens, "<i4"))


def segment_of(store: OwnerView, run_id: str, token: int) -> int | None:
    """The segment whose rows hold a token; None where nothing was routed."""
    found = store.rows(
        "SELECT max(c.segment) FROM run JOIN head_choice c USING (run_key) "
        "WHERE run_id = ? AND c.first_token <= ?",
        [run_id, token],
        of=[run_id],
    )
    return None if found[0][0] is None else int(found[0][0])


def worst_rows(
    store: OwnerView,
    run_id: str,
    batch_index: int,
    most: int,
    layer: int | None = None,
    head: int | None = None,
    segment: int | None = None,
) -> pd.DataFrame:
    """The audited rows whose output is farthest off, worst first: of the run, or of a layer, head or segment of it.

    ``lost_blocks`` and ``lost_mass`` are lists, most first; ``pattern`` and ``budget`` of the unit. No rows
    where the run was not audited, or by a version that did not keep them.
    """
    limits = {"layer": layer, "head": head, "segment": segment}
    given = {name: value for name, value in limits.items() if value is not None}
    where = "".join(f" AND w.{name} = ?" for name in given)
    frame = store.frame(
        f"""
        SELECT w.* EXCLUDE (run_key), c.pattern, c.budget
        FROM run JOIN worst_row w USING (run_key)
        JOIN head_choice c USING (run_key, batch_index, layer, head, segment)
        WHERE run.run_id = ? AND w.batch_index = ?{where}
        ORDER BY w.error DESC, w.layer, w.head, w.segment, w."rank" LIMIT ?
        """,
        [run_id, batch_index, *given.values(), most],
        of=[run_id],
    )
    for name, kind in (("lost_blocks", "<i4"), ("lost_mass", "<f4")):
        frame[name] = [np.frombuffer(bytes(value), kind).tolist() for value in frame[name]]
    return frame


def traced(store: OwnerView, run_id: str, position: int) -> pd.DataFrame:
    """What every head reads and drops at one token, key by key: ``run_id layer head mass keys weights read``, the last
    three lists. Of this run, or of the newest of the same prompt, weights and settings; empty where none traced it."""
    frame = store.frame(
        f"""
        WITH this AS (SELECT prompt_sha256 AS prompt, model_revision AS weights, {SETTINGS} AS settings
                      FROM run WHERE run_id = ?),
        last AS (SELECT run_key, run_id FROM run, this
                 WHERE prompt_sha256 = prompt AND model_revision = weights AND {SETTINGS} = settings
                   AND run_key IN (SELECT run_key FROM traced_row WHERE position = ?)
                 ORDER BY run_id = ? DESC, created_at DESC LIMIT 1)
        SELECT run_id, layer, head, mass, keys, weights, "read" FROM last JOIN traced_row USING (run_key)
        WHERE position = ? AND batch_index = 0 ORDER BY layer, head
        """,
        [run_id, position, run_id, position],
    )
    for name, kind in (("keys", "<i4"), ("weights", "<f4"), ("read", "u1")):
        frame[name] = [np.frombuffer(bytes(value), kind).tolist() for value in frame[name]]
    return frame
