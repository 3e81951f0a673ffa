"""What is predicted of a method's loss on a text, beside the KL that it cost; losses.py makes tables of the rows.

``--foretold STRETCHES``: the rows of so many stretches of REPLAYED rows are replayed (runtime/replay.py). A row of the
study then also has

    replayed, dense      what the replay says and the truth at the same rows: means over the first OCTET rows of each
                         stretch, the first 2 OCTET, ...
    entropy, surprise    of the replay: nats of its next token's distribution, and of the token that came; means

Its times hold the measuring and mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from routesparse.engine.calibrate.beside_dense import Text
from routesparse.engine.runtime.replay import Keeping, replayed, row_kl, stretches

REPLAYED, OCTET = 32, 8
DIGITS = 5


def text_rows(tokens: int, count: int, seed: int) -> np.ndarray:
    """int64 [count, REPLAYED]: the stretches; the last row of a text has no next token to be wrong about."""
    return stretches(tokens - 1, count, REPLAYED, seed)


def of_text(
    model: Any, log_p: Any, text: Text, hidden: Tensor, dense: Tensor, seen: Keeping, rows: Tensor
) -> dict[str, Any]:
    """hidden, dense [n, hidden]: last hidden states of the method and of dense attention; rows int64 [R]."""
    ids = torch.tensor([text.ids], device=rows.device)
    exact = log_p(replayed(model, {"input_ids": ids[:, rows]}, seen.kept, rows))
    found, truth = log_p(hidden[rows]), log_p(dense[rows])
    return {
        "replayed": _growing(row_kl(exact, found)),
        "dense": _growing(row_kl(truth, found)),
        "entropy": float(-(exact.exp() * exact).sum(-1).mean()),
        "surprise": float(-exact.gather(-1, ids[0, rows + 1, None]).mean()),
    }


def _growing(values: Tensor) -> Any:
    octets = values.view(-1, REPLAYED // OCTET, OCTET).mean((0, 2))
    return rounded(octets.cumsum(0) / torch.arange(1, len(octets) + 1, device=octets.device))


def rounded(values: Tensor) -> Any:
    """Nested lists of numbers with DIGITS digits."""
    flat = [float(f"{one:.{DIGITS}g}") for one in values.flatten().tolist()]
    return np.array(flat).reshape(tuple(values.shape)).tolist()
