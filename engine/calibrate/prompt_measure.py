"""What is kept of one routed and audited calibration prompt; measure.py makes it, fit.py fits a calibration to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class UnitTruth:
    """The U units of one layer and segment, C candidates, dense last. float32 but for the choice."""

    layer: int
    segment: int
    chosen: np.ndarray  # int64 [U]
    gate_statistic: np.ndarray  # [U, C], g
    target: np.ndarray  # [U, C], g* = min(true body mean, recent mean)
    disagreement: np.ndarray  # [U, C], u
    entropy: np.ndarray  # [U]
    error: np.ndarray | None  # [U, C], E_rel

    @property
    def sparse(self) -> np.ndarray:
        """bool [U]."""
        return self.chosen != self.gate_statistic.shape[1] - 1

    @property
    def residual(self) -> np.ndarray:
        """g - g* of the selected candidate of every sparse unit."""
        units = np.flatnonzero(self.sparse)
        place = self.chosen[units]
        return (self.gate_statistic[units, place] - self.target[units, place]).astype(np.float64)


@dataclass(frozen=True)
class PromptMeasure:
    """One prompt under one frozen policy."""

    domain: str
    document: str
    document_sha256: str
    sha256: str  # of the token ids
    tokens: int
    density: float  # kept share of the causal area, tail included
    descriptor_names: tuple[str, ...]
    descriptors: np.ndarray  # [D]
    truths: tuple[UnitTruth, ...]

    @property
    def residual(self) -> np.ndarray:
        """g - g* of every selected sparse unit."""
        return np.concatenate([t.residual for t in self.truths]) if self.truths else np.zeros(0)
