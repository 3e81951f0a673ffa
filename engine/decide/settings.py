"""What decides in every layer of a prompt, besides the layer's own queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.predictor import PredictorTables


@dataclass(frozen=True)
class LayerSettings:
    """The same for every layer of one prompt on one device."""

    config: RouterConfig
    gate_threshold: float  # lambda (paper section 3.3)
    profile: LatencyProfile
    predictor: PredictorTables | None = None  # gives e, the predicted error of every sparse candidate
    prompt_seed: int | None = None  # places this prompt's random rows; None: config.seed
    # Under tensor parallelism: the model's first head here and how many it has in all. Rows are drawn for all of them,
    # so that a head's do not depend on who serves it.
    first_head: int = 0
    all_heads: int | None = None

    @property
    def seed(self) -> int:
        """The seed that places the random rows."""
        return self.config.seed if self.prompt_seed is None else self.prompt_seed
