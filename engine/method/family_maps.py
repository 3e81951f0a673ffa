"""The indices of all families as the operations take them: level maps in the order of registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.kernels.families import DENSE
from routesparse.kernels.retained_mass import FamilyMaps

if TYPE_CHECKING:
    from routesparse.engine.method.family import FamilyIndex
    from routesparse.engine.method.patterns import Candidate


def family_maps(indices: Mapping[str, FamilyIndex], partial: bool = False) -> FamilyMaps:
    """partial: a registered family may have no index; another's map stands in its place and is never chosen.

    Errors: PatternError for a family that is not registered, one without an index, or two with single columns.
    """
    for name in indices:
        families.find(name)
    names = families.names()
    if not partial:
        for name in names:
            check_index(name, indices)
    some = next(iter(indices.values()))
    with_columns = [name for name in names if name in indices and indices[name].columns is not None]
    if len(with_columns) > 1:
        raise PatternError(f"patterns {', '.join(with_columns)} read single columns; one family may")
    return FamilyMaps(
        tuple(indices.get(name, some).levels for name in names),
        indices[with_columns[0]].ranked_columns if with_columns else None,
        names.index(with_columns[0]) if with_columns else DENSE,
    )


def candidate_table(candidates: Sequence[Candidate], indices: Mapping[str, FamilyIndex]) -> np.ndarray:
    """int32 [C, 2]: the number of each candidate's family in ``family_maps``, DENSE for dense, and its level.

    Errors: PatternError for a family that is not registered or has no index.
    """
    order = {name: number for number, name in enumerate(families.names())}
    table = []
    for one in candidates:
        if one.pattern != families.DENSE:
            check_index(families.find(one.pattern).name, indices)
        table.append((order.get(one.pattern, DENSE), one.level))
    return np.array(table, np.int32)


def check_index(name: str, indices: Mapping[str, FamilyIndex]) -> None:
    """Errors: PatternError for a family without an index: it would be scored and run as dense."""
    if name not in indices:
        raise PatternError(
            f"pattern {name!r} has no index among {', '.join(sorted(indices))}; build one with its family's build"
        )
