"""m-hat of every candidate on every probe row, its tiles, and the disagreement u (paper section 3.2, step 2).

No second pass over the keys is needed. The retained mass of a block pattern is a sum of block masses, and the probe's
first pass (a log-sum-exp per KV block of every probe row) holds these already. Only the recent rows (for columns and
diagonals) and the ranked columns are scored again.
"""

from __future__ import annotations

from collections.abc import Mapping

from routesparse.engine.device.constants import constant
from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.records import BOUNDARY, ROUTING, CandidateMass, Context, FamilyIndex, Probe
from routesparse.kernels import retained_mass as operation
from routesparse.kernels.retained_mass import FamilyLevels, ProbedRows
from routesparse.kernels.rules import DENSE


def candidate_mass(context: Context, indices: Mapping[str, FamilyIndex]) -> CandidateMass:
    """Score every candidate on the probe rows and count its tiles, all heads of the layer at once.

    Errors: PatternError for candidates without an index, or in another order than the operations take.
    """
    probe, candidates = context.probe, context.candidates
    table = families.candidate_table(candidates, indices)
    depths = [int((table[:, 0] == number).sum()) for number in range(len(families.names()))]
    order = [(number, level) for number, depth in enumerate(depths) for level in range(depth)]
    if table.tolist() != [[number, level] for number, level in (*order, (DENSE, 0))]:
        raise PatternError(
            f"candidates {', '.join(f'{c.pattern} {c.level}' for c in candidates)} are out of order; scoring takes "
            f"{', '.join(families.names())} with levels from 0, then dense"
        )
    rows = ProbedRows(
        probe.rows.rows,
        probe.lse,
        probe.block_mass,
        probe.sink_mass,
        context.segment.first,
        _pooled_rows(probe) if probe.pooled else None,
    )
    table_there = constant(table, probe.lse.device)
    levels = _family_levels(indices, depths)
    found = operation.retained_mass(context.inputs.logits, rows, levels, table_there, context.geometry)
    return CandidateMass(*found)


def _family_levels(indices: Mapping[str, FamilyIndex], depths: list[int]) -> FamilyLevels:
    maps = families.family_maps(indices)
    counts, by_row = zip(*(indices[name].counts for name in families.names()), strict=True)
    return FamilyLevels(maps.maps, maps.columns, maps.columns_of, tuple(depths), counts, by_row)


def _pooled_rows(probe: Probe) -> tuple[int, int, int]:
    """Start and end of the routing rows, start of the boundary rows: those of a pooled probe that know blocks only."""
    routing = probe.rows.slice_of(ROUTING)
    return routing.start, routing.stop, probe.rows.slice_of(BOUNDARY).start
