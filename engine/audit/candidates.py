"""Dense audit of every candidate: what calibration learns from (paper section 3.5).

The chosen candidate's audit (``rows.py``) says what one run lost. Fitting alpha, the error predictor and the
conformal residual needs the same truth for all candidates of a unit, on random body rows that no other step has
read: the exact retained mass (the plan's own, before the tail override) and the relative output error E_rel.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from routesparse.engine.audit.rows import row_weights
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.probe import run_probe
from routesparse.engine.method.records import Context, ProbeRows
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.seeds import stable_seed

ROWS_AT_ONCE = 4_096


def draw_body_rows(inputs: AttentionInputs, decision: Decision, count: int | None, seed: int) -> torch.Tensor:
    """int64 [B, H, P]: independent uniform body rows of each unit, or all of them in order where count is None.

    All of them only without left padding, where every prompt of the batch has the same body.
    """
    segment = decision.segment
    shape = (decision.batch, decision.heads)
    if count is None:
        rows = torch.arange(segment.body).expand(*shape, -1)
    else:
        generator = torch.Generator().manual_seed(
            stable_seed("candidates", seed, decision.layer, segment.index)
        )
        low = (inputs.first_keys().cpu() - segment.position).clamp(0, segment.body - 1).view(-1, 1, 1)
        draws = torch.rand(*shape, count, generator=generator, dtype=torch.float64)
        rows = low + (draws * (segment.body - low)).long()
    return rows.to(inputs.q.device)


def candidate_masses(
    inputs: AttentionInputs, decision: Decision, rows: torch.Tensor, config: RouterConfig
) -> torch.Tensor:
    """Exact retained mass of every candidate on the given rows: rows int64 [B, H, P] -> float32 [B, H, P, C]."""
    exact = replace(config, probe="exact")
    parts = []
    for part in rows.split(ROWS_AT_ONCE, dim=-1):
        # The segment's last row comes along: a probe's rows see every key.
        last = torch.full_like(part[..., :1], decision.segment.rows - 1)
        only = ProbeRows(torch.cat([last, part], dim=-1), (1, part.shape[-1], 0, 0))
        context = Context(inputs, decision.segment, decision.candidates)
        context = replace(context, probed=run_probe(context, only, exact))
        masses = candidate_mass(context, decision.indices)
        parts.append(masses.row_mass[:, :, 1:])
    return torch.cat(parts, dim=2)


def candidate_errors(inputs: AttentionInputs, decision: Decision, rows: torch.Tensor) -> torch.Tensor:
    """E_rel = ||O - O~||_F / ||O||_F of every candidate over the given rows: int64 [B, H, P] -> float64 [B, H, C].

    A row's output is summed once per KV block; a candidate's is the sum over the blocks that it keeps.
    """
    errors = torch.zeros(*rows.shape[:2], len(decision.candidates), dtype=torch.float64)
    for b in range(decision.batch):
        for h in range(decision.heads):
            errors[b, h] = _unit_errors(inputs, decision, b, h, rows[b, h])
    return errors


def _unit_errors(
    inputs: AttentionInputs, decision: Decision, b: int, h: int, rows: torch.Tensor
) -> torch.Tensor:
    segment, block = decision.segment, decision.segment.block_k
    values = inputs.v[b, h // inputs.groups, : segment.keys].float()
    weights, on_sink = row_weights(inputs, segment, b, h, rows)
    weights = F.pad(weights, (0, segment.keys - weights.shape[1]))
    padding = -segment.keys % block
    blocked = F.pad(weights, (0, padding)).view(len(rows), -1, block).transpose(0, 1)
    outputs = (blocked @ F.pad(values, (0, 0, 0, padding)).view(-1, block, values.shape[-1])).transpose(0, 1)
    masses = blocked.sum(-1).T  # [P, N]
    exact = outputs.sum(1)
    found = torch.zeros(len(decision.candidates), dtype=torch.float64)
    for pattern, index in decision.indices.items():
        members = [c for c in decision.candidates if c.pattern == pattern]
        levels = index.levels.expand(decision.batch, decision.heads, -1, -1)[b, h][rows // segment.block_q]
        kept = torch.stack([(levels <= c.level).float() for c in members], 1)  # [P, members, N]
        sparse = kept @ outputs
        mass = (kept @ masses.unsqueeze(-1)).squeeze(-1) + on_sink.unsqueeze(-1)
        if index.columns is not None:
            for place, candidate in enumerate(members):
                columns = index.columns[b, h, : index.column_counts[candidate.level]]
                single = weights[:, columns] * (levels[:, columns // block] > candidate.level)
                sparse[:, place] += single @ values[columns]
                mass[:, place] += single.sum(-1)
        lost = sparse / mass.clamp_min(1e-30).unsqueeze(-1) - exact.unsqueeze(1)
        relative = lost.double().flatten(2).norm(dim=(0, 2)) / exact.double().norm().clamp_min(1e-30)
        found[[c.index for c in members]] = relative.cpu()
    return found
