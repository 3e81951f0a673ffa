"""Pattern families and budget grids: the candidate library (paper section 3.1).

Every family keeps the sink block, every diagonal block and the one before them. Budgets inside a family are
nested prefixes of one ranking, in the kernel's own units: KV blocks (tokens in multiples of block_k) and
single columns. The grid is placed by density, the kept share of the causal area, so the same rule serves
every length; for a family whose rows keep x KV blocks each, the density of a segment is sum_i min(x, c_i) /
sum_i c_i with c_i the causal blocks of query block i.

The densities run from 2 to 50 %. Beside the paper's families there is block-sparse by cumulative score (top-p).
Columns are limited to a sixteenth of the keys: on a CPU a gathered column costs about twice a key inside a block, and
wider column sets were hardly ever the cheapest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

from routesparse.engine.errors import PatternError
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern
from routesparse.kernels.families import DENSE, FAMILIES

A_SHAPE_DENSITIES = (0.02, 0.05, 0.1, 0.2)
VERTICAL_SLASH_DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5)
BLOCK_SPARSE_DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5)
TOP_P_SHARES = (0.8, 0.9, 0.95, 0.98)
MAX_COLUMNS = 4_096  # single columns a row may gather; more are cheaper as blocks
COLUMN_SHARE = 0.5  # of a vertical-slash candidate's density; the other half goes to slash bands
COLUMN_LIMIT = 1 / 16  # of the keys: beyond it the density goes to bands alone
LIBRARY_VERSION = 2


Index = TypeVar("Index")


@dataclass(frozen=True)
class Candidate:
    """One pattern with one budget; ``level`` counts budgets inside the family, from 0 (cheapest)."""

    index: int
    pattern: Pattern
    level: int
    blocks: int = 0  # local blocks (a_shape), slash bands (vertical_slash), KV blocks a row (block_sparse)
    columns: int = 0  # single columns (vertical_slash)
    share: float = 0.0  # cumulative score (block_top_p)
    block_k: int = 64

    @property
    def budget(self) -> str:
        """The budget in words, with units."""
        match self.pattern:
            case "a_shape":
                return f"sink {self.block_k} + local {self.blocks * self.block_k} tokens"
            case "vertical_slash":
                return f"{self.columns} columns + {self.blocks} slash bands of {self.block_k}"
            case "block_sparse":
                return f"{self.blocks} blocks of {self.block_k} a row"
            case "block_top_p":
                return f"blocks to {self.share:g} of the score"
            case "dense":
                return "all"
            case _:
                raise PatternError(f"pattern {self.pattern!r} has no words for its budget; add them here")


def library(segment: Segment) -> tuple[Candidate, ...]:
    """About 20 candidates from 2 % to 50 % density, dense last; budgets of a family strictly nested.

    Where a short segment makes two budgets of a family equal, one of them is left out.
    """
    return _library(segment, _rule())


@lru_cache(maxsize=1_024)
def _library(segment: Segment, rule: tuple[object, ...]) -> tuple[Candidate, ...]:
    """Placing budgets takes longer than a kernel, and every layer asks again. rule: what the constants are now."""
    causal = segment.last_blocks()[: max(1, segment.body_blocks)] + 1
    items: list[tuple[Pattern, int, int, float]] = []
    for density in A_SHAPE_DENSITIES:
        items.append(("a_shape", blocks_for_density(causal, density), 0, 0.0))
    for density in VERTICAL_SLASH_DENSITIES:
        limit = min(MAX_COLUMNS, round(COLUMN_LIMIT * segment.keys))
        columns = max(16, min(limit, round(density * COLUMN_SHARE * segment.keys)))
        bands = blocks_for_density(causal, density - columns / segment.keys)
        items.append(("vertical_slash", bands, columns, 0.0))
    for density in BLOCK_SPARSE_DENSITIES:
        items.append(("block_sparse", blocks_for_density(causal, density), 0, 0.0))
    for share in TOP_P_SHARES:
        items.append(("block_top_p", 0, 0, share))
    candidates: list[Candidate] = []
    for pattern, blocks, columns, share in dict.fromkeys(items):
        level = sum(c.pattern == pattern for c in candidates)
        candidates.append(Candidate(len(candidates), pattern, level, blocks, columns, share, segment.block_k))
    candidates.append(Candidate(len(candidates), "dense", 0, block_k=segment.block_k))
    return tuple(candidates)


def check_built(candidates: Sequence[Candidate], built: Iterable[str]) -> None:
    """Errors: PatternError for a candidate whose family has no index: it would be scored and run as dense."""
    known = set(built)
    for candidate in candidates:
        if candidate.pattern not in known and candidate.pattern != "dense":
            raise PatternError(
                f"pattern {candidate.pattern!r} has no index among {', '.join(sorted(known))}; build one in "
                "families.build_indices"
            )


def family_numbers(candidates: Sequence[Candidate], built: Iterable[str]) -> list[int]:
    """The number that the kernels know each candidate's family by, DENSE for dense.

    Errors: PatternError for a family without an index, or one that the kernels would take for another.
    """
    check_built(candidates, built)
    return [DENSE if c.pattern == "dense" else _number(c.pattern) for c in candidates]


def maps_of_families(built: Mapping[Pattern, Index]) -> tuple[Index, Index, Index, Index]:
    """The four families' indices in the kernels' order. Errors: PatternError for one too many or too few."""
    for pattern in built:
        _number(pattern)
    for pattern in FAMILIES:
        check_built([Candidate(0, pattern, 0)], built)
    closed, slash, top_k, top_p = (built[pattern] for pattern in FAMILIES)
    return closed, slash, top_k, top_p


def _number(pattern: str) -> int:
    if pattern not in FAMILIES:
        raise PatternError(
            f"the kernels do not know pattern {pattern!r}, only {', '.join(FAMILIES)}; add it to "
            "kernels/families.py and to the kernels of retained_mass, lower_plan and pictures"
        )
    return FAMILIES.index(pattern)


def blocks_for_density(causal: np.ndarray, density: float) -> int:
    """The least number x of KV blocks a row with sum_i min(x, c_i) >= density * sum_i c_i; at least 2.

    causal: int [M], c_i >= 1.
    """
    target = density * causal.sum()
    low, high = 1, int(causal.max())
    while low < high:
        middle = (low + high) // 2
        if np.minimum(middle, causal).sum() >= target:
            high = middle
        else:
            low = middle + 1
    return max(2, low)


def library_hash() -> str:
    """Stamp of the rule that makes the library; calibrations made with another rule are refused."""
    return hashlib.sha256(json.dumps(_rule()).encode()).hexdigest()[:16]


def _rule() -> tuple[object, ...]:
    """Everything that the library depends on besides the segment."""
    return (
        LIBRARY_VERSION,
        A_SHAPE_DENSITIES,
        VERTICAL_SLASH_DENSITIES,
        BLOCK_SPARSE_DENSITIES,
        TOP_P_SHARES,
        MAX_COLUMNS,
        COLUMN_SHARE,
        COLUMN_LIMIT,
    )
