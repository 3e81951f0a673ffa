"""What a method's outputs lost, beside the KL that it cost: what a predicted loss is made of and judged by.

``--errors ROWS``: at so many random rows of a text, the same for every layer and head, each head's error d against
exact attention (``method/output_errors.py``), weighted by the Fisher information of the model's predictions
(``calibrate/fisher.py``, of development prose). A row of the study then also has

    foretold                 1/2 sum over layers and heads of (tr F / D) E |d|^2, in nats a token
    d2, mean2, o2            [L, H]: E |d|^2; |E d|^2, which is what errors of one direction add up by; E |o|^2
    row_foretold, row_kl     [ROWS]: a row's own sum, and the KL there
    row_entropy, row_spread  [ROWS]: of dense attention's next token, in nats; 1 - sum p^2

Its times hold the measuring and mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import InputError
from routesparse.engine.method.output_errors import output_errors
from routesparse.engine.runtime.attention_router import AttentionRouter

DIGITS = 5


class ErrorRouter(AttentionRouter):
    """Serves as another router does, and keeps what its outputs lost at rows int64 [R]. weights [L, H]: tr F / D."""

    def __init__(self, inner: AttentionRouter, rows: torch.Tensor, weights: np.ndarray) -> None:
        self._inner, self._rows = inner, rows
        self._weights = torch.as_tensor(weights, dtype=torch.float32, device=rows.device)
        self._of: dict[int, tuple[torch.Tensor, ...]] = {}

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """See ``AttentionRouter.attend``; layers with a window are not measured, nor is what follows the prompt."""
        out = self._inner.attend(inputs, layer=layer, window=window)
        if window is None and inputs.q.shape[2] == inputs.k.shape[2] > int(self._rows.max()):
            d, exact = output_errors(inputs, out, self._rows)
            by_row = d.square().sum(-1)
            weighted = 0.5 * self._weights[layer] @ by_row
            o2 = exact.square().sum(-1).mean(1)
            self._of[layer] = by_row.mean(1), d.mean(1).square().sum(-1), o2, weighted
        return out

    def serve(self, layers: int) -> None:
        """See ``AttentionRouter.serve``."""
        self._inner.serve(layers)

    def start(self) -> None:
        """See ``AttentionRouter.start``."""
        self._inner.start()

    def finish(self) -> None:
        """See ``AttentionRouter.finish``."""
        self._inner.finish()

    def found(self) -> dict[str, Any]:
        """The numbers of the module's table that need no logits."""
        if not self._of:
            raise InputError(
                "no layer reads the whole prompt, so no output error was measured; leave out --errors"
            )
        d2, mean2, o2, weighted = (
            torch.stack(parts) for parts in zip(*(self._of[layer] for layer in sorted(self._of)), strict=True)
        )
        return {
            "foretold": float(weighted.sum(0).mean()),
            "row_foretold": rounded(weighted.sum(0)),
            "d2": rounded(d2),
            "mean2": rounded(mean2),
            "o2": rounded(o2),
        }


def random_rows(tokens: int, count: int, seed: int, device: torch.device) -> torch.Tensor:
    """int64 [count], ascending: rows of a text that another token follows."""
    drawn = np.random.default_rng([seed, tokens, count]).choice(
        tokens - 1, min(count, tokens - 1), replace=False
    )
    return torch.from_numpy(np.sort(drawn)).to(device)


def row_numbers(dense: torch.Tensor, found: torch.Tensor) -> dict[str, Any]:
    """Of log-probabilities [R, V] by dense attention and by a method."""
    p = dense.exp()
    return {
        "row_kl": rounded((p * (dense - found)).sum(-1)),
        "row_entropy": rounded(-(p * dense).sum(-1)),
        "row_spread": rounded(1 - p.square().sum(-1)),
    }


def rounded(values: torch.Tensor) -> Any:
    """Nested lists of numbers with DIGITS digits."""
    flat = [float(f"{one:.{DIGITS}g}") for one in values.flatten().tolist()]
    return np.array(flat).reshape(tuple(values.shape)).tolist()
