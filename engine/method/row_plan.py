"""Step 6, first half: lower the chosen candidates to one row plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.family_maps import candidate_table, family_maps
from routesparse.engine.method.inputs import AttentionInputs, first_real_keys
from routesparse.kernels import lower_plan
from routesparse.kernels.plan import RowPlan

if TYPE_CHECKING:
    from routesparse.engine.method.family import FamilyIndex
    from routesparse.engine.method.patterns import Candidate
    from routesparse.engine.method.segments import Segment
    from routesparse.engine.rows import Pattern


def lower(
    inputs: AttentionInputs,
    segment: Segment,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
    choice: torch.Tensor | np.ndarray,
) -> RowPlan:
    """The row plan of one segment: choice int [B, H] holds candidate indices. Tail rows and dense heads are dense.

    Returns a RowPlan with n_q = segment.rows and n_k = segment.keys; on a GPU without reading the choice. A family
    without an index (a baseline has one family) is never chosen.
    """
    choice = torch.as_tensor(choice, device=inputs.q.device).long()
    return lower_plan.lower_levels(
        choice,
        constant(candidate_table(candidates, indices), choice.device),
        family_maps(indices, partial=True),
        segment.geometry(inputs.first_keys()),
        key_start=inputs.key_start,
        softcap=inputs.softcap,
        sinks=inputs.sinks,
    )


def joined(plans: Sequence[RowPlan]) -> RowPlan:
    """The plan of one launch for all segments of a call; a single plan as it is. Errors: as ``RowPlan.concat``."""
    return plans[0] if len(plans) == 1 else RowPlan.concat(plans)


def head_density(plan: RowPlan) -> torch.Tensor:
    """plan.head_density() of a lowered plan from its counts alone: float64 [B, H]; no host sync."""
    return lower_plan.head_density(first_real_keys(plan.key_start, plan.batch, plan.device), plan)
