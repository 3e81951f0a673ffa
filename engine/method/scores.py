"""The gate statistic g and the risk of eq. 4 (paper section 3.3): the only definition, for NumPy arrays and tensors.

    R(h, p, b | x) = 1 - g + alpha u + beta e,     g = min(mean over the routing rows, mean over the recent rows)

The paper writes m-hat, the mean over the routing rows, where g stands. A mean over many rows hides the few rows that
ask a question: on needle prompts it looked certified while three of four needles were lost. The route kernel and the
store's macro ``gate_statistic`` compute the same g and are tested against this.
"""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.kernels.arrays import Array, namespace


def gate_statistic(mass: Array, recent_mass: Array) -> Array:
    """g: mass is a mean over body rows (m-hat; with the audited mean in its place this is g*, the truth behind the
    conformal claim), recent_mass the mean over the recent rows, all of which the probe reads."""
    return namespace(mass).minimum(mass, recent_mass)


def risk(
    g: Array, disagreement: Array, alpha: float, predicted_error: Array | None = None, beta: float = 0.0
) -> Array:
    """R (eq. 4), at least 0. Errors: ValueError for beta without predicted errors."""
    xp = namespace(g)
    found = 1.0 - g + alpha * disagreement
    if beta:
        if predicted_error is None:
            raise ValueError("beta > 0 needs an error predictor")
        found = found + beta * predicted_error
    return xp.clip(found, 0.0, None)


@dataclass(frozen=True)
class Scores:
    """Everything the router may read, for the U = B * H units of one layer and segment and C candidates.

    The last candidate is dense: mass 1, disagreement 0. All arrays float64 [U, C], on the host or on the device.
    """

    mass: Array  # m-hat, mean over the routing rows
    recent_mass: Array
    disagreement: Array  # u
    density: Array
    kernel_us: Array
    predicted_error: Array | None = None  # e

    @property
    def gate_statistic(self) -> Array:
        """g."""
        return gate_statistic(self.mass, self.recent_mass)

    def risk(self, alpha: float, beta: float) -> Array:
        """R (eq. 4)."""
        return risk(self.gate_statistic, self.disagreement, alpha, self.predicted_error, beta)
