"""The full audit's second half: how far the routed forward pass has drifted from the dense one.

The audit of a unit compares with dense attention on the *run's own* queries, keys and values: the error made there.
This compares with the dense *forward pass*, errors made upstream included: both passes keep the attention outputs of
the same sampled rows, and E = ||O - O_dense||_F / ||O_dense||_F per layer, head and segment. The next token: answer.py.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from routesparse.engine.rows import RunRecord
from routesparse.engine.runtime.watching import Call, Watcher

SAMPLED_ROWS = 512
LAST_ROWS = 64  # always in the sample: a prompt usually ends with its question


class KeptRows(Watcher):
    """Keeps these rows of each layer's attention output: float32 [B, H, P, D] by layer."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows
        self.outputs: dict[int, torch.Tensor] = {}

    def start(self, name: str, prompt: torch.Tensor | None) -> bool:
        return True

    def heard(self, call: Call) -> None:
        self.outputs[call.layer] = call.out[:, :, self.rows.to(call.out.device)].float().cpu()

    def finish(self) -> None:
        pass


def sample_rows(tokens: int, seed: int) -> torch.Tensor:
    """int64 [P], ascending: LAST_ROWS at the end and SAMPLED_ROWS drawn from the rest (all of a short prompt)."""
    split = max(0, tokens - LAST_ROWS)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randperm(split, generator=generator)[:SAMPLED_ROWS].sort().values
    return torch.cat([drawn, torch.arange(split, tokens)])


def relative_error(out: torch.Tensor, dense: torch.Tensor) -> float:
    """||out - dense||_F / ||dense||_F."""
    return float((out - dense).double().norm() / dense.double().norm().clamp_min(1e-30))


def with_forward_errors(record: RunRecord, routed: KeptRows, dense: KeptRows) -> RunRecord:
    """The record with ``forward_error`` in its layers and audits; both passes kept the same rows."""
    segments = {c.segment: (c.first_token, c.first_token + c.tokens) for c in record.choices}
    layers = tuple(
        replace(row, forward_error=relative_error(routed.outputs[row.layer], dense.outputs[row.layer]))
        for row in record.layers
    )
    audits = []
    for audit in record.audits:
        first, end = segments[audit.segment]
        mine = (routed.rows >= first) & (routed.rows < end)
        place = (audit.batch_index, audit.head)
        pair = (side.outputs[audit.layer][place][mine] for side in (routed, dense))
        audits.append(replace(audit, forward_error=relative_error(*pair) if bool(mine.any()) else None))
    return replace(record, layers=layers, audits=tuple(audits))
