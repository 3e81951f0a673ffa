"""The words of a run: its kept text with where blocks and tokens begin, and the worst audited rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from routesparse.engine.store.owner_view import OwnerView


@dataclass(frozen=True)
class Words:
    """A kept prompt. block_starts int32 [N + 1] and token_starts int32 [tokens + 1] are characters of ``text``;
    token_starts is None where the run was made before they were kept."""

    text: str
    block_starts: np.ndarray
    token_starts: np.ndarray | None

    def span_of_block(self, block: int, blocks: int = 1) -> tuple[int, int]:
        """First character and end of some KV blocks, those beyond the prompt left out."""
        last = len(self.block_starts) - 1
        return int(self.block_starts[min(block, last)]), int(self.block_starts[min(block + blocks, last)])

    def span_of_token(self, token: int, block_tokens: int) -> tuple[int, int]:
        """First character and end of a token, or of its KV block where tokens were not kept."""
        if self.token_starts is None:
            return self.span_of_block(token // block_tokens)
        last = len(self.token_starts) - 1
        return int(self.token_starts[min(token, last)]), int(self.token_starts[min(token + 1, last)])

    def blocks_of(self, start: int, end: int) -> tuple[int, int]:
        """The first and the last KV block that characters [start, end) lie in."""
        first, last = np.searchsorted(self.block_starts, [start, max(start, end - 1)], side="right") - 1
        top = len(self.block_starts) - 2
        return int(np.clip(first, 0, top)), int(np.clip(last, 0, top))


def words(store: OwnerView, run_id: str) -> Words | None:
    """The prompt of a run, where the user kept its text."""
    found = store.rows(
        "SELECT text, block_starts, token_starts FROM prompt JOIN run USING (run_key) WHERE run_id = ?",
        [run_id],
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
    )
    for name, kind in (("lost_blocks", "<i4"), ("lost_mass", "<f4")):
        frame[name] = [np.frombuffer(bytes(value), kind).tolist() for value in frame[name]]
    return frame
