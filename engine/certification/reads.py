"""What a plan reads at single rows: row plans, block masks and FlexAttention's BlockMask behind one question.

``reads_of`` takes what a caller has; nothing of the size [n, n] is ever built. Causality, the window and padding are
the attention's, not the plan's: whoever asks cuts the answer by them.

A plan must be of exactly the call's queries and keys, as FlexAttention asks of its masks, or it is refused: the first
rows of a longer plan are other rows, and it does not say which of them a chunk has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np
import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import ConfigError, shortened
from routesparse.kernels.exact_rows import Kept
from routesparse.kernels.interface import RowPlan

BLOCK = (128, 64)  # query rows and keys of a block, where the caller does not say
# RowPlan; bool [L, H, M, N] or [H, M, N] (NumPy or torch); FlexAttention's BlockMask; by layer any of these, where a
# missing layer or None reads everything; or a function of the layer that gives one.
Plan: TypeAlias = Any


class Reads(ABC):
    """Which keys one layer's plan reads."""

    @abstractmethod
    def kept(self, batch: int, heads: torch.Tensor, rows: torch.Tensor, keys: int) -> Kept:
        """Of P heads and rows int64 [P], rows counted from the first query: blocks and single ones of ``keys`` keys."""

    def at(self, batch: int, heads: torch.Tensor, rows: torch.Tensor, keys: int) -> torch.Tensor:
        """bool [P, keys]: the same, key by key, of the first ``keys`` keys."""
        return self.kept(batch, heads, rows, keys).mask(keys)


