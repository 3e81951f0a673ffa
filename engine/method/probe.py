"""The shared probe (paper section 3.2, eq. 3): a few query rows against the keys, once for all candidates.

Which rows: ``probe_rows``.

``exact`` scores the rows against every key: log-sum-exp per KV block, hence the exact softmax mass of every
(row, KV block), plus the recent rows' column and diagonal marginals. ``pooled`` is the paper's
eq. 3, S = Q[I] pool_g(K)^T / sqrt(d), for the routing and boundary rows; the recent and certificate rows stay
exact, because builders need columns and a certificate about pooled mass would certify nothing.

Nothing of size rows x keys is held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from routesparse.engine.method.policy import LOCAL_BAND_TOKENS, LOCAL_OFFSETS
from routesparse.engine.method.pooled_keys import pool_keys
from routesparse.engine.method.probe_rows import BOUNDARY, CERTIFICATE, RECENT, ROUTING, ProbeRows
from routesparse.kernels.block_lse import block_lse
from routesparse.kernels.logits import row_queries
from routesparse.kernels.recent_marginals import recent_marginals
from routesparse.kernels.row_mass import row_mass

if TYPE_CHECKING:
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.method.inputs import AttentionInputs
    from routesparse.engine.method.segments import Segment


@dataclass(frozen=True)
class Probe:
    """What the probe saw. P probe rows, N KV blocks, K keys of the segment; float32."""

    rows: ProbeRows
    lse: torch.Tensor  # [B, H, P], natural log, scale and sink included
    block_mass: torch.Tensor  # [B, H, P, N], softmax mass per KV block
    sink_mass: torch.Tensor  # [B, H, P], mass of the always-kept attention sink (0 without)
    entropy: torch.Tensor  # [B, H, P], nats over KV blocks
    local: torch.Tensor  # [B, H, P], mass of the last LOCAL_BAND_TOKENS
    spread: torch.Tensor  # [B, H, P, octaves], mass by octave of distance in KV blocks; 0: the first block
    column_mass: torch.Tensor  # [B, H, K] summed over the recent rows, offsets >= LOCAL_OFFSETS
    band_mass: torch.Tensor  # [B, H, N] by block distance: what a band brings to a query block
    finite: torch.Tensor  # bool scalar: no NaN or Inf was met in the layer's queries or keys
    pooled: bool = False  # the routing and boundary rows know whole blocks only (eq. 3)

    @property
    def recent_block_mass(self) -> torch.Tensor:
        """[B, H, recent rows, N]."""
        return self.block_mass[:, :, self.rows.slice_of(RECENT)]


def run_probe(inputs: AttentionInputs, segment: Segment, rows: ProbeRows, config: RouterConfig) -> Probe:
    """Probe one segment of one layer (step 1 of the paper's table). ``Probe.finite`` says whether to trust it."""
    pooled = config.probe == "pooled"
    log_sums = (
        _pooled_block_lse(inputs, segment, rows) if pooled else _exact_block_lse(inputs, segment, rows.rows)
    )
    found = row_mass(
        log_sums,
        inputs.sinks,
        rows.rows + segment.position,
        inputs.first_keys(),
        segment.block_k,
        LOCAL_BAND_TOKENS,
    )
    columns, bands = recent_marginals(
        inputs.q,
        inputs.k,
        found.lse[:, :, rows.slice_of(RECENT)],
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
    return Probe(
        rows=rows,
        lse=found.lse,
        block_mass=log_sums,  # row_mass has put the masses in their place
        sink_mass=found.sink_mass,
        entropy=found.entropy,
        local=found.local,
        spread=found.spread,
        column_mass=columns,
        band_mass=bands,
        finite=found.finite,
        pooled=pooled,
    )


def _exact_block_lse(inputs: AttentionInputs, segment: Segment, rows: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of each (row, KV block) over causally visible keys: [B, H, P, N] float32, -inf where none."""
    return block_lse(
        inputs.q,
        inputs.k,
        rows + segment.position,
        None if inputs.key_start is None else inputs.first_keys(),
        shift=segment.position - segment.first,
        keys=segment.keys,
        block_k=segment.block_k,
        scale=inputs.scale,
        softcap=inputs.softcap,
        table=inputs.table,
    )


def _pooled_block_lse(inputs: AttentionInputs, segment: Segment, rows: ProbeRows) -> torch.Tensor:
    """Eq. 3 for the routing and boundary rows, exact for the recent and certificate rows: [B, H, P, N]."""
    places = torch.arange(rows.rows.shape[-1], device=rows.rows.device)
    exact_part, pooled_part = (
        torch.cat([places[rows.slice_of(kind)] for kind in kinds])
        for kinds in ((RECENT, CERTIFICATE), (ROUTING, BOUNDARY))
    )
    pooled_rows = rows.rows[..., pooled_part]
    queries = row_queries(inputs.q, pooled_rows + segment.first).float()
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
