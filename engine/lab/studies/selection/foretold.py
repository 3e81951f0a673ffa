"""What is predicted of a method's loss on a text, beside the KL that it cost (data/results/LOSS.md).

``--foretold STRETCHES``: the rows of so many stretches of REPLAYED rows are replayed (runtime/replay.py). A row of the
study then also has

    replayed, dense      what the replay says and the truth at the same rows: means over the first OCTET rows of each
                         stretch, the first 2 OCTET, ...
    entropy, surprise    of the replay: nats of its next token's distribution, and of the token that came; means

Its times hold the measuring and mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from routesparse.engine.calibrate.beside_dense import Text
from routesparse.engine.runtime.replay import Keeping, replayed, row_figures, row_kl

REPLAYED, OCTET = 32, 8
DIGITS = 5


def of_text(
    model: Any, log_p: Any, text: Text, hidden: Tensor, dense: Tensor, seen: Keeping, rows: Tensor
) -> dict[str, Any]:
    """hidden, dense [n, hidden]: last hidden states of the method and of dense attention; rows int64 [R]."""
    ids = torch.tensor([text.ids], device=rows.device)
    exact, found = log_p(replayed(model, {"input_ids": ids[:, rows]}, seen.kept, rows)), log_p(hidden[rows])
    kl, entropy, surprise = row_figures(exact, found, ids[0, rows + 1])
    return {
        "replayed": _growing(kl),
        "dense": _growing(row_kl(log_p(dense[rows]), found)),
        "entropy": float(entropy.mean()),
        "surprise": float(surprise.mean()),
    }


def _growing(values: Tensor) -> list[float]:
    octets = values.view(-1, REPLAYED // OCTET, OCTET).mean((0, 2)).cpu()
    means = octets.cumsum(0) / torch.arange(1, len(octets) + 1)
    return [float(f"{one:.{DIGITS}g}") for one in means.tolist()]
