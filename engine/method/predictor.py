"""The optional predictor e of relative output error (paper section 3.3, eq. 4): frozen boosted trees.

e(g, u, entropy) is monotone: it falls in the gate statistic g and rises in the disagreement u and the entropy. It is
fitted on fold A by ``calibrate/predictor_fit.py`` (scikit-learn, needed only there), kept as numbers in the calibration
and evaluated as tensors on the inputs' device. It enters the risk, never a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from routesparse.engine.schema import FILLED, Count, Real, Whole

if TYPE_CHECKING:
    import torch

FEATURES = ("gate_statistic", "disagreement", "entropy")
SIGNS = (-1, 1, 1)  # e falls in the first and rises in the others
LEAF = -1
Feature = Annotated[int, Whole(LEAF, len(FEATURES) - 1)]


@dataclass(frozen=True)
class ErrorPredictor:
    """T trees of N nodes each, padded; node 0 is the root, ``feature`` is LEAF in a leaf.

    A row goes left where its feature is at most the threshold; e is the baseline plus the reached leaves' values,
    at least 0. ``fit`` says what it was fitted on and how well; nothing is computed from it.
    """

    baseline: Real
    feature: Annotated[
        tuple[Annotated[tuple[Feature, ...], FILLED], ...], FILLED
    ]  # [T][N], a place in FEATURES
    threshold: tuple[tuple[Real, ...], ...]
    left: tuple[tuple[Count, ...], ...]
    right: tuple[tuple[Count, ...], ...]
    value: tuple[tuple[Real, ...], ...]
    depth: Count  # of the deepest leaf
    fit: dict[str, Any] = field(default_factory=dict)

    def on(self, device: torch.device) -> PredictorTables:
        """The trees as tensors, once per device: predicting moves nothing."""
        import torch

        def table(values: Any, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return PredictorTables(
            baseline=self.baseline,
            feature=table(self.feature, torch.int64),
            threshold=table(self.threshold, torch.float64),
            left=table(self.left, torch.int64),
            right=table(self.right, torch.int64),
            value=table(self.value, torch.float64),
            depth=self.depth,
        )


@dataclass(frozen=True)
class PredictorTables:
    """An ErrorPredictor on one device; float64, so that thresholds are compared as they were fitted."""

    baseline: float
    feature: torch.Tensor  # int64 [T, N]
    threshold: torch.Tensor  # float64 [T, N]
    left: torch.Tensor
    right: torch.Tensor
    value: torch.Tensor
    depth: int

    def __call__(
        self, gate_statistic: torch.Tensor, disagreement: torch.Tensor, entropy: torch.Tensor
    ) -> torch.Tensor:
        """e of every candidate: three tensors that broadcast to one shape -> float64 of that shape, >= 0."""
        import torch

        rows = torch.stack(
            torch.broadcast_tensors(gate_statistic.double(), disagreement.double(), entropy.double()), -1
        )
        shape = rows.shape[:-1]
        rows = rows.reshape(-1, len(FEATURES))
        node = torch.zeros(len(rows), len(self.feature), dtype=torch.int64, device=rows.device)
        tree = torch.arange(len(self.feature), device=rows.device).expand_as(node)
        for _ in range(self.depth):
            feature = self.feature[tree, node]
            left = rows.gather(1, feature.clamp_min(0)) <= self.threshold[tree, node]
            onward = torch.where(left, self.left[tree, node], self.right[tree, node])
            node = torch.where(feature == LEAF, node, onward)
        return (self.baseline + self.value[tree, node].sum(1)).clamp_min(0.0).view(shape)
