"""Token to token: for rows that somebody chose, the keys with most attention in every head, and which were read.

A row is scored exactly, as the audit scores its own; "read" is what ran: the chosen plan's keys, and every key where
the head was dense or execution made the row's block dense (the tail).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from routesparse.engine.audit.rows import Auditor, Executed, RowAuditor, kept_keys, row_weights
from routesparse.engine.config import AuditDepth
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.rows import Audited, TracedRow

MOST_KEYS, MOST_DROPPED = 24, 8  # of a row: the strongest keys, and the strongest that were dropped


@dataclass(frozen=True)
class Tracer(Auditor):
    """Traces the rows at ``positions`` (key-axis, tokens), beside an audit where one is asked for."""

    positions: tuple[int, ...]
    auditor: RowAuditor | None = None

    @property
    def depth(self) -> AuditDepth:
        return "none" if self.auditor is None else self.auditor.depth

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        found = (
            Audited() if self.auditor is None else self.auditor.audit(inputs, decision, settings, executed)
        )
        segment = decision.segment
        rows = [p - segment.position for p in self.positions if 0 <= p - segment.position < segment.rows]
        traced = [
            _traced(inputs, decision, b, h, row, bool(executed.dense_rows[b, h, row // segment.block_q]))
            for row in rows
            for b in range(decision.batch)
            for h in range(decision.heads)
        ]
        return replace(found, traced_rows=tuple(traced))


def _traced(
    inputs: AttentionInputs, decision: Decision, b: int, h: int, row: int, is_dense: bool
) -> TracedRow:
    segment = decision.segment
    chosen = torch.tensor([row], device=inputs.q.device)
    weights, sink = (part[0] for part in row_weights(inputs, segment, b, h, chosen))
    kept = torch.ones_like(weights, dtype=torch.bool)
    if not (is_dense or decision.candidates[int(decision.choice[b, h])].pattern == "dense"):
        kept = kept_keys(decision, b, h, chosen, len(weights))[0]
    dropped = torch.where(kept, 0.0, weights)
    strongest = weights.topk(min(MOST_KEYS, len(weights))).indices
    lost = dropped.topk(min(MOST_DROPPED, len(weights))).indices
    keys = torch.cat([strongest, lost[dropped[lost] > 0]]).unique()
    keys = keys[weights[keys].argsort(descending=True)]
    return TracedRow(
        *("", b, decision.layer, h, segment.index),
        position=row + segment.position,
        mass=float((weights * kept).sum() + sink),
        keys=keys.cpu().numpy().astype("<i4").tobytes(),
        weights=weights[keys].cpu().numpy().astype("<f4").tobytes(),
        read=kept[keys].cpu().numpy().astype("u1").tobytes(),
    )
