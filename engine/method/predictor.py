"""The optional predictor e of relative output error (paper section 3.3, eq. 4): frozen boosted trees.

e(g, u, entropy) is monotone: it falls in the gate statistic g and rises in the disagreement u and the entropy. It is
fitted on fold A by ``calibrate/predictor_fit.py`` (scikit-learn, needed only there), kept as numbers in the calibration
and evaluated as tensors on the inputs' device. It enters the risk, never a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from routesparse.engine import fields
from routesparse.engine.config import renamed
from routesparse.engine.fields import FieldError

if TYPE_CHECKING:
    import torch

FEATURES = ("gate_statistic", "disagreement", "entropy")
SIGNS = (-1, 1, 1)  # e falls in the first and rises in the others
LEAF = -1


@dataclass(frozen=True)
class ErrorPredictor:
    """T trees of N nodes each, padded; node 0 is the root, ``feature`` is LEAF in a leaf.

    A row goes left where its feature is at most the threshold; e is the baseline plus the reached leaves' values,
    at least 0. ``fit`` says what it was fitted on and how well; nothing is computed from it.
    """

    baseline: float
    feature: tuple[tuple[int, ...], ...]  # [T][N], a place in FEATURES
    threshold: tuple[tuple[float, ...], ...]
    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]
    value: tuple[tuple[float, ...], ...]
    depth: int  # of the deepest leaf
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

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ErrorPredictor:
        """From a calibration file that ``check_trees`` let through."""
        tables = {name: tuple(tuple(row) for row in values[name]) for name in TABLES}
        fit = dict(values.get("fit", {}))
        if "curves" in fit:
            fit["curves"] = renamed(fit["curves"], {"gate": FEATURES[0]})
        return cls(float(values["baseline"]), **tables, depth=values["depth"], fit=fit)


TABLES = ("feature", "threshold", "left", "right", "value")


def check_trees(values: Any, field: str) -> None:
    """Errors: FieldError for tables of different shapes, entries outside them, or leaves that depth does not reach."""
    anything = dict.fromkeys(TABLES, fields.items(fields.items(fields.plain, least=1), least=1))
    fields.record(
        {"baseline": fields.number(), "depth": fields.whole(), **anything}, {"fit": fields.an_object}
    )(values, field)
    trees, nodes = len(values["feature"]), len(values["feature"][0])
    entry = {
        "feature": fields.whole(LEAF, len(FEATURES) - 1),
        "threshold": fields.number(),
        "left": fields.whole(0, nodes - 1),
        "right": fields.whole(0, nodes - 1),
        "value": fields.number(),
    }
    for name, each in entry.items():
        fields.items(fields.items(each, nodes), trees)(values[name], f"{field}.{name}")
    reached = set()
    for tree in range(trees):
        feature, left, right = (values[name][tree] for name in ("feature", "left", "right"))
        level, depth = {0}, 0
        # A path longer than the tree has nodes goes in a circle.
        while (inner := [n for n in level if feature[n] != LEAF]) and depth <= nodes:
            level, depth = {child for n in inner for child in (left[n], right[n])}, depth + 1
        reached.add(depth)
    if max(reached) != values["depth"]:
        raise FieldError(
            f"{field}.depth", values["depth"], f"that of the deepest leaf ({max(reached)} by the tables)"
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
