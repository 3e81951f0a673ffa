"""The full audit's second half: how far the routed forward pass has drifted from the dense one.

The audit of a unit compares with dense attention on the *run's own* queries, keys and values: the error made there.
This compares with the dense *forward pass*, errors made upstream included: both passes keep the attention outputs of
the same sampled rows, and E = ||O - O_dense||_F / ||O_dense||_F per layer, head and segment. The next token: answer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.rows import HeadChoiceRow, RunRecord
from routesparse.engine.runtime.attention_router import AttentionRouter

SAMPLED_ROWS = 512
LAST_ROWS = 64  # always in the sample: a prompt usually ends with its question


class DenseRouter(AttentionRouter):
    """Exact attention in every layer."""

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        return dense_attention(inputs, window)


class SampledRouter(AttentionRouter):
    """Another router's attention, of which the given rows are kept: float32 [B, H, P, D] by layer."""

    def __init__(self, inner: AttentionRouter, rows: torch.Tensor) -> None:
        self.outputs: dict[int, torch.Tensor] = {}
        self._inner, self._rows = inner, rows

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        out = self._inner.attend(inputs, layer=layer, window=window)
        self.outputs[layer] = out[:, :, self._rows.to(out.device)].float().cpu()
        return out

    def serve(self, layers: int) -> None:
        self._inner.serve(layers)

    def start(self) -> None:
        self._inner.start()

    def finish(self) -> None:
        self._inner.finish()


def sample_rows(tokens: int, seed: int) -> torch.Tensor:
    """int64 [P], ascending: LAST_ROWS at the end and SAMPLED_ROWS drawn from the rest (all of a short prompt)."""
    split = max(0, tokens - LAST_ROWS)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(split, generator=generator)[:SAMPLED_ROWS].sort().values
    return torch.cat([drawn, torch.arange(split, tokens)])


def relative_error(out: torch.Tensor, dense: torch.Tensor) -> float:
    """||out - dense||_F / ||dense||_F."""
    return float((out - dense).double().norm() / dense.double().norm().clamp_min(1e-30))


def with_forward_errors(
    record: RunRecord, routed: dict[int, torch.Tensor], dense: dict[int, torch.Tensor], rows: torch.Tensor
) -> RunRecord:
    """The record with ``forward_error`` in its layers and audits; rows [P] are those of both outputs."""
    segments = _segments(record.choices)
    layers = tuple(
        replace(row, forward_error=relative_error(routed[row.layer], dense[row.layer]))
        for row in record.layers
    )
    audits = []
    for audit in record.audits:
        first, end = segments[audit.segment]
        mine = (rows >= first) & (rows < end)
        place = (audit.batch_index, audit.head)
        pair = (side[audit.layer][place][mine] for side in (routed, dense))
        audits.append(replace(audit, forward_error=relative_error(*pair) if bool(mine.any()) else None))
    return replace(record, layers=layers, audits=tuple(audits))


def _segments(choices: Sequence[HeadChoiceRow]) -> dict[int, tuple[int, int]]:
    """First row and end of every segment."""
    return {c.segment: (c.first_token, c.first_token + c.tokens) for c in choices}
