"""Candidate scores on the host: the gate statistic and the risk (paper section 3.3, eq. 4).

    R(h, p, b | x) = 1 - g + alpha u + beta e,     g = min(mean over the routing rows, mean over the recent rows)

The paper writes m-hat, the mean over the routing rows, where g stands. A mean over many rows hides the few rows that
ask a question: on needle prompts it looked certified while three of four needles were lost. numpy only, so that replays
run without torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Everything the router may read, for the U = B * H units of one layer and segment and C candidates.

    The last candidate is dense: mass 1, disagreement 0. All arrays float64 [U, C].
    """

    mass: np.ndarray  # m-hat, mean over the routing rows
    recent_mass: np.ndarray
    disagreement: np.ndarray  # u
    density: np.ndarray
    kernel_us: np.ndarray
    predicted_error: np.ndarray | None = None  # e

    @property
    def gate(self) -> np.ndarray:
        """g."""
        return np.minimum(self.mass, self.recent_mass)

    def risk(self, alpha: float, beta: float) -> np.ndarray:
        """R (eq. 4), at least 0. beta without a predictor is a ValueError: the calibration has to bring one."""
        risk = 1.0 - self.gate + alpha * self.disagreement
        if beta:
            if self.predicted_error is None:
                raise ValueError("beta > 0 needs an error predictor")
            risk = risk + beta * self.predicted_error
        return np.maximum(risk, 0.0)
