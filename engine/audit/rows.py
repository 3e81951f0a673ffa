"""Dense audit (paper section 3.5 and eq. E_rel): exact mass and output error of the chosen candidates.

Rows are uniform draws from the body, by a seed of their own, independently of every other step; ``None`` rows audits
the whole body. Everything is float32 on the run's own queries, keys and values and on the candidate's own level map,
before the tail override. Dense units lose nothing and are not audited.

With 512 rows the audited mean has a standard error of about .003, which does not matter beside the .03 by which the
in-prompt bound falls short.

What the audit rebuilds says nothing about the kernel that ran, so the same rows of the layer's executed output are
compared with it: a difference beyond rounding (``rows.deviates``) is a fault of plan or kernel.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.audit.passages import Passages, plan_reads
from routesparse.engine.config import AuditDepth
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.certificate import paper_error_bound, row_lower_bound, tight_error_bound
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Audited, AuditRow, BlockReadsRow, UnitKey, WorstRow
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.logits import capped_logits

AUDIT_ROWS = 512
ROW_CHUNK = 64
CHUNK_SCORES = 1 << 22  # rows x keys scored at once on a GPU, where short chunks would leave it idle
ROUNDING = 1e-5  # allowance of the bound check, relative to the largest value norm (float32 sums)


@dataclass(frozen=True)
class Executed:
    """What ran: the layer's output [B, H, n_q, D], and which query blocks of the segment execution made dense for
    another reason than the choice (the tail, or a list that overflowed), bool [B, H, M]."""

    out: torch.Tensor
    dense_rows: torch.Tensor


class Auditor(ABC):
    """Looks at every decision of a session right after its layer ran; the time is not part of the prefill's."""

    @property
    def depth(self) -> AuditDepth:
        return "rows"

    @abstractmethod
    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        """What the record keeps of one layer and segment; inputs and output are the layer's own."""


@dataclass(frozen=True)
class RowAuditor(Auditor):
    """Audits ``rows`` random body rows of every sparse unit; None: all of them."""

    rows: int | None = AUDIT_ROWS

    @property
    def depth(self) -> AuditDepth:
        return "full" if self.rows is None else "rows"

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        passages: dict[tuple[int, int], Passages] = {}
        units = audit_units(
            inputs,
            decision,
            self.rows,
            settings.seed,
            settings.config.row_level,
            executed=executed,
            passages=passages,
        )
        worst: list[WorstRow] = []
        reads: list[BlockReadsRow] = []
        for (b, h), found in passages.items():
            place = UnitKey("", b, decision.layer, h, decision.segment.index)
            worst += found.worst_rows(place)
            row = found.block_reads(place, plan_reads(decision, b, h))
            reads += [] if row is None else [row]
        return Audited(tuple(units), tuple(worst), tuple(reads))


def audit_units(
    inputs: AttentionInputs,
    decision: Decision,
    rows: int | None,
    seed: int,
    row_level: float | None = None,
    executed: Executed | None = None,
    passages: dict[tuple[int, int], Passages] | None = None,
) -> list[AuditRow]:
    """One AuditRow per sparse unit of the decision (run_id left empty for the trace to fill in).

    row_level: of the row statement, whose share of audited rows above it is then measured. executed: compared with
    the rebuilt rows. passages: filled by (batch, head) with what the rows say about KV blocks.
    """
    segment = decision.segment
    generator = torch.Generator().manual_seed(stable_seed("audit", seed, decision.layer, segment.index))
    audits = []
    for unit in range(decision.batch * decision.heads):
        b, h = divmod(unit, decision.heads)
        low = min(max(0, int(inputs.first_keys()[b]) - segment.position), segment.body)
        if low == segment.body or not decision.sparse[unit]:
            continue
        if rows is None or rows >= segment.body - low:
            chosen = torch.arange(low, segment.body)
        else:
            chosen = torch.randint(low, segment.body, (rows,), generator=generator).sort().values
        seen = None
        if passages is not None:
            seen = passages[b, h] = Passages(segment.position, segment.block_k, segment.key_blocks)
        measured = measure_rows(inputs, decision, b, h, chosen, executed, seen)
        mass, error, norm, paper, tight = (
            measured[name] for name in ("mass", "error", "norm", "paper", "tight")
        )
        lower = decision.certified.lower_mass[unit]
        row_covered = None
        if row_level is not None:
            certificate_rows = decision.certificate_mass[unit, :, int(decision.choice[b, h])]
            row_covered = float((mass >= row_lower_bound(certificate_rows, row_level)).mean())
        allowance = ROUNDING * measured["v_max"]
        audits.append(
            AuditRow(
                *("", b, decision.layer, h, segment.index),
                rows=len(chosen),
                mass=float(mass.mean()),
                min_mass=float(mass.min()),
                lower_mass=float(lower),
                covered=bool(mass.mean() >= lower),
                mean_error=float(np.sqrt((error**2).sum() / max((norm**2).sum(), 1e-30))),
                max_error=float((error / np.maximum(norm, 1e-12)).max()),
                bound_paper=float((paper / np.maximum(norm, 1e-12)).max()),
                bound_tight=float((tight / np.maximum(norm, 1e-12)).max()),
                # NaN is no bound that holds.
                violations=int((~((error <= paper + allowance) & (error <= tight + allowance))).sum()),
                row_covered=row_covered,
                executed_error=float(measured["deviation"].max()) if executed is not None else None,
            )
        )
    return audits


