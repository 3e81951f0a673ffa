"""The shared probe (paper section 3.2, eq. 3): a few query rows against the keys, once for all candidates.

Which rows: ``probe_rows``.

``exact`` scores the rows against every key, streamed in chunks: log-sum-exp per KV block, hence the exact softmax
mass of every (row, KV block), plus the recent rows' column and diagonal marginals. ``pooled`` is the paper's
eq. 3, S = Q[I] pool_g(K)^T / sqrt(d), for the routing and boundary rows; the recent and certificate rows stay
exact, because builders need columns and a certificate about pooled mass would certify nothing.

Nothing of size rows x keys is held for more than one chunk of keys of one KV head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.config import RouterConfig
from routesparse.engine.device import device_path
from routesparse.engine.errors import NumericsError
from routesparse.engine.method.bands import band_mass
from routesparse.engine.method.inputs import AttentionInputs, capped_logits
from routesparse.engine.method.probe_rows import BOUNDARY, CERTIFICATE, RECENT, ROUTING, ProbeRows
from routesparse.engine.method.segments import Segment
from routesparse.kernels import lse_triton, probe_triton

# Offsets below this are left out of the column marginals: every plan reads the diagonal blocks, so a column ranked for
# its mass there would buy nothing.
LOCAL_OFFSETS = 128
LOCAL_BAND_TOKENS = 512
KEY_CHUNK = 1_024  # keys scored at a time: a KV head's chunk of scores stays in the CPU's cache
RECENT_KEY_CHUNK = 4_096


@dataclass(frozen=True)
class RowSums:
    """What descriptors.py reads off every probe row, float32."""

    entropy: torch.Tensor  # [B, H, P], nats over KV blocks
    local: torch.Tensor  # [B, H, P], mass of the last LOCAL_BAND_TOKENS
    spread: torch.Tensor  # [B, H, P, octaves], mass by octave of distance in KV blocks; 0: the first block


@dataclass(frozen=True)
class Probe:
    """What the probe saw. P probe rows, N KV blocks, K keys of the segment."""

    rows: ProbeRows
    lse: torch.Tensor  # [B, H, P] float32, natural log, scale and sink included
    block_mass: torch.Tensor  # [B, H, P, N] float32, softmax mass per KV block
    sink_mass: torch.Tensor  # [B, H, P] float32, mass of the always-kept attention sink (0 without)
    column_mass: torch.Tensor  # [B, H, K] summed over the recent rows, offsets >= LOCAL_OFFSETS
    band_mass: torch.Tensor  # [B, H, N] by block distance: what a band brings to a query block (bands.py)
    finite: torch.Tensor  # bool scalar: no NaN or Inf was met
    pooled: bool = False  # the routing and boundary rows know whole blocks only (eq. 3)
    row_sums: RowSums | None = None  # where the pass that made block_mass summed it, too


def run_probe(inputs: AttentionInputs, segment: Segment, rows: ProbeRows, config: RouterConfig) -> Probe:
    """Probe one segment of one layer (step 1 of the paper's table).

    Errors: NumericsError where a log-sum-exp is NaN or +inf (NaN or Inf in the layer's queries or keys); on a GPU,
    which is not waited for, ``Probe.finite`` says so.
    """
    if config.probe == "exact":
        block_lse = _exact_block_lse(inputs, segment, rows.rows)
    else:
        block_lse = _pooled_block_lse(inputs, segment, rows)
    positions = rows.rows + segment.position
    if device_path.fused(inputs.q):
        lse, sink_mass, *sums, finite = probe_triton.row_mass(
            block_lse, inputs.sinks, positions, inputs.first_keys(), segment.block_k, LOCAL_BAND_TOKENS
        )
        row_sums = RowSums(*sums)
        block_mass = block_lse
    else:
        lse, sink_mass, block_mass = _row_mass(block_lse, inputs.sinks)
        row_sums = None
        padding = positions < inputs.first_keys().view(-1, 1, 1)
        finite = (torch.isfinite(lse) | padding).all()
    if not finite.is_cuda and not bool(finite):
        raise NumericsError("NaN or Inf in the attention scores")
    if device_path.fused(inputs.q):
        recent = rows.slice_of(RECENT)
        columns, bands = probe_triton.recent_marginals(
            inputs.q,
            inputs.k,
            lse[:, :, recent],
            inputs.first_keys(),
            first_row=segment.first + segment.rows - rows.sizes[RECENT],
            keys=segment.keys,
            local_offsets=LOCAL_OFFSETS,
            phase=segment.phase,
            block_q=segment.block_q,
            block_k=segment.block_k,
            scale=inputs.scale,
            softcap=inputs.softcap,
            table=inputs.table,
        )
    else:
        columns, diagonals = _recent_marginals(inputs, segment, rows, lse)
        bands = band_mass(diagonals, segment)
    pooled = config.probe == "pooled"
    return Probe(rows, lse, block_mass, sink_mass, columns, bands, finite, pooled, row_sums)


def _row_mass(
    block_lse: torch.Tensor, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(lse, sink mass) [B, H, P] and block masses [B, H, P, N] of block log-sum-exps [B, H, P, N]."""
    lse = block_lse.logsumexp(-1)
    sink_mass = torch.zeros_like(lse)
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1)
        lse = torch.logaddexp(lse, sink)
        sink_mass = (sink - lse).exp()
    return lse, sink_mass, (block_lse - lse.unsqueeze(-1)).exp_().nan_to_num_(0.0)


def row_queries(inputs: AttentionInputs, segment: Segment, rows: torch.Tensor) -> torch.Tensor:
    """Queries of the given rows: rows int64 [B, H, P] -> [B, H, P, D]."""
    index = (rows + segment.first).unsqueeze(-1).expand(-1, -1, -1, inputs.q.shape[-1])
    return inputs.q.gather(2, index)


def column_mass_of_rows(
    inputs: AttentionInputs, segment: Segment, probe: Probe, columns: torch.Tensor
) -> torch.Tensor:
    """Softmax mass of single columns: columns int64 [B, H, V] -> [B, H, P, V], 0 beyond causality.

    Exact, but for the routing and boundary rows of a pooled probe: they know blocks, so a column has its block's
    mean (an exact logit over a pooled log-sum-exp would overrate it many times).
    """
    batch, heads, width = columns.shape
    queries = row_queries(inputs, segment, probe.rows.rows)
    out = queries.new_empty(batch, heads, probe.rows.rows.shape[-1], width, dtype=torch.float32)
    first_keys = inputs.first_keys()
    for b in range(batch):
        for h in range(heads):
            keys = inputs.k[b, h // inputs.groups].index_select(0, columns[b, h])
            logits = capped_logits(queries[b, h], keys, inputs.scale, inputs.softcap)
            logits -= probe.lse[b, h].unsqueeze(-1)
            positions = probe.rows.rows[b, h].unsqueeze(-1) + segment.position
            column = columns[b, h].unsqueeze(0)
            visible = (column <= positions) & (column >= first_keys[b])
            out[b, h] = logits.exp_().masked_fill_(~visible, 0.0)
    if probe.pooled:
        block = (columns // segment.block_k).unsqueeze(2).expand(-1, -1, out.shape[2], -1)
        mean = probe.block_mass.gather(-1, block) / segment.block_k
        for kind in (ROUTING, BOUNDARY):
            part = probe.rows.slice_of(kind)
            out[:, :, part] = mean[:, :, part].where(out[:, :, part] > 0, 0.0)
    return out


def _key_chunks(keys: int, block_k: int, size: int) -> Iterator[tuple[int, int]]:
    step = max(block_k, size // block_k * block_k)
    for start in range(0, keys, step):
        yield start, min(keys, start + step)


def _exact_block_lse(inputs: AttentionInputs, segment: Segment, rows: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of each (row, KV block) over causally visible keys: [B, H, P, N] float32, -inf where none."""
    positions = rows + segment.position
    if device_path.fused(inputs.q):
        return lse_triton.block_lse(
            inputs.q,
            inputs.k,
            positions,
            None if inputs.key_start is None else inputs.first_keys(),
            shift=segment.position - segment.first,
            keys=segment.keys,
            block_k=segment.block_k,
            scale=inputs.scale,
            softcap=inputs.softcap,
            table=inputs.table,
        )
    batch, heads, count = rows.shape
    queries = row_queries(inputs, segment, rows)
    out = queries.new_full((batch, heads, count, segment.key_blocks), -torch.inf, dtype=torch.float32)
    for b in range(batch):
        first_key = int(inputs.first_keys()[b])
        for kv_head in range(inputs.k.shape[1]):
            group = slice(kv_head * inputs.groups, (kv_head + 1) * inputs.groups)
            # In order of position the rows that see a chunk of keys are the last ones.
            position, order = positions[b, group].flatten().sort()
            query = queries[b, group].flatten(0, 1)[order]
            lse = out.new_full((len(order), segment.key_blocks), -torch.inf)
            for start, end in _key_chunks(segment.keys, segment.block_k, KEY_CHUNK):
                seeing = int(torch.searchsorted(position, start))
                keys = inputs.k[b, kv_head, start:end]
                logits = capped_logits(query[seeing:], keys, inputs.scale, inputs.softcap)
                values = _block_lse(
                    logits, position[seeing:].unsqueeze(-1), start, segment.block_k, first_key
                )
                lse[seeing:, start // segment.block_k :][:, : values.shape[1]] = values
            out[b, group] = (
                torch.empty_like(lse).index_copy_(0, order, lse).view(-1, count, segment.key_blocks)
            )
    return out


def _block_lse(
    logits: torch.Tensor, position: torch.Tensor, start: int, block: int, first_key: int
) -> torch.Tensor:
    """logits [P, K] of keys from ``start``, overwritten; position [P, 1] >= start -> [P, ceil(K / block)].

    Keys after the row's position and before first_key are left out. A row's shift is its largest visible logit in
    the chunk: a block 87 nats below it underflows to no mass, which is what it has.
    """
    end = start + logits.shape[1]
    key = torch.arange(start, end, device=logits.device)
    crossing = int(torch.searchsorted(position.squeeze(-1), end - 1))
    logits[:crossing].masked_fill_(key > position[:crossing], -torch.inf)
    if start < first_key:
        logits.masked_fill_(key < first_key, -torch.inf)
    if -logits.shape[1] % block:
        logits = F.pad(logits, (0, -logits.shape[1] % block), value=-torch.inf)
    shift = logits.amax(-1, keepdim=True)
    weights = logits.sub_(shift.nan_to_num(neginf=0.0)).exp_()
    return weights.view(len(logits), -1, block).sum(-1).log_().add_(shift)


def _pooled_block_lse(inputs: AttentionInputs, segment: Segment, rows: ProbeRows) -> torch.Tensor:
    """Eq. 3 for the routing and boundary rows, exact for the recent and certificate rows: [B, H, P, N]."""
    places = torch.arange(rows.rows.shape[-1], device=rows.rows.device)
    exact_part, pooled_part = (
        torch.cat([places[rows.slice_of(kind)] for kind in kinds])
        for kinds in ((RECENT, CERTIFICATE), (ROUTING, BOUNDARY))
    )
    pooled_rows = rows.rows[..., pooled_part]
    queries = row_queries(inputs, segment, pooled_rows).float()
    keys = pool_keys(inputs, segment).repeat_interleave(inputs.groups, dim=1)
    logits = queries @ keys.transpose(-1, -2) * inputs.scale
    if inputs.softcap:
        logits = inputs.softcap * torch.tanh(logits / inputs.softcap)
    edges = torch.arange(segment.key_blocks, device=logits.device) * segment.block_k
    low = torch.maximum(edges, inputs.first_keys().view(-1, 1)).view(len(logits), 1, 1, -1)
    visible = (pooled_rows.unsqueeze(-1) + segment.position + 1 - low).clamp(0, segment.block_k)
    visible = torch.minimum(visible, (edges + segment.block_k - low).clamp_min(0))
    logits = logits + visible.float().log()
    out = logits.new_empty(*rows.rows.shape, segment.key_blocks)
    out[..., pooled_part, :] = logits
    out[..., exact_part, :] = _exact_block_lse(inputs, segment, rows.rows[..., exact_part])
    return out


def pool_keys(inputs: AttentionInputs, segment: Segment) -> torch.Tensor:
    """Keys mean-pooled over KV blocks, real keys only: [B, Hkv, N, D] float32."""
    if device_path.fused(inputs.q):
        low = None if inputs.key_start is None else inputs.first_keys()
        return probe_triton.block_means(
            inputs.k, 0, segment.keys, segment.block_k, low, inputs.table, place=1
        )
    keys = inputs.k[:, :, : segment.keys].float()
    first_keys = inputs.first_keys()
    if inputs.key_start is not None:
        real = torch.arange(segment.keys, device=keys.device) >= first_keys.view(-1, 1)
        keys = keys * real.view(len(keys), 1, -1, 1)
    padded = F.pad(keys, (0, 0, 0, -segment.keys % segment.block_k))
    sums = padded.unflatten(2, (segment.key_blocks, segment.block_k)).sum(3)
    edges = torch.arange(segment.key_blocks, device=keys.device) * segment.block_k
    ends = (edges + segment.block_k).clamp_max(segment.keys)
    counts = (ends - torch.maximum(edges, first_keys.view(-1, 1))).clamp_min(1)
    return sums / counts.view(len(keys), 1, -1, 1)


def _recent_marginals(
    inputs: AttentionInputs, segment: Segment, rows: ProbeRows, lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column sums (offsets >= LOCAL_OFFSETS) and diagonal sums of the recent rows' softmax, each [B, H, K]."""
    recent = rows.slice_of(RECENT)
    queries = row_queries(inputs, segment, rows.rows[..., recent])
    batch, heads, count, _ = queries.shape
    first_keys = inputs.first_keys()
    columns = queries.new_zeros(batch, heads, segment.keys, dtype=torch.float32)
    diagonals = torch.zeros_like(columns)
    first = segment.keys - count
    position = torch.arange(first, segment.keys, device=queries.device).view(-1, 1)
    for b in range(batch):
        for h in range(heads):
            for start, end in _key_chunks(segment.keys, segment.block_k, RECENT_KEY_CHUNK):
                keys = inputs.k[b, h // inputs.groups, start:end]
                mass = capped_logits(queries[b, h], keys, inputs.scale, inputs.softcap)
                mass.sub_(lse[b, h, recent].unsqueeze(-1)).exp_()
                key = torch.arange(start, end, device=mass.device)
                if end > first or start < int(first_keys[b]):
                    mass.masked_fill_((key > position) | (key < first_keys[b]), 0.0)
                _add_diagonals(diagonals[b, h], mass, first, start)
                if end > first - LOCAL_OFFSETS:
                    mass.masked_fill_(key > position - LOCAL_OFFSETS, 0.0)
                columns[b, h, start:end] = mass.sum(0)
    return columns, diagonals


def _add_diagonals(total: torch.Tensor, mass: torch.Tensor, first_position: int, start: int) -> None:
    """Add mass [P, K] of consecutive rows from first_position and keys from ``start`` to total by offset.

    Shearing row r by P - 1 - r places lines up the diagonals in columns; column c then holds the offset
    first_position + P - 1 - start - c.
    """
    count, width = mass.shape
    sheared = F.pad(mass.flip(0), (0, count)).flatten()[: count * (width + count - 1)]
    sums = sheared.view(count, width + count - 1).sum(0)
    top = first_position + count - 1 - start
    low = top - (width + count - 2)
    line = sums.flip(0)
    total[max(0, low) : top + 1] += line[max(0, -low) :]
