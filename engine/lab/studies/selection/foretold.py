"""What is predicted of a method's loss, beside the KL that it cost; losses.py makes tables of the rows.

``--foretold STRETCHES``: the rows of so many stretches of REPLAYED rows are replayed (runtime/replay.py). A row of the
study then also has

    replayed, dense      what the replay says and the truth at the same rows: means over the first OCTET rows of each
                         stretch, the first 2 OCTET, ...
    entropy, surprise    of the replay: nats of its next token's distribution, and of the token that came; means

and of a question, whose gold answer's nats are the truth,

    question             at the last row, the last 16, the last ASKING, replayed with the READ blocks of keys that these
                         read most in all layers
    replayed             as of a text

Its times hold the measuring and mean nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from routesparse.engine.calibrate.beside_dense import Text
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.replay import (
    Keeping,
    most_read,
    question_rows,
    replayed,
    row_kl,
    stretches,
)

REPLAYED, OCTET = 32, 8
ASKING, READ, BLOCK = 64, 24, 16
DIGITS = 5


class Watching(Keeping):
    """Also keeps which keys a question's last rows read. rows int64 [R]: to be replayed."""

    def __init__(self, inner: AttentionRouter, rows: Tensor, question: bool) -> None:
        super().__init__(inner)
        self.rows, self._question = rows, question
        self.read: Tensor | float = 0.0  # [n]

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> Tensor:
        """See ``AttentionRouter.attend``; layers with a window are not measured."""
        out = super().attend(inputs, layer=layer, window=window)
        if window is None and self._question:
            self.read = self.read + _read(inputs)
        return out


def _read(inputs: AttentionInputs) -> Tensor:
    """[n]: how much the last ASKING rows of all heads read of each key."""
    keys = inputs.k.shape[2]
    q = inputs.q[:, :, -ASKING:].float().unflatten(1, (inputs.k.shape[1], -1))
    logits = inputs.scale * q @ inputs.k.float().unsqueeze(2).mT
    future = torch.full((ASKING, keys), -torch.inf, device=q.device).triu(keys - ASKING + 1)
    return (logits + future).softmax(-1).sum((0, 1, 2, 3))


def text_rows(tokens: int, count: int, seed: int) -> np.ndarray:
    """int64 [count, REPLAYED]: the stretches; the last row of a text has no next token to be wrong about."""
    return stretches(tokens - 1, count, REPLAYED, seed)


def of_text(
    model: Any, log_p: Any, text: Text, hidden: Tensor, dense: Tensor, seen: Watching
) -> dict[str, Any]:
    """hidden, dense [n, hidden]: last hidden states of the method and of dense attention."""
    rows = seen.rows
    exact = log_p(replayed(model, _tokens(text, rows), seen.kept, rows))
    found, truth = log_p(hidden[rows]), log_p(dense[rows])
    came = torch.tensor(text.ids, device=rows.device)[rows + 1]
    return {
        "replayed": _growing(row_kl(exact, found)),
        "dense": _growing(row_kl(truth, found)),
        "entropy": float(-(exact.exp() * exact).sum(-1).mean()),
        "surprise": float(-exact.gather(-1, came[:, None]).mean()),
    }


def of_question(model: Any, log_p: Any, text: Text, hidden: Tensor, seen: Watching) -> dict[str, Any]:
    """hidden [n, hidden]: last hidden states of the method."""
    assert isinstance(seen.read, Tensor)
    tokens = len(text.ids)
    first = most_read(seen.read[BLOCK * 4 :], BLOCK, READ, tokens - 2 * ASKING - BLOCK * 4)
    rows = question_rows(tokens, [one + BLOCK * 4 for one in first], BLOCK, ASKING, hidden.device)
    asked = row_kl(
        log_p(replayed(model, _tokens(text, rows), seen.kept, rows)[-ASKING:]), log_p(hidden[-ASKING:])
    )
    again = replayed(model, _tokens(text, seen.rows), seen.kept, seen.rows)
    return {
        "question": rounded(torch.stack([asked[-1], asked[-16:].mean(), asked.mean()])),
        "replayed": _growing(row_kl(log_p(again), log_p(hidden[seen.rows]))),
    }


def _tokens(text: Text, rows: Tensor) -> dict[str, Tensor]:
    return {"input_ids": torch.tensor([text.ids], device=rows.device)[:, rows]}


def _growing(values: Tensor) -> Any:
    octets = values.view(-1, REPLAYED // OCTET, OCTET).mean((0, 2))
    return rounded(octets.cumsum(0) / torch.arange(1, len(octets) + 1, device=octets.device))


def rounded(values: Tensor) -> Any:
    """Nested lists of numbers with DIGITS digits."""
    flat = [float(f"{one:.{DIGITS}g}") for one in values.flatten().tolist()]
    return np.array(flat).reshape(tuple(values.shape)).tolist()