@dataclass(frozen=True)
class PlanReads(Reads):
    """The lists of a row plan."""

    plan: RowPlan

    def kept(self, batch: int, heads: torch.Tensor, rows: torch.Tensor, keys: int) -> Kept:
        """See ``Reads.kept``."""
        plan = self.plan
        place = (batch, heads, rows // plan.block_q)
        blocks = _listed(plan.blocks[place], plan.block_count[place], plan.key_blocks)
        blocks = blocks | plan.dense_rows[place].unsqueeze(-1)
        if not plan.columns.shape[-1]:
            return Kept(blocks, plan.block_k, None)
        return Kept(blocks, plan.block_k, _listed(plan.columns[place], plan.column_count[place], plan.n_k))

    def check_attention(self, inputs: AttentionInputs, window: int | None) -> None:
        """Errors: ConfigError where the plan has a window, padding, soft cap or sinks of its own, not the call's."""
        called = {"window": window, "softcap": inputs.softcap, "sinks": inputs.sinks}
        for name, value in {**called, "key_start": inputs.first_keys()}.items():
            made = getattr(self.plan, name)
            if made is None or made is value or (name == "window" and made >= self.plan.n_k):
                continue
            both = [x.tolist() if torch.is_tensor(x) else x for x in (made, value)]
            if both[0] != both[1]:
                told = [shortened(x) for x in both]
                raise ConfigError(
                    f"the RowPlan's {name} is {told[0]}, the attention's {told[1]}; pass its own plan"
                )


@dataclass(frozen=True)
class BlockReads(Reads):
    """A block mask, bool [1 or H, M, N]."""

    mask: torch.Tensor
    block_q: int
    block_k: int

    def kept(self, batch: int, heads: torch.Tensor, rows: torch.Tensor, keys: int) -> Kept:
        """See ``Reads.kept``."""
        head = heads if len(self.mask) > 1 else torch.zeros_like(heads)
        return Kept(self.mask[head, rows // self.block_q], self.block_k, None)


@dataclass(frozen=True)
class FlexReads(Reads):
    """FlexAttention's BlockMask: its full blocks whole, its partial ones where mask_mod says so."""

    mask: Any

    def kept(self, batch: int, heads: torch.Tensor, rows: torch.Tensor, keys: int) -> Kept:
        """See ``Reads.kept``."""
        mask = self.mask
        block_q, block_k = mask.BLOCK_SIZE
        b = min(batch, mask.kv_indices.shape[0] - 1)
        head = heads if mask.kv_indices.shape[1] > 1 else torch.zeros_like(heads)
        place = (b, head, rows // block_q)
        count = -(-mask.shape[-1] // block_k)
        partial = _listed(mask.kv_indices[place], mask.kv_num_blocks[place], count)
        partial = partial.repeat_interleave(block_k, -1)[:, :keys]
        key = torch.arange(partial.shape[-1], device=rows.device)
        which = torch.full_like(heads, batch).unsqueeze(-1)
        single = partial & mask.mask_mod(which, heads.unsqueeze(-1), rows.unsqueeze(-1), key)
        if mask.full_kv_indices is None:
            return Kept(None, 0, single)
        return Kept(
            _listed(mask.full_kv_indices[place], mask.full_kv_num_blocks[place], count), block_k, single
        )


def reads_of(
    plan: Plan,
    layer: int,
    shape: tuple[int, int, int, int],
    block: tuple[int, int] = BLOCK,
    device: torch.device | str = "cpu",
) -> Reads | None:
    """What ``plan`` reads in a layer; None where it reads everything there.

    shape: batch, query heads, n_q and n_k. block: sizes of a bare mask's blocks. Errors: ConfigError.
    """
    if callable(plan):
        plan = plan(layer)
    if isinstance(plan, Mapping):
        if strange := [key for key in plan if not isinstance(key, Integral)]:
            raise ConfigError(
                f"a plan by layer has the key {shortened(strange[0])!r}; write {{0: mask, 1: ...}}"
            )
        plan = plan.get(layer)
    if plan is None:
        return None
    if isinstance(plan, RowPlan):
        _check_fit(plan, layer, (plan.batch, plan.heads, plan.n_q, plan.n_k), shape, plan.device, device)
        return PlanReads(plan)
    if hasattr(plan, "kv_num_blocks") and hasattr(plan, "mask_mod"):
        _check_fit(plan, layer, tuple(plan.shape), shape, plan.kv_indices.device, device, shared=1)
        blocks, rows = plan.kv_num_blocks.shape[-1], plan.BLOCK_SIZE[0]
        if blocks != -(-shape[2] // rows):
            raise ConfigError(
                f"layer {layer}: the BlockMask's {blocks} blocks of {rows} queries are not its {shape[2]} queries; "
                "make it for this prompt, not as a slice of another"
            )
        return FlexReads(plan)
    if isinstance(plan, np.ndarray | torch.Tensor):
        return _block_mask(plan, layer, shape, block, device)
    raise ConfigError(
        f"layer {layer}: {type(plan).__name__} is no plan; pass a RowPlan, a bool block mask [heads, query blocks, "
        "key blocks], a BlockMask of FlexAttention, or one of these by layer"
    )


def check_layers(plan: Plan, layers: int) -> None:
    """Errors: ConfigError for a plan of other layers than the model's, some of which would never be judged."""
    if isinstance(plan, np.ndarray | torch.Tensor) and plan.ndim == 4 and len(plan) != layers:
        raise ConfigError(f"the mask has {len(plan)} layers, the model {layers}; pass one mask a layer")
    if isinstance(plan, Mapping) and (beyond := set(plan) - set(range(layers))):
        raise ConfigError(
            f"a plan by layer has the key {shortened(min(beyond, key=str))!r}; the model's layers are 0 to {layers - 1}"
        )


def _check_fit(
    plan: Any,
    layer: int,
    planned: tuple[int, ...],
    shape: tuple[int, int, int, int],
    lies_on: torch.device,
    device: torch.device | str,
    shared: int | None = None,
) -> None:
    """planned: the plan's prompts, heads, queries and keys. shared: the size that stands for all prompts or heads.

    Errors: ConfigError.
    """
    name, told = type(plan).__name__, "{} prompts, {} heads, {} queries and {} keys".format
    planned = (0,) * (4 - len(planned)) + planned
    shares = all(mine in (called, shared) for mine, called in zip(planned[:2], shape[:2], strict=True))
    if not shares or planned[2:] != shape[2:]:
        raise ConfigError(
            f"layer {layer}: the {name} has {told(*planned)}, the call {told(*shape)}; pass the plan of this prompt, "
            "and for a chunk that of the chunk's own queries"
        )
    if lies_on != torch.device(device):
        raise ConfigError(
            f"layer {layer}: the {name} lies on {lies_on}, its queries on {device}; move it there"
        )


def _block_mask(
    masks: np.ndarray | torch.Tensor,
    layer: int,
    shape: tuple[int, int, int, int],
    block: tuple[int, int],
    device: torch.device | str,
) -> BlockReads:
    """Errors: ConfigError."""
    if masks.ndim == 4:
        if layer >= len(masks):
            raise ConfigError(f"the mask has {len(masks)} layers; the model's layer {layer} is not in it")
        masks = masks[layer]
    # A copy: torch takes no NumPy array that must not be written.
    mask = torch.from_numpy(np.array(masks)) if isinstance(masks, np.ndarray) else masks
    _, heads, n_q, n_k = shape
    wanted = (-(-n_q // block[0]), -(-n_k // block[1]))
    if n_q < n_k and wanted[0] == -(-n_k // block[0]):
        raise ConfigError(
            f"layer {layer}: a chunk of {n_q} queries over {n_k} keys has as many blocks of {block[0]} as the whole "
            "prompt, and a bool mask does not say which it is of; pass a RowPlan or a BlockMask of the chunk"
        )
    if mask.dtype != torch.bool or mask.ndim != 3 or len(mask) not in (1, heads) or mask.shape[1:] != wanted:
        raise ConfigError(
            f"layer {layer}: a mask of {str(mask.dtype).removeprefix('torch.')} {list(mask.shape)}; {n_q} queries and "
            f"{n_k} keys in blocks of {block[0]} x {block[1]} need bool [{heads}, {wanted[0]}, {wanted[1]}]; "
            "pass the block sizes that the mask was made with"
        )
    return BlockReads(mask.to(device), *block)


def _listed(indices: torch.Tensor, count: torch.Tensor, size: int) -> torch.Tensor:
    """bool [P, size]: which numbers are among the first ``count`` of ``indices`` [P, capacity]."""
    live = torch.arange(indices.shape[-1], device=indices.device) < count.unsqueeze(-1)
    found = torch.zeros((len(indices), size + 1), dtype=torch.bool, device=indices.device)
    return found.scatter_(-1, torch.where(live, indices, size).long(), True)[:, :size]
