"""The pattern families, one file each, and the library of candidates that they make (paper section 3.1).

A family is added by one file here that ends in a ``Family``, and its line in ``_registered``; a file whose name begins
with an underscore is no family, but what some share. Everything else, from the library of candidates to the pages, asks
this registry. The order of registration is the order of candidates. Loading it loads no torch: builders import what
they need when they run.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.errors import PatternError
from routesparse.engine.method.families import a_shape, block_sparse, floor, vertical_slash
from routesparse.engine.method.records import Candidate, Context, Family, FamilyIndex, Look
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern
from routesparse.kernels.rules import DENSE as NO_FAMILY

if TYPE_CHECKING:
    from routesparse.kernels.geometry import FamilyMaps

LIBRARY_VERSION = 5
DENSE = "dense"  # the pattern that is no family: every key
_DENSE_LOOK = Look("dense", "D", light="#82406f", dark="#c98abb", symbol="x", mark="✕")
_registered: tuple[Family, ...] = (
    a_shape.FAMILY,
    vertical_slash.FAMILY,
    block_sparse.FAMILY,
    floor.FAMILY,
)


def registered() -> tuple[Family, ...]:
    """Every family, in the order of candidates; dense is none."""
    return _registered


def names() -> tuple[str, ...]:
    """The registered families' names, in the order of candidates."""
    return tuple(family.name for family in _registered)


def find(name: str) -> Family:
    """Errors: PatternError for a family that is not registered."""
    for family in _registered:
        if family.name == name:
            return family
    raise PatternError(
        f"pattern {name!r} is not registered, only {', '.join(names())}; add its family to families/__init__.py"
    )


@contextmanager
def using(*families: Family) -> Iterator[None]:
    """These families alone, in this order, until the block ends.

    Errors: PatternError for two families with one name or letter, or with that of dense.
    """
    global _registered
    taken_names = [DENSE, *(family.name for family in families)]
    letters = [_DENSE_LOOK.letter, *(family.look.letter for family in families)]
    for kind, taken in (("name", taken_names), ("letter", letters)):
        twice = {value for value in taken if taken.count(value) > 1}
        if twice:
            raise PatternError(
                f"two pattern families have the {kind} {', '.join(sorted(twice))}; choose another"
            )
    before, _registered = _registered, families
    try:
        yield
    finally:
        _registered = before


def look(name: str) -> Look:
    """How pages show a pattern. One that is not registered (another version's) has its name, its initial, and grey."""
    if name == DENSE:
        return _DENSE_LOOK
    found = next((family.look for family in _registered if family.name == name), None)
    return found or Look(name, name[:1].upper() or "?")


def in_order(patterns: Iterable[str] = ()) -> list[str]:
    """Every registered family, then those of ``patterns`` that are not registered by name, then dense."""
    return [*names(), *sorted(set(patterns) - {*names(), DENSE}), DENSE]


def library(segment: Segment) -> tuple[Candidate, ...]:
    """About 20 candidates from 2 % to 50 % density, dense last; budgets of a family strictly nested.

    Where a short segment makes two budgets of a family equal, one of them is left out.
    """
    return _library(segment, registered())


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
            words = family.text(candidate)
            found.append(replace(candidate, index=len(found), level=level, budget=words))
    return (*found, Candidate(len(found), DENSE, 0, block_k=segment.block_k))


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
    stamps = [family.stamp for family in (registered() if known is None else known)]
    # All grids, then all other constants: the order in which calibrations have been stamped from the beginning.
    rule = (LIBRARY_VERSION, *(s[0] for s in stamps), *(value for s in stamps for value in s[1:]))
    return hashlib.sha256(json.dumps(rule).encode()).hexdigest()[:16]


def stamped_families(stamp: str) -> frozenset[Pattern] | None:
    """The registered families that a ``library_hash`` is of; None where one of its families is missing or has changed.

    A calibration stays valid where a family is registered beside those that it knows; of that one it says nothing.
    """
    return _stamped(stamp, registered())


@lru_cache(maxsize=64)
def _stamped(stamp: str, known: tuple[Family, ...]) -> frozenset[Pattern] | None:
    for size in range(len(known), 0, -1):
        for some in itertools.combinations(known, size):
            if library_hash(some) == stamp:
                return frozenset(family.name for family in some)
    return None


def build_unprobed(context: Context) -> dict[str, FamilyIndex]:
    """The indices of the families that need no probe."""
    return _build(context, needs_probe=False)


def build_indices(
    context: Context, unprobed: Mapping[str, FamilyIndex] | None = None
) -> dict[str, FamilyIndex]:
    """Every family's index for one layer and segment, all heads at once (step 2 of the paper's table).

    unprobed: ``build_unprobed``'s, where they are built already.
    """
    if unprobed is None:
        unprobed = build_unprobed(context)
    found = {**unprobed, **_build(context, needs_probe=True)}
    return {name: found[name] for name in names()}


def _build(context: Context, needs_probe: bool) -> dict[str, FamilyIndex]:
    chosen = [family for family in _registered if family.needs_probe == needs_probe]
    found, joins = {}, []
    for family in chosen:
        if family.beside_others:
            from routesparse.engine.device.graphs import beside

            with beside(context.inputs.q.device, urgent=True) as joined:
                found[family.name] = _index(family, context)
            joins.append(joined)
        else:
            found[family.name] = _index(family, context)
    for joined in joins:
        joined()
    return found


def _index(family: Family, context: Context) -> FamilyIndex:
    budgets = context.budgets(family.name)
    return family.build(context, budgets).counted(len(budgets), context.geometry)


def family_maps(indices: Mapping[str, FamilyIndex], partial: bool = False) -> FamilyMaps:
    """The indices of all families as the operations take them: level maps in the order of registration.

    partial: a registered family may have no index; another's map stands in its place and is never chosen.

    Errors: PatternError for a family that is not registered, one without an index, or two with single columns.
    """
    from routesparse.kernels.geometry import FamilyMaps

    for name in indices:
        find(name)
    known = names()
    if not partial:
        for name in known:
            check_index(name, indices)
    some = next(iter(indices.values()))
    with_columns = [name for name in known if name in indices and indices[name].columns is not None]
    if len(with_columns) > 1:
        raise PatternError(f"patterns {', '.join(with_columns)} read single columns; one family may")
    return FamilyMaps(
        tuple(indices.get(name, some).levels for name in known),
        indices[with_columns[0]].ranked_columns if with_columns else None,
        known.index(with_columns[0]) if with_columns else NO_FAMILY,
    )


def candidate_table(candidates: Sequence[Candidate], indices: Mapping[str, FamilyIndex]) -> np.ndarray:
    """int32 [C, 2]: the number of each candidate's family in ``family_maps``, DENSE for dense, and its level.

    Errors: PatternError for a family that is not registered or has no index.
    """
    order = {name: number for number, name in enumerate(names())}
    table = []
    for one in candidates:
        if one.pattern != DENSE:
            check_index(find(one.pattern).name, indices)
        table.append((order.get(one.pattern, NO_FAMILY), one.level))
    return np.array(table, np.int32)


def check_index(name: str, indices: Mapping[str, FamilyIndex]) -> None:
    """Errors: PatternError for a family without an index: it would be scored and run as dense."""
    if name not in indices:
        raise PatternError(
            f"pattern {name!r} has no index among {', '.join(sorted(indices))}; build one with its family's build"
        )
