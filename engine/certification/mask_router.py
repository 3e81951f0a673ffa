"""Serves a model by a block mask, so that what a file says can be executed and certified."""

from __future__ import annotations

import torch

from routesparse.engine.certification.mask_files import BlockMasks
from routesparse.engine.certification.reads import BLOCK, reads_of
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import ConfigError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.kernels.interface import RowPlan, sparse_attention


class MaskRouter(AttentionRouter):
    """The masks' blocks and each row's diagonal, on our kernel; decoded tokens and layers without a mask run dense.

    ``plan``: what the layer that ran last read, None where it ran dense.
    """

    def __init__(self, masks: BlockMasks, block: tuple[int, int] = BLOCK) -> None:
        self.masks, self.block = masks, block
        self.plan: RowPlan | None = None

    def serve(self, layers: int) -> None:
        """See ``AttentionRouter.serve``. Errors: ConfigError where the file has other layers than the model."""
        beyond = [layer for layer in self.masks.layers if layer >= layers]
        count = len(self.masks.layers)
        if self.masks.all_layers and count < layers:
            raise ConfigError(
                f"mask {self.masks.name} has {count} layers; the model's layers are 0 to {layers - 1}: save one mask a "
                "layer, or .safetensors with the layers by name"
            )
        if beyond:
            raise ConfigError(
                f"mask {self.masks.name} has a layer {beyond[0]}; the model's layers are 0 to {layers - 1}"
            )

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """See ``AttentionRouter.attend``. Errors: ConfigError where mask and prompt do not fit."""
        self.plan = None
        batch, heads, n_q, _ = inputs.q.shape
        n_k = inputs.k.shape[2]
        mask = self.masks.layers.get(layer)
        if mask is None or n_q == 1:
            return dense_attention(inputs, window)
        found = reads_of(mask, layer, (batch, heads, n_q, n_k), self.block, inputs.q.device)
        self.plan = plan = RowPlan.from_block_mask(
            found.mask.expand(batch, heads, -1, -1),  # type: ignore[union-attr]
            n_q,
            n_k,
            *self.block,
            key_start=inputs.key_start,
            window=window,
            softcap=inputs.softcap,
            sinks=inputs.sinks,
        )
        return sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale)[0]
