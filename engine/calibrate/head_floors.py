"""Where a model's heads should read more and where less, measured: what multiplies each head's floor.

On a few windows every head's error and area are measured at several prices. With F of ``fisher.py`` an error is a part
of the loss, so each head has a curve of loss against area. The same loss is bought with the least area where every head
gains as much by one tile more; floors that differ by head are the way there (Lagrange: least sum of loss + lambda area,
with the lambda that keeps the mean area). The answer is halved: curves of few windows are noisy, and half of it was as
good on windows that it was not measured on (data/results/LOSS.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from routesparse.engine.calibrate.beside_dense import BesideDense, Run, Text
from routesparse.engine.config import MOST_HEAD_FLOOR
from routesparse.engine.runtime.replay import Keeping
from routesparse.engine.seeds import stable_seed

PRICES = (0.09, 0.18, 0.35, 0.7, 1.4)
KEPT_PRICE = 0.18  # at which the mean area stays what it is
ROWS = 256  # of a window, where errors are measured
BEYOND = 0.7  # nats of price outside of PRICES, where curves go on
POINTS = 201
SHRUNK = 0.5
LEAST_LOSS = 1e-12


@torch.no_grad()
def head_curves(bench: BesideDense, texts: Iterable[Text]) -> tuple[np.ndarray, np.ndarray] | None:
    """Means over texts by price, layer and head, float64 [P, L, H]: ||output - exact output||^2, and area.

    None where no text is long enough to be routed.
    """
    found = []
    for text in texts:
        rng = np.random.default_rng(stable_seed("head floors", text.name))
        first = len(text.ids) // 16
        at = np.sort(rng.choice(len(text.ids) - first, min(ROWS, len(text.ids) - first), replace=False))
        rows = torch.from_numpy(at + first)
        for price in PRICES:
            router, trace = bench.routing(text, {"policy": "priced", "price": price})
            keeping = Keeping(router, rows)
            bench.prefill(text, Run(keeping, dict))
            lost = keeping.lost()
            passes = sorted(trace.prompts[-1].passes, key=lambda one: one.layer)
            if passes:
                errors = [by_head.double().cpu().numpy() for _, by_head in sorted(lost.items())]
                found.append((errors, [one.densities.mean(0) for one in passes]))
    if not found:
        return None
    by_run = np.array(found)  # [texts * P, 2, L, H]
    means = by_run.reshape(-1, len(PRICES), *by_run.shape[1:]).mean(0)
    return means[:, 0], means[:, 1]


def head_floors(lost: np.ndarray, area: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Natural logarithms [L, H] of what multiplies each head's floor.

    lost, area: of ``head_curves``; weights: tr F / D [L, H] (fisher.py).
    """
    prices = np.log(PRICES)
    grid = np.linspace(prices[0] - BEYOND, prices[-1] + BEYOND, POINTS)
    losses = np.exp(_curve(prices, np.log(np.maximum(lost * weights, LEAST_LOSS)), grid))
    areas = np.exp(np.minimum(_curve(prices, np.log(area), grid), 0.0))
    kept = areas[np.abs(grid - np.log(KEPT_PRICE)).argmin()].mean()
    low, high = -60.0, 60.0  # logarithms of lambda; area falls as it grows
    for _ in range(80):
        middle = (low + high) / 2
        chosen = (losses + np.exp(middle) * areas).argmin(0)
        too_much = np.take_along_axis(areas, chosen[None], 0).mean() > kept
        low, high = (low, middle) if not too_much else (middle, high)
    return np.clip(SHRUNK * (grid[chosen] - np.log(KEPT_PRICE)), -MOST_HEAD_FLOOR, MOST_HEAD_FLOOR)


def _curve(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Quadratic fits of y [P, L, H] over x [P], read at ``at``; straight lines outside of x: [len(at), L, H]."""
    fits = np.polyfit(x, y.reshape(len(x), -1), 2)
    inside = np.clip(at, x[0], x[-1])[:, None]
    slope = 2 * fits[0] * inside + fits[1]
    found = fits[0] * inside**2 + fits[1] * inside + fits[2] + slope * (at[:, None] - inside)
    return found.reshape(len(at), *y.shape[1:])
