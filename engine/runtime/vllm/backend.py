"""A vLLM attention backend that routes the prompts of a batch and leaves its other rows to the stock one.

``routed(stock)`` subclasses any backend of vLLM whose pages hold [pages, Hkv, tokens, 2 d]. A batch without a routed
row takes the stock path untouched, and of decodes alone the stock graph. Of a mixed batch the metadata is built twice,
once for all rows (layers that are not routed, and whoever else reads it) and once for the rows that are left, which the
stock kernel then sees packed as if they were the whole batch.

Tested on CPU_ATTN, and measured on a GPU's FLASH_ATTN (data/results/SERVING.md). TRITON_ATTN was never run.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.device.constants import to_device
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.runtime.vllm import batch, refusals, steps
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.engine.runtime.vllm.replay import ReplayedRows

if TYPE_CHECKING:
    from routesparse.engine.runtime.vllm.requests import Requests

SPLITS: dict[str, batch.Split] = {
    "CPU_ATTN": batch.keys_transposed,
    "FLASH_ATTN": batch.side_by_side,
    "TRITON_ATTN": batch.side_by_side,
}
MARK = "is_routed"  # of our classes of backends
_ATTRIBUTE = "routesparse"  # of a batch's metadata


@dataclass(frozen=True)
class Mixed:
    """What a batch's metadata says about its routed rows."""

    requests: Requests
    routed: tuple[Row, ...]
    rest: Any  # the stock backend's metadata of the other rows; None where there is none
    rest_tokens: torch.Tensor  # int64: their tokens in the packed batch


def routed(stock: Any) -> Any:
    """A subclass of one of vLLM's AttentionBackend classes. Errors: UnsupportedModelError."""
    name = stock.get_name()
    if name not in SPLITS:
        raise UnsupportedModelError(f"vLLM's backend {name} can't be routed; use one of {', '.join(SPLITS)}")
    implementation = _implementation(stock.get_impl_cls(), SPLITS[name])
    builder = _builder(stock.get_builder_cls())
    own = {
        MARK: True,
        "get_impl_cls": staticmethod(lambda: implementation),
        "get_builder_cls": staticmethod(lambda: builder),
    }
    return type(f"Routed{stock.__name__}", (stock,), own)


def _builder(stock: Any) -> Any:
    from vllm.v1.attention.backend import AttentionCGSupport

    class RoutedMetadataBuilder(stock):
        """Builds the stock metadata, and of a batch with routed rows that of the others."""

        supports_update_block_table = False

        @classmethod
        def get_cudagraph_support(cls, *given: Any) -> Any:
            """A decision depends on values, so no graph may replay it; decodes alone are never routed."""
            most = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
            return min(super().get_cudagraph_support(*given), most, key=lambda support: support.value)

        def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
            refusals.check_engine(vllm_config)
            super().__init__(kv_cache_spec, layer_names, vllm_config, device)
            if hasattr(self, "isa"):
                refusals.check_cpu_kernel(self.isa)

        def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
            metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
            step = steps.current()
            if step is None or common_attn_metadata.causal is not True:
                return metadata
            rows = step.rows(common_attn_metadata.query_start_loc_cpu.tolist())
            step.table = common_attn_metadata.block_table_tensor
            if step.routed:
                rest = [row for row in rows if row not in step.routed]
                places, left = batch.token_places(rest, common_attn_metadata.seq_lens.device), None
                if rest:
                    # Fast: without the schedule that FLASH_ATTN keeps in one buffer for all of its metadata.
                    left = super().build(0, _of_rows(common_attn_metadata, rest, places), fast_build=True)
                setattr(metadata, _ATTRIBUTE, Mixed(step.requests, step.routed, left, places))
            return metadata

    return RoutedMetadataBuilder


def _of_rows(common: Any, rows: Sequence[Row], places: torch.Tensor) -> Any:
    """vLLM's CommonAttentionMetadata of some rows of a batch, packed. places: token_places of the rows."""
    lines = torch.tensor([row.index for row in rows])
    starts = torch.tensor([0, *(row.tokens for row in rows)]).cumsum(0).to(common.query_start_loc_cpu.dtype)

    def taken(values: Any, where: torch.Tensor) -> Any:
        if values is None:
            return None
        return values[where if where.device == values.device else to_device(where, values.device)]

    derived = ("req_idx", "_seq_lens_cpu", "_num_computed_tokens_cpu")  # each in some versions only

    return replace(
        common,
        query_start_loc=to_device(starts, common.query_start_loc.device),
        query_start_loc_cpu=starts,
        seq_lens=taken(common.seq_lens, lines),
        num_reqs=len(rows),
        num_actual_tokens=len(places),
        max_query_len=max(row.tokens for row in rows),
        max_seq_len=max(row.keys for row in rows),
        block_table_tensor=taken(common.block_table_tensor, lines),
        slot_mapping=taken(common.slot_mapping, places),
        positions=taken(common.positions, places),
        is_prefilling=taken(common.is_prefilling, lines),
        seq_lens_cpu_upper_bound=taken(common.seq_lens_cpu_upper_bound, lines),
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
        **{name: None for name in derived if hasattr(common, name)},
    )


def _implementation(stock: Any, split: batch.Split) -> Any:
    from vllm.model_executor.models.utils import extract_layer_index

    signature = inspect.signature(stock.__init__)

    class RoutedAttention(stock):
        """Routes the rows that the metadata names, and hands the others to the stock kernel."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.stock_because = refusals.why_stock(signature.bind(self, *arguments, **named).arguments)

        def forward(
            self,
            layer: Any,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            kv_cache: torch.Tensor,
            attn_metadata: Any,
            output: torch.Tensor,
            *scales: Any,
            **named: Any,
        ) -> torch.Tensor:
            """query, key, value and output [tokens, H or Hkv, d], packed; the pages hold this batch's keys already."""
            mixed: Mixed | None = getattr(attn_metadata, _ATTRIBUTE, None)
            given = (query, key, value)
            if isinstance(attn_metadata, ReplayedRows):
                return output.copy_(attn_metadata.attention(*given, kv_cache, self.scale, split))
            if mixed is None or self.stock_because is not None:
                return super().forward(layer, *given, kv_cache, attn_metadata, output, *scales, **named)
            if mixed.rest is not None:
                places = mixed.rest_tokens
                rest = torch.empty_like(output[: len(places)])
                left = (tensor[places] for tensor in given)
                super().forward(layer, *left, kv_cache, mixed.rest, rest, *scales, **named)
                output[places] = rest
            number = extract_layer_index(layer.layer_name)
            for row in mixed.routed:
                keys, values = batch.packed(key[row.place]), batch.packed(value[row.place])
                if row.context:
                    table = attn_metadata.block_table[row.index]
                    keys, values = batch.gathered(kv_cache, table, row.keys, self.head_size, split)
                inputs = AttentionInputs(batch.packed(query[row.place]), keys, values, self.scale)
                out = mixed.requests.attend(row, inputs, number)
                output[row.place] = out[0].transpose(0, 1).view_as(output[row.place])
            return output

    return RoutedAttention
