"""The loss of a prefill, predicted: stretches of its rows run again, with exact attention over the run's own keys.

A prefill by any attention leaves keys and values in every layer. A few rows then pass through the whole model a second
time: each reads all keys before it, exactly, those of replayed rows as the replay makes them and the others as the
prefill left them. With p of a replayed row's next token and q of the prefill's,

    replayed = mean over rows of sum_v p(v) (log p(v) - log q(v))        nats a token

With every row replayed this is the KL to dense attention itself. With a few it is less, by a factor that is measured
(calibration/fitted.py): the keys and values of all other rows keep what the prefill made of them. Stretches of
neighbours see more than as many rows apart, since a row reads its neighbours most. Nothing is asked of how the outputs
came about, so it is the same for any attention. Of a share s of rows it costs about s of a dense prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import PromptError
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.transformers import routed_by
from routesparse.kernels.row_attention import Places, row_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STRETCH, LEAST_ROWS, MOST_ROWS = 16, 256, 768
CHUNK = 256  # rows whose log-probabilities exist at a time


@dataclass(frozen=True)
class LayerKeys:
    """What a layer's attention read: keys and values [1, Hkv, n, D], held and not copied."""

    inputs: AttentionInputs  # without queries
    window: int | None

    @classmethod
    def of(cls, inputs: AttentionInputs, window: int | None) -> LayerKeys:
        """Of one call."""
        return cls(replace(inputs, q=inputs.q[:, :, :0]), window)


class Keeping(AttentionRouter):
    """Serves as another router does, and holds every layer's keys and values of the last prompt.

    rows int64 [R]: where what each head's output lost is measured; None: nowhere.
    """

    def __init__(self, inner: AttentionRouter, rows: Tensor | None = None) -> None:
        self._inner, self._rows = inner, rows
        self.kept: dict[int, LayerKeys] = {}
        self._asked: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # by layer [1, H, R, D]: queries of the rows, and outputs

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> Tensor:
        """See ``AttentionRouter.attend``: the prefill that is timed pays for copies of a few rows alone."""
        out = self._inner.attend(inputs, layer=layer, window=window)
        if inputs.q.shape[2] > 1:
            self.kept[layer] = LayerKeys.of(inputs, window)
        if self._rows is not None and inputs.q.shape[2] == inputs.k.shape[2] > 1:
            rows = self._rows.to(inputs.q.device)
            self._asked[layer] = inputs.q[:, :, rows], out[:, :, rows]
        return out

    def lost(self) -> dict[int, Tensor]:
        """By layer [H]: mean over rows of ||output - exact output||^2; nothing where no rows were given."""
        if self._rows is None:
            return {}
        places, found = _Places(self._rows), {}
        for layer, (q, out) in self._asked.items():
            kept = self.kept[layer]
            exact = places.attention(replace(kept.inputs, q=q), kept.window)
            found[layer] = (out - exact)[0].float().square().sum(-1).mean(-1)
        return found

    def untouched(self, q: Tensor, k: Tensor, v: Tensor, *, layer: int, scale: float | None) -> Tensor | None:
        """See ``AttentionRouter.untouched``: nothing is lost, and nothing kept."""
        return self._inner.untouched(q, k, v, layer=layer, scale=scale)

    def serve(self, layers: int) -> None:
        """See ``AttentionRouter.serve``."""
        self._inner.serve(layers)

    def start(self) -> None:
        """See ``AttentionRouter.start``."""
        self._inner.start()

    def finish(self) -> None:
        """See ``AttentionRouter.finish``."""
        self._inner.finish()


class _Replaying(AttentionRouter):
    """Exact attention of rows at the given positions over kept keys, their own in the places of the rows'."""

    def __init__(self, kept: dict[int, LayerKeys], rows: Tensor) -> None:
        self._kept, self._places = kept, _Places(rows)

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> Tensor:
        kept, rows = self._kept[layer], self._places.on(inputs.q.device).rows
        k, v = (
            old.index_copy(2, rows, new)
            for old, new in ((kept.inputs.k, inputs.k), (kept.inputs.v, inputs.v))
        )
        return self._places.attention(replace(inputs, k=k, v=v), kept.window)


class _Places:
    """Rows of a prompt on each device that a layer of the model lies on."""

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self._on: dict[torch.device, Places] = {}

    def on(self, device: torch.device) -> Places:
        if device not in self._on:
            self._on[device] = Places(self._rows.to(device))
        return self._on[device]

    def attention(self, inputs: AttentionInputs, window: int | None) -> Tensor:
        """Exact causal attention [1, H, R, D] of queries [1, H, R, D] that stand at the rows."""
        return row_attention(inputs.logits, inputs.v, self.on(inputs.q.device), window=window)


