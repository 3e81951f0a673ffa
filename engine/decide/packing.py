"""The record of a decision in one tensor, so that it leaves a GPU in one copy; ``Pending.read`` unpacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.device.copies import Layout, Packed, pack

if TYPE_CHECKING:
    import torch

    from routesparse.engine.config import Policy
    from routesparse.engine.method.fallback import DeviceCertified
    from routesparse.engine.method.layer_fallback import DeviceClimb
    from routesparse.engine.method.router import Routing, Scores


def packed_layout(
    policy: Policy, batch: int, units: int, candidates: int, tests: int, rows: int, laps: int
) -> Layout:
    """What ``packed_decision`` packs where no error was predicted, for a kernel that writes it in place.

    The units are those of batch prompts; policy: "priced" or "certified".
    """
    numbers, whole, flag = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
    step5: Layout
    if policy == "priced":
        step5 = {
            "step5_choice": ((units,), whole),
            "step5_ladder": ((units, tests), whole),
            "step5_state": ((units,), whole),
            "step5_head_passed": ((units, tests), flag),
            "step5_layer_passed": ((batch, tests), flag),
        }
    else:
        step5 = {
            "step5_choice": ((units,), whole),
            "step5_kind": ((units,), whole),
            "step5_unmet": ((units,), flag),
            "step5_lower_mass": ((units,), numbers),
            "step5_ladder": ((units, tests), whole),
            "step5_bounds": ((units, tests), numbers),
            "step5_tested": ((units, tests), flag),
        }
    names = ("mass", "recent_mass", "disagreement", "density", "kernel_us", "risk")
    return {
        **{name: ((units, candidates), numbers) for name in names},
        "routed_choice": ((units,), whole),
        "limited": ((), flag),
        "over_budget": ((), flag),
        **step5,
        "certificate_mass": ((units, rows, candidates), numbers),
        "entropy": ((units,), numbers),
        "local_band": ((units,), numbers),
        "agreement": ((units,), numbers),
        "finite": ((), flag),
        "laps_us": ((laps,), numbers),
    }


def packed_decision(
    scores: Scores,
    risk: torch.Tensor,
    routed: Routing,
    certified: DeviceCertified | DeviceClimb,
    **others: torch.Tensor,
) -> Packed:
    """Everything that ``Pending.read`` needs, in one tensor."""
    optional = {} if scores.predicted_error is None else {"predicted_error": scores.predicted_error}
    return pack(
        {
            "mass": scores.mass,
            "recent_mass": scores.recent_mass,
            "disagreement": scores.disagreement,
            "density": scores.density,
            "kernel_us": scores.kernel_us,
            **optional,
            "risk": risk,
            "routed_choice": routed.choice,
            "limited": routed.limited,
            "over_budget": routed.over_budget,
            **{f"step5_{name}": value for name, value in vars(certified).items()},
            **others,
        }
    )
