"""A latency profile of this machine's own device. Heavy modules come with the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routesparse.engine.config import RouterConfig
from routesparse.engine.progress import Progress, no_progress

if TYPE_CHECKING:
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.models.load import ModelShape
    from routesparse.engine.profiles.plans import PromptPlans


def measure_here(
    shape: ModelShape,
    config: RouterConfig,
    quick: bool,
    prompts: PromptPlans | None = None,
    progress: Progress = no_progress,
) -> LatencyProfile:
    """A profile of the first GPU in bfloat16, else of the CPU in float32. Errors: ProfileError."""
    import torch

    from routesparse.engine.profiles import measure

    cuda = torch.cuda.is_available()
    device = torch.device("cuda:0" if cuda else "cpu")
    return measure.measure(
        device,
        torch.bfloat16 if cuda else torch.float32,
        head_dim=shape.head_dim,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        config=config,
        **(measure.quick(device) if quick else {}),
        prompts=prompts,
        progress=progress,
    )
