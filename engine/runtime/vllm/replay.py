"""The loss of a routed prompt, predicted inside vLLM: runtime/replay.py over the pages that the prompt left.

While a prompt runs, the last hidden states of a few rows are kept. Behind its last chunk the runner's own model runs
these rows once more: in every layer they read the prompt's pages exactly, with their own keys and values in the places
of the rows' old ones, and nothing is written. With all rows it is dense attention, and what is seen is the true loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from routesparse.engine.device.constants import to_device
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.runtime.replay import figures_of, rows_of
from routesparse.engine.runtime.vllm import batch
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.kernels.row_attention import Places, row_attention


@dataclass(frozen=True)
class ReplayedRows:
    """What a layer gets in the place of a batch's metadata. table: the prompt's page numbers, in order."""

    places: Places
    table: Tensor
    tokens: int

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, pages: Tensor, scale: float, split: batch.Split
    ) -> Tensor:
        """Exact attention [R, H, d] of the rows' queries [R, H, d]; key, value [R, Hkv, d]: their own."""
        keys, values = batch.gathered(pages, self.table, self.tokens, query.shape[-1], split)  # copies
        for old, new in ((keys, key), (values, value)):
            old.index_copy_(2, self.places.rows, batch.packed(new))
        inputs = AttentionInputs(batch.packed(query), keys, values, scale)
        return row_attention(inputs.logits, values, self.places)[0].transpose(0, 1)


@dataclass
class KeptRows:
    """Rows of a prompt, chosen when its first chunk runs, and their last hidden states as its chunks make them."""

    prompt: np.ndarray  # int64 [n], token ids
    seed: int
    whole: bool  # every row is kept, not those alone that are replayed in any case; False where vLLM had keys
    first: int = -1  # token of the first chunk; vLLM had the keys before it
    stretches: np.ndarray | None = None  # int64 [S, STRETCH], these; None: too few tokens to judge
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # kept, ascending
    predicted: float | None = None  # nats a token, once they were replayed
    _hidden: list[Tensor] = field(default_factory=list)

    def keep(self, row: Row, hidden: Tensor) -> None:
        """Of one chunk. hidden [tokens of the batch, width]; a GPU that computes them still is not waited for."""
        if self.first < 0:
            self.first, last = row.context, len(self.prompt) - 1  # which no token follows
            self.whole = self.whole and not self.first
            found = rows_of(last - self.first, self.seed)
            if found is not None:
                self.stretches = found + self.first
                self.rows = np.arange(self.first, last) if self.whole else self.stretches.flatten()
        inside = self.rows[(self.rows >= row.context) & (self.rows < row.keys)]
        self._hidden.append(hidden[to_device(inside - row.context + row.first, hidden.device)])

    @property
    def is_complete(self) -> bool:
        """Whether all of the rows came by: not where a chunk of one token ran in a captured graph, beside decodes."""
        return sum(map(len, self._hidden)) == len(self.rows)

    def hidden_at(self, rows: np.ndarray) -> Tensor:
        """Of some of the rows, once all chunks ran, [len(rows), width]."""
        found = torch.cat(self._hidden)
        return found[to_device(np.searchsorted(self.rows, rows), found.device)]


class Replayer:
    """Replays rows by one model runner's model."""

    def __init__(self, runner: Any, layers: Sequence[str]) -> None:
        """layers: names of all attention layers, which are all routed. Errors: UnsupportedModelError."""
        self._model, self._config, self._layers = runner.get_model(), runner.vllm_config, layers
        self._device, config = runner.device, runner.model_config
        weight = getattr(getattr(self._model, "lm_head", None), "weight", None)
        if weight is None or not weight.is_floating_point():
            raise UnsupportedModelError(
                "no loss can be predicted of a model whose head is quantised or unknown"
            )
        bias, words = getattr(self._model.lm_head, "bias", None), config.get_vocab_size()
        head = SimpleNamespace(weight=weight[:words], bias=None if bias is None else bias[:words])
        # As runtime/replay.py asks a model of transformers for it.
        self._of_head: Any = SimpleNamespace(get_output_embeddings=lambda: head, config=config.hf_text_config)

    def figures(self, kept: KeptRows, rows: np.ndarray, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of some of the kept rows, all [R], nats: KL between replay and run, the replay's entropy and surprise.

        table: of the block table the prompt's line.
        """
        from vllm.forward_context import set_forward_context

        found = kept.hidden_at(rows)
        at, tokens = (to_device(values, self._device) for values in (rows, kept.prompt))
        replayed = ReplayedRows(Places(at), table, len(tokens))
        metadata = dict.fromkeys(self._layers, replayed)
        how = {"num_tokens": len(rows), "slot_mapping": {}, "skip_compiled": True}
        with torch.inference_mode(), set_forward_context(metadata, self._config, **how):
            ids = tokens[at].to(torch.int32)
            exact = self._model(input_ids=ids, positions=at, intermediate_tensors=None, inputs_embeds=None)
            return figures_of(self._of_head, exact, found, tokens[at + 1])
