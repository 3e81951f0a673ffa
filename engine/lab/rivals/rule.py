"""Selection rules: what one layer's query blocks read, by a published rule or by an oracle, on our kernel.

A rule sees a whole prompt's attention of one layer (``View``) and says which KV blocks and single columns are read
(``Selection``). ``RuleRouter`` serves a model with it: one ``RowPlan`` a layer, one launch, decoding dense. With
``extras`` every plan also reads what RouteSparse's plans always read (the sink block, the diagonal and the block before
it; the last rows dense), so that rules differ by their selection alone; without, the rule stands as published (the
kernel's contract still adds the diagonal).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.timing import Laps
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.segments import Segment, split
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.kernels.causal_blocks import forced_and_causal
from routesparse.kernels.interface import RowPlan, sparse_attention


class Selection(NamedTuple):
    """What is read. B = 1; H may be 1 where all heads read the same."""

    blocks: torch.Tensor  # bool [1, H, M, N]; blocks past the diagonal may be named
    columns: torch.Tensor | None = None  # int64 [1, H, V], single keys, in any order
    column_count: torch.Tensor | None = None  # int64 [1, H], how many of them count; None: all


@dataclass(frozen=True)
class View:
    """One layer of a whole prompt (n_q = n_k = n, no padding, batch 1), as a rule sees it."""

    inputs: AttentionInputs
    layer: int
    salt: str = ""  # with the layer it seeds a rule's random draws
    block_q: int = 128
    block_k: int = 64
    tail_tokens: int = 128

    @property
    def tokens(self) -> int:
        """n."""
        return self.inputs.q.shape[2]

    @property
    def heads(self) -> int:
        """H, query heads."""
        return self.inputs.q.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the layer's queries and keys lie."""
        return self.inputs.q.device

    @cached_property
    def keys(self) -> torch.Tensor:
        """The keys of each query head: [1, H, n, D]."""
        return self.inputs.k.repeat_interleave(self.inputs.groups, 1)

    @cached_property
    def segment(self) -> Segment:
        """The prompt as one segment."""
        size = -(-self.tokens // self.block_q) * self.block_q
        config = RouterConfig(
            segment_tokens=size, block_q=self.block_q, block_k=self.block_k, tail_tokens=self.tail_tokens
        )
        return split(self.tokens, self.tokens, config)[0]

    @cached_property
    def forced_and_causal(self) -> tuple[torch.Tensor, torch.Tensor]:
        """bool [1, 1, M, N] each: what every plan of ours reads, and blocks up to the diagonal."""
        return forced_and_causal(self.segment.geometry(self.inputs.first_keys()))

    def row_softmax(self, rows: torch.Tensor) -> torch.Tensor:
        """Exact attention of rows int64 [R], attention sinks left out: float32 [1, H, R, n]."""
        logits = self.inputs.q[:, :, rows].float() @ self.keys.float().transpose(-1, -2) * self.inputs.scale
        if cap := self.inputs.softcap:
            logits = cap * (logits / cap).tanh()
        future = torch.arange(self.tokens, device=self.device) > rows.view(-1, 1)
        return logits.masked_fill_(future, -torch.inf).softmax(-1)

    def plan(self, selection: Selection, extras: bool) -> RowPlan:
        """The row plan of a selection. extras: see the module."""
        forced, causal = self.forced_and_causal
        blocks = ((selection.blocks | forced) if extras else selection.blocks) & causal
        dense = torch.arange(blocks.shape[2], device=self.device) >= self.segment.body_blocks
        rows = dense.expand(1, self.heads, -1).contiguous() & extras
        return RowPlan.from_block_mask(
            blocks.expand(1, self.heads, -1, -1),
            self.tokens,
            self.tokens,
            self.block_q,
            self.block_k,
            columns=selection.columns,
            column_count=selection.column_count,
            dense_rows=rows,
            softcap=self.inputs.softcap,
            sinks=self.inputs.sinks,
        )


Rule = Callable[[View], Selection | None]  # None: this layer runs dense


class RuleRouter(AttentionRouter):
    """Serves a model's prefill by one rule. ``plan``: what the layer that ran last read, None where it ran dense.

    counted: keep every layer's plan until ``density`` counts it, so that counting is not part of a timed prefill.
    """

    def __init__(self, rule: Rule, *, extras: bool = True, salt: str = "", counted: bool = False) -> None:
        self.rule, self.extras, self.salt, self.counted = rule, extras, salt, counted
        self._plans: dict[int, RowPlan | None] = {}
        self._attending: dict[int, Laps] = {}  # by layer: making the plan, and the kernel
        self.plan: RowPlan | None = None

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """See ``AttentionRouter.attend``; decoding, chunks after the first, padding and windows run dense."""
        self.plan = None
        whole = inputs.q.shape[2] == inputs.k.shape[2] and len(inputs.q) == 1
        if not whole or window is not None or inputs.key_start is not None:
            return dense_attention(inputs, window)
        view = View(inputs, layer, self.salt)
        found = self.rule(view)
        laps = self._attending[layer] = Laps(inputs.q.device)
        if found is None:
            out = dense_attention(inputs, window)
        else:
            self.plan = plan = view.plan(found, self.extras)
            out = sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale)[0]
        laps.lap()
        if self.counted:
            self._plans[layer] = self.plan
        return out

    def attention_us(self) -> float:
        """Of the last prompt, all layers together: making the plan and the kernel; waits for the device."""
        return sum(sum(laps.elapsed_us()) for laps in self._attending.values())

    def density(self) -> float:
        """Kept share of the causal area of the last prompt, mean over layers and heads; needs ``counted``."""
        return float(
            np.mean([1.0 if p is None else float(p.head_density().mean()) for p in self._plans.values()])
        )


def block_sums(x: torch.Tensor, block: int) -> torch.Tensor:
    """Sums of blocks of the last axis, the last one perhaps short: [..., n] -> [..., ceil(n / block)]."""
    return F.pad(x, (0, -x.shape[-1] % block)).unflatten(-1, (-1, block)).sum(-1)


def token_means(x: torch.Tensor, block: int) -> torch.Tensor:
    """Means of blocks of tokens: [B, H, n, D] -> float32 [B, H, ceil(n / block), D]."""
    sizes = block_sums(torch.ones(x.shape[2], device=x.device), block)
    return (block_sums(x.float().transpose(-1, -2), block) / sizes).transpose(-1, -2)


def fewest_to_share(
    weight: torch.Tensor, share: float, first: torch.Tensor, causal: torch.Tensor
) -> torch.Tensor:
    """Per row the fewest blocks whose weight reaches ``share`` of the row's, those of ``first`` before all others.

    weight float [..., M, N] >= 0; first, causal bool, broadcast. Returns bool [..., M, N].
    """
    weight = weight.masked_fill(~causal, 0.0)
    order = weight.masked_fill(first, torch.inf).argsort(dim=-1, descending=True, stable=True)
    ordered = weight.gather(-1, order)
    kept = ordered.cumsum(-1) - ordered < share * weight.sum(-1, keepdim=True)
    return (torch.zeros_like(kept).scatter_(-1, order, kept) | first) & causal
