"""The candidate library: every family's budgets, in one list (paper section 3.1).

Every family keeps the sink block, every diagonal block and the one before them. Budgets inside a family are
nested prefixes of one ranking, in the kernel's own units: KV blocks (tokens in multiples of block_k) and
single columns. The grid is placed by density, the kept share of the causal area, so the same rule serves
every length; for a family whose rows keep x KV blocks each, the density of a segment is sum_i min(x, c_i) /
sum_i c_i with c_i the causal blocks of query block i. The densities run from 2 to 50 %.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.families import floor
from routesparse.engine.method.family import Family
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern

LIBRARY_VERSION = 5


@dataclass(frozen=True)
class Candidate:
    """One pattern with one budget; ``level`` counts budgets inside the family, from 0 (cheapest).

    What blocks, columns and share count is the family's to say.
    """

    index: int
    pattern: Pattern
    level: int
    blocks: int = 0
    columns: int = 0
    share: float = 0.0
    block_k: int = 64

    @property
    def budget(self) -> str:
        """The budget in words, with units. Errors: PatternError for a family that is not registered."""
        return "all" if self.pattern == families.DENSE else families.find(self.pattern).text(self)


def library(segment: Segment) -> tuple[Candidate, ...]:
    """About 20 candidates from 2 % to 50 % density, dense last; budgets of a family strictly nested.

    Where a short segment makes two budgets of a family equal, one of them is left out.
    """
    return _library(segment, families.registered())


@lru_cache(maxsize=1_024)
def _library(segment: Segment, known: tuple[Family, ...]) -> tuple[Candidate, ...]:
    """Placing budgets takes longer than a kernel, and every layer asks again."""
    found: list[Candidate] = []
    for family in known:
        budgets = [
            Candidate(0, family.name, 0, block_k=segment.block_k, **b) for b in family.budgets(segment)
        ]
        if not budgets:
            raise PatternError(f"pattern {family.name!r} has no budget for {segment}; name one at least")
        for level, candidate in enumerate(dict.fromkeys(budgets)):
            found.append(replace(candidate, index=len(found), level=level))
    return (*found, Candidate(len(found), families.DENSE, 0, block_k=segment.block_k))


def priced_candidate(candidates: Sequence[Candidate]) -> int:
    """The index of the floor at the price itself. Errors: PatternError where the library has none."""
    for one in candidates:
        if one.pattern == floor.NAME and one.level == floor.PRICED_LEVEL:
            return one.index
    raise PatternError(
        f"policy 'priced' needs the family {floor.NAME!r}; register it, or choose another policy"
    )


def library_hash(known: Sequence[Family] | None = None) -> str:
    """Stamp of the rule that makes the library of these families, all registered ones by default; calibrations made
    with another rule are refused."""
    stamps = [family.stamp for family in (families.registered() if known is None else known)]
    # All grids, then all other constants: the order in which calibrations have been stamped from the beginning.
    rule = (LIBRARY_VERSION, *(s[0] for s in stamps), *(value for s in stamps for value in s[1:]))
    return hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:16]


def stamped_families(stamp: str) -> frozenset[Pattern] | None:
    """The registered families that a ``library_hash`` is of; None where one of its families is missing or has changed.

    A calibration stays valid where a family is registered beside those that it knows; of that one it says nothing.
    """
    return _stamped(stamp, families.registered())


@lru_cache(maxsize=64)
def _stamped(stamp: str, known: tuple[Family, ...]) -> frozenset[Pattern] | None:
    for size in range(len(known), 0, -1):
        for some in itertools.combinations(known, size):
            if library_hash(some) == stamp:
                return frozenset(family.name for family in some)
    return None