def rows_of(tokens: int, seed: int) -> np.ndarray | None:
    """int64 [count, STRETCH]: the rows that are replayed of a prompt; None where it is too short to be judged so.

    One row in 32, but at least LEAST_ROWS, for what few rows say is chance, and at most MOST_ROWS, for its time.
    """
    rows = min(MOST_ROWS, max(LEAST_ROWS, tokens // 32))
    return None if tokens < 4 * rows else stretches(tokens, rows // STRETCH, STRETCH, seed)


def stretches(tokens: int, count: int, length: int, seed: int) -> np.ndarray:
    """int64 [count, length]: rows of neighbours, one stretch at a random place in each of ``count`` equal parts.

    Errors: PromptError where they don't fit into the prompt.
    """
    each = tokens // count
    if each < length:
        raise PromptError(f"{count} stretches of {length} rows don't fit into {tokens:,} tokens")
    first = np.random.default_rng([seed, tokens, count, length]).integers(0, each - length + 1, count)
    return (first + each * np.arange(count))[:, None] + np.arange(length)


@torch.no_grad()
def replayed(
    model: PreTrainedModel, tokens: dict[str, Tensor], kept: dict[int, LayerKeys], rows: Tensor
) -> Tensor:
    """The replayed rows' last hidden states [R, hidden].

    tokens: input_ids [1, R] or inputs_embeds [1, R, hidden], of these rows. kept: of every layer, of one prompt without
    padding. rows int64 [R], ascending.
    """
    with routed_by(model, _Replaying(kept, rows)):
        # With a cache transformers does not take positions with gaps for several prompts in a row.
        found = model.base_model(**tokens, position_ids=rows[None], use_cache=True)
    return found.last_hidden_state[0]


@dataclass
class HiddenRows:
    """Last hidden states [R, hidden] of a forward pass at rows int64 [R]."""

    rows: Tensor
    hidden: Tensor | None = None


@contextmanager
def hidden_at(model: PreTrainedModel, rows: Tensor) -> Iterator[HiddenRows]:
    """The rows of the prefill that runs inside the block."""
    found = HiddenRows(rows)
    last = int(rows.max())  # inside the prefill a GPU would be waited for

    def keep(module: Any, arguments: Any, output: Any) -> None:
        if output.last_hidden_state.shape[1] > last:
            found.hidden = output.last_hidden_state[0, rows]

    hook = model.base_model.register_forward_hook(keep)
    try:
        yield found
    finally:
        hook.remove()


def log_p(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Log-probabilities float32 [..., V] of last hidden states [..., hidden], as the model's own head makes them.

    Products are summed in float32: bfloat16 logits are off by .04, more than a loss of .001 leaves.
    """
    head, config = model.get_output_embeddings(), model.config
    rows = hidden.flatten(0, -2)
    if hidden.is_cuda and hidden.dtype != torch.float32:
        logits = torch.mm(rows, head.weight.T, out_dtype=torch.float32)
    else:
        logits = rows.float() @ head.weight.float().T
    if (bias := getattr(head, "bias", None)) is not None:
        logits = logits + bias.float()
    scale = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    logits = logits if scale == 1.0 else logits * scale
    cap = getattr(config, "final_logit_softcapping", None)
    return (
        (logits if not cap else cap * torch.tanh(logits / cap))
        .log_softmax(-1)
        .unflatten(0, hidden.shape[:-1])
    )


@torch.no_grad()
def figures_of(
    model: PreTrainedModel, exact: Tensor, found: Tensor, came: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """``row_figures`` of a replay's last hidden states and a run's [R, hidden], in chunks of rows."""
    chunks = zip(exact.split(CHUNK), found.split(CHUNK), came.split(CHUNK), strict=True)
    parts = [row_figures(log_p(model, p), log_p(model, q), tokens) for p, q, tokens in chunks]
    kl, entropy, surprise = (torch.cat(column) for column in zip(*parts, strict=True))
    return kl, entropy, surprise


def row_figures(exact: Tensor, found: Tensor, came: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of log-probabilities [R, V] of a replay and a run: the KL between them, and of the replay the entropy and the
    surprise, nats of the tokens int64 [R] that came next; all [R]. A KL is never below 0 by rounding."""
    kl, surprise = row_kl(exact, found).clamp_min(0.0), -exact.gather(-1, came[:, None])[:, 0]
    return kl, -(exact.exp() * exact).sum(-1), surprise


@torch.no_grad()
def kl_of(model: PreTrainedModel, exact: Tensor, found: Tensor) -> Tensor:
    """KL [R] in nats between what last hidden states [R, hidden] predict; never below 0 by rounding."""
    parts = zip(exact.split(CHUNK), found.split(CHUNK), strict=True)
    return torch.cat([row_kl(log_p(model, p), log_p(model, q)) for p, q in parts]).clamp_min(0.0)


def row_kl(exact: Tensor, found: Tensor) -> Tensor:
    """KL [R] in nats, of log-probabilities [R, V]."""
    return (exact.exp() * (exact - found)).sum(-1)
