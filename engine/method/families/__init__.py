"""The pattern families, one file each (paper section 3.1): budgets, words, builder, definition, letter and colour.

A family is added by one file here that ends in a ``Family``, and its line in ``_registered``; a file whose name begins
with an underscore is no family, but what some share. Everything else, from the library of candidates to the pages, asks
this registry. The order of registration is the order of candidates. Loading it loads no torch: builders import what
they need when they run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from routesparse.engine.errors import PatternError
from routesparse.engine.method.families import a_shape, block_sparse, floor, vertical_slash
from routesparse.engine.method.family import Context, Family, FamilyIndex, Look
from routesparse.kernels.families import NEVER

if TYPE_CHECKING:
    from routesparse.engine.method.inputs import AttentionInputs
    from routesparse.engine.method.patterns import Candidate
    from routesparse.engine.method.probe import Probe
    from routesparse.engine.method.segments import Segment

__all__ = ["NEVER", "Context", "Family", "FamilyIndex", "Look", "build_indices", "build_unprobed"]

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

    Errors: PatternError for two of one name or letter, or those of dense.
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


def build_unprobed(
    inputs: AttentionInputs, segment: Segment, candidates: Sequence[Candidate]
) -> dict[str, FamilyIndex]:
    """The indices of the families that need no probe."""
    return _build(Context(inputs, segment, candidates), needs_probe=False)


def build_indices(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    candidates: Sequence[Candidate],
    unprobed: Mapping[str, FamilyIndex] | None = None,
) -> dict[str, FamilyIndex]:
    """Every family's index for one layer and segment, all heads at once (step 2 of the paper's table).

    unprobed: ``build_unprobed``'s, where they are built already.
    """
    if unprobed is None:
        unprobed = build_unprobed(inputs, segment, candidates)
    found = {**unprobed, **_build(Context(inputs, segment, candidates, probe), needs_probe=True)}
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
