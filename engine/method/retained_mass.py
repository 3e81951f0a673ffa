"""m-hat of every candidate on every probe row, its tiles, and the disagreement u (paper section 3.2, step 2).

No second pass over the keys is needed. The retained mass of a block pattern is a sum of block masses, and the probe's
first pass (a log-sum-exp per KV block of every probe row) holds these already. Only the recent rows (for columns and
diagonals) and the ranked columns are scored again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.family_maps import candidate_table, family_maps
from routesparse.engine.method.probe_rows import BOUNDARY, RECENT, ROUTING
from routesparse.kernels import retained_mass as operation
from routesparse.kernels.families import DENSE
from routesparse.kernels.retained_mass import FamilyLevels, ProbedRows

if TYPE_CHECKING:
    from routesparse.engine.method.family import FamilyIndex
    from routesparse.engine.method.inputs import AttentionInputs
    from routesparse.engine.method.patterns import Candidate
    from routesparse.engine.method.probe import Probe
    from routesparse.engine.method.segments import Segment
    from routesparse.engine.rows import Pattern


@dataclass(frozen=True)
class CandidateMass:
    """What each of C candidates (dense last) retains on each of P probe rows, and what it reads; float32."""

    row_mass: torch.Tensor  # [B, H, P, C] in [0, 1]; dense: 1
    tiles: torch.Tensor  # [B, H, C], KV tiles read over the body's query blocks
    columns: torch.Tensor  # [B, H, C], single columns read over the body's query blocks
    density: torch.Tensor  # [B, H, C], kept share of the body's causal area, left padding aside

    def group_mean(self, probe: Probe, kind: int) -> torch.Tensor:
        """Mean mass over one group of probe rows: [B, H, C]."""
        return self.row_mass[:, :, probe.rows.slice_of(kind)].mean(2)

    def disagreement(self, probe: Probe) -> torch.Tensor:
        """u: standard deviation of the recent, routing and boundary groups' mean mass, [B, H, C]."""
        kinds = [k for k in (RECENT, ROUTING, BOUNDARY) if probe.rows.sizes[k]]
        return torch.stack([self.group_mean(probe, k) for k in kinds]).std(0, correction=0)


def candidate_mass(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
) -> CandidateMass:
    """Score every candidate on the probe rows and count its tiles, all heads of the layer at once.

    Errors: PatternError for candidates without an index, or in another order than the operations take.
    """
    table = candidate_table(candidates, indices)
    depths = [int((table[:, 0] == number).sum()) for number in range(len(families.names()))]
    order = [(number, level) for number, depth in enumerate(depths) for level in range(depth)]
    if table.tolist() != [[number, level] for number, level in (*order, (DENSE, 0))]:
        raise PatternError(
            f"candidates {', '.join(f'{c.pattern} {c.level}' for c in candidates)} are out of order; scoring takes "
            f"{', '.join(families.names())} with levels from 0, then dense"
        )
    found = operation.retained_mass(
        inputs.q,
        inputs.k,
        ProbedRows(
            probe.rows.rows,
            probe.lse,
            probe.block_mass,
            probe.sink_mass,
            segment.first,
            _pooled_rows(probe) if probe.pooled else None,
        ),
        _family_levels(indices, depths),
        constant(table, inputs.q.device),
        segment.geometry(inputs.first_keys()),
        scale=inputs.scale,
        softcap=inputs.softcap,
        table=inputs.table,
    )
    return CandidateMass(*found)


def _family_levels(indices: dict[Pattern, FamilyIndex], depths: list[int]) -> FamilyLevels:
    maps = family_maps(indices)
    counts, by_row = zip(*(indices[name].counts for name in families.names()), strict=True)
    return FamilyLevels(maps.maps, maps.columns, maps.columns_of, tuple(depths), counts, by_row)


def _pooled_rows(probe: Probe) -> tuple[int, int, int]:
    """Start and end of the routing rows, start of the boundary rows: those of a pooled probe that know blocks only."""
    routing = probe.rows.slice_of(ROUTING)
    return routing.start, routing.stop, probe.rows.slice_of(BOUNDARY).start
