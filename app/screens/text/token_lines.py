"""Lines from one token to those that a head, or all, read and dropped there: what is drawn, and how it is asked for.

A traced row (engine/audit/traced.py) is exact and known key by key. Of a head alone, rows that the probe or the audit
recorded are known by KV blocks: the nearest of them stands in, and the page says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, queries

MOST_LINES = 24


@dataclass(frozen=True)
class Line:
    """To ``tokens`` tokens from ``first`` on; share: of the row's attention there; dropped: the part of it not read.

    coarse: a cell of several KV blocks, of which the share is the largest block's and one block at least was read.
    """

    first: int
    tokens: int
    share: float
    dropped: float
    coarse: bool = False

    @property
    def is_dropped(self) -> bool:
        """Whether most of it was not read."""
        return self.dropped > self.share / 2

    @property
    def fate(self) -> str:
        """In words: "read", "dropped", or how much of it was read, as where some of several heads did."""
        unread = self.dropped / (self.share or 1.0)
        if self.coarse and not self.dropped:
            return "read, all or a part"
        return (
            "read"
            if unread < 1e-6
            else "dropped"
            if unread > 1 - 1e-6
            else f"{numbers.share(1 - unread, 0)} read"
        )


@dataclass(frozen=True)
class Lines:
    """Of the token at ``position``. told: what they are of, in words; run_id: of the run that was traced."""

    position: int
    drawn: tuple[Line, ...]
    told: str
    source: str
    run_id: str | None = None


def of_traced(rows: pd.DataFrame, position: int, name: str) -> Lines:
    """rows: of word_queries.traced, the heads that are meant; a line is the mean over them. name: theirs, in words."""
    share: dict[int, float] = {}
    dropped: dict[int, float] = {}
    for row in frames.rows(rows):
        for key, weight, read in zip(row.keys, row.weights, row.read, strict=True):
            share[key] = share.get(key, 0.0) + weight / len(rows)
            dropped[key] = dropped.get(key, 0.0) + (0.0 if read else weight / len(rows))
    drawn = strongest(Line(key, 1, share[key], dropped[key]) for key in share)
    told = (
        f"Token {position:,}, {name}: {numbers.share(float(rows['mass'].mean()))} of its attention was read"
    )
    run_id = str(rows["run_id"].iloc[0])
    source = f"traced_row of run {queries.label(run_id)}"
    return Lines(position, drawn, f"{told}; exact, key by key.", source, run_id)


def strongest(found: object) -> tuple[Line, ...]:
    """The lines that are drawn: the strongest, and beside them the strongest of those that were dropped."""
    ordered = sorted(found, key=lambda line: -line.share)  # type: ignore[call-overload]
    lost = [line for line in ordered if line.is_dropped][: MOST_LINES // 3]
    return tuple(dict.fromkeys([*ordered[:MOST_LINES], *lost]))


def of_passages(
    position: int,
    read: Sequence[tuple[int, int, float]],
    lost: Sequence[tuple[int, int, float]],
    block: int,
    told: str,
    source: str,
) -> Lines:
    """Of a recorded row. read, lost: (first KV block, KV blocks, share) of passages."""
    parts = [(passages, is_lost) for passages, is_lost in ((read, False), (lost, True))]
    found = [
        Line(first * block, blocks * block, share, share if is_lost else 0.0, blocks > 1)
        for passages, is_lost in parts
        for first, blocks, share in passages
    ]
    return Lines(position, strongest(found), told, source)


def request_of(run: RunRow, position: int) -> RunRequest:
    """The job that runs this prompt again under the same settings and keeps the token's row of every head."""
    return RunRequest.like(
        run.config_json,
        model=run.model,
        calibration=run.calibration,
        domain=run.domain,
        label=run.prompt_name,
        audit=run.audit_depth,
        trace=str(position),
        owner=run.owner,
    )