def measure_rows(
    inputs: AttentionInputs,
    decision: Decision,
    b: int,
    h: int,
    rows: torch.Tensor,
    executed: Executed | None = None,
    passages: Passages | None = None,
) -> dict[str, np.ndarray]:
    """Exact per-row quantities of one unit's chosen candidate; rows int64 [P], ascending. passages: takes them too.

    mass, error ||o - o~||, norm ||o||, paper and tight bounds, each float64 [P]; v_max a scalar array. With
    ``executed`` also deviation (``AuditRow.executed_error`` of each row; Inf where the output is NaN).
    """
    segment = decision.segment
    keys = inputs.k[b, h // inputs.groups, : segment.keys].float()
    values = inputs.v[b, h // inputs.groups, : segment.keys].float()
    value_norm = values.norm(dim=-1)
    v_max = value_norm.max()
    names = ("mass", "error", "norm", "sparse_norm", *(("deviation",) if executed is not None else ()))
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    size = max(ROW_CHUNK, CHUNK_SCORES // segment.keys) if keys.is_cuda else ROW_CHUNK
    for chunk in rows.to(keys.device).split(size):
        weights, sink_weight = row_weights(inputs, segment, b, h, chunk)
        end = weights.shape[1]
        kept = weights * kept_keys(decision, b, h, chunk, end)
        mass = (kept.sum(-1) + sink_weight).clamp(max=1.0)
        exact = weights @ values[:end]
        sparse = (kept @ values[:end]) / mass.clamp_min(1e-30).unsqueeze(-1)
        error, norm = (exact - sparse).norm(dim=-1), exact.norm(dim=-1)
        parts["mass"].append(mass)
        parts["error"].append(error)
        parts["norm"].append(norm)
        if passages is not None:
            passages.add(chunk, weights, kept, mass, error / norm.clamp_min(1e-12))
        parts["sparse_norm"].append(sparse.norm(dim=-1))
        if executed is not None:
            dense = executed.dense_rows[b, h].index_select(0, chunk // segment.block_q)
            read = torch.where(
                dense, weights @ value_norm[:end], (kept @ value_norm[:end]) / mass.clamp_min(1e-30)
            )
            rebuilt = torch.where(dense.unsqueeze(-1), exact, sparse)
            ran = executed.out[b, h].index_select(0, chunk + segment.first).float()
            deviation = (ran - rebuilt).norm(dim=-1) / read.clamp_min(1e-30)
            parts["deviation"].append(deviation.nan_to_num(nan=torch.inf))
    measured = {name: torch.cat(chunks).double().cpu().numpy() for name, chunks in parts.items()}
    top = float(v_max)
    measured["paper"] = paper_error_bound(measured["mass"], top)
    measured["tight"] = tight_error_bound(measured["mass"], measured.pop("sparse_norm"), top)
    measured["v_max"] = np.array(top)
    return measured


def row_weights(
    inputs: AttentionInputs, segment: Segment, b: int, h: int, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact softmax weights float32 [P, keys up to the last row] of rows int64 [P], and what lies on a sink, [P]."""
    end = int(rows.max()) + segment.position + 1
    keys = inputs.k[b, h // inputs.groups, :end].float()
    query = inputs.q[b, h].index_select(0, rows + segment.first).float()
    logits = capped_logits(query, keys, inputs.scale, inputs.softcap)
    key = torch.arange(end, device=keys.device)
    hidden = (key > (rows + segment.position).view(-1, 1)) | (key < int(inputs.first_keys()[b]))
    logits.masked_fill_(hidden, -torch.inf)
    if inputs.sinks is not None:
        logits = torch.cat([logits, inputs.sinks[h].float().expand(len(rows), 1)], dim=1)
    weights = logits.softmax(-1)
    return weights[:, :end], weights[:, end:].sum(-1)


def kept_keys(decision: Decision, b: int, h: int, rows: torch.Tensor, keys: int) -> torch.Tensor:
    """bool [P, keys]: the keys that the unit's chosen candidate reads in each row, before the tail override."""
    segment = decision.segment
    candidate = decision.candidates[int(decision.choice[b, h])]
    index = decision.indices[candidate.pattern]
    levels = index.levels.expand(decision.batch, decision.heads, -1, -1)[b, h]
    blocks = levels.index_select(0, rows // segment.block_q) <= candidate.level
    kept = blocks.repeat_interleave(segment.block_k, dim=-1)[:, :keys].clone()
    if index.columns is not None:
        columns = index.columns[b, h, : index.column_counts[candidate.level]]
        kept[:, columns[columns < keys]] = True
    return kept
