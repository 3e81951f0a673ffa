"""The shared probe (paper section 3.2, eq. 3): a few query rows against the keys, once for all candidates.

Four groups of rows with separate jobs:

- recent: the last rows of the segment, all of them (a census). Builders rank with them.
- routing: one uniform draw in each of R equal strata of the body. They score candidates; builders never read them.
- certificate: C independent uniform draws from the body. Only the certificate reads them.
- boundary: rows beside the segment's edges, for the disagreement u and for diagnosis.

Random rows follow from the configuration's seed and a salt, so that an unlucky draw does not recur on every prompt.
The command line takes the prompt's hash as salt. ``route()`` takes a fresh one per block, since a hash of ids that
lie on a GPU would have to be waited for; ``trace.salt`` says which.

``exact`` scores the rows against every key: log-sum-exp per KV block, hence the exact softmax mass of every
(row, KV block), plus the recent rows' column and diagonal marginals. ``pooled`` is the paper's
eq. 3, S = Q[I] pool_g(K)^T / sqrt(d), for the routing and boundary rows; the recent and certificate rows stay
exact, because builders need columns and a certificate about pooled mass would certify nothing.

Nothing of size rows x keys is held.
"""

from __future__ import annotations

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.constants import to_device
from routesparse.engine.method.policy import LOCAL_BAND_TOKENS, LOCAL_OFFSETS
from routesparse.engine.method.records import (
    BOUNDARY,
    CERTIFICATE,
    RECENT,
    ROUTING,
    Context,
    Descriptors,
    Probe,
    ProbeRows,
)
from routesparse.engine.method.segments import Segment
from routesparse.kernels import descriptors, probe_rows
from routesparse.kernels.block_lse import block_lse
from routesparse.kernels.block_means import block_means
from routesparse.kernels.logits import row_queries
from routesparse.kernels.recent_marginals import recent_marginals
from routesparse.kernels.row_mass import row_mass


def draw_rows(
    segment: Segment, batch: int, heads: int, config: RouterConfig, seed: int, first_keys: torch.Tensor
) -> ProbeRows:
    """Seeded rows for one layer and segment, redrawn per head, never aligned to blocks.

    seed: unique per (run, layer, segment). first_keys [B]: rows before it are padding and are never drawn.
    Certificate rows are drawn with replacement: independent, uniform on the body.
    """
    draws = to_device(draw_shares(batch, heads, config, seed), first_keys.device)
    return place_rows(segment, config, draws, first_keys)


def draw_shares(batch: int, heads: int, config: RouterConfig, seed: int) -> torch.Tensor:
    """Uniform draws in [0, 1) for the routing rows, then the certificate rows: float64 [B, H, R + C], on the host."""
    generator = torch.Generator().manual_seed(seed)
    counts = (config.routing_rows, config.certificate_rows)
    return torch.cat(
        [torch.rand(batch, heads, count, generator=generator, dtype=torch.float64) for count in counts], -1
    )


def place_rows(
    segment: Segment, config: RouterConfig, draws: torch.Tensor, first_keys: torch.Tensor
) -> ProbeRows:
    """The rows that draws [B, H, R + C] fall on, and the rows that are not drawn, on the draws' device."""
    recent_count = min(config.recent_rows, segment.rows)
    half = min(config.boundary_rows // 2, segment.body)
    sizes = (recent_count, config.routing_rows, config.certificate_rows, 2 * half)
    rows = probe_rows.place_rows(
        draws, first_keys, sizes, body=segment.body, rows=segment.rows, position=segment.position
    )
    return ProbeRows(rows, sizes)


def run_probe(context: Context, rows: ProbeRows, config: RouterConfig) -> Probe:
    """Probe one segment of one layer (step 1 of the paper's table). ``Probe.finite`` says whether to trust it."""
    inputs, segment, geometry = context.inputs, context.segment, context.geometry
    pooled = config.probe == "pooled"
    log_sums = _pooled_block_lse(context, rows) if pooled else _exact_block_lse(context, rows.rows)
    found = row_mass(
        log_sums,
        inputs.sinks,
        rows.rows + segment.position,
        geometry.first_keys,
        segment.block_k,
        LOCAL_BAND_TOKENS,
    )
    columns, bands = recent_marginals(
        inputs.logits,
        found.lse[:, :, rows.slice_of(RECENT)],
        geometry,
        first_row=segment.first + segment.rows - rows.sizes[RECENT],
        local_offsets=LOCAL_OFFSETS,
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


def _exact_block_lse(context: Context, rows: torch.Tensor) -> torch.Tensor:
    """Log-sum-exp of each (row, KV block) over causally visible keys: [B, H, P, N] float32, -inf where none."""
    segment = context.segment
    return block_lse(
        context.inputs.logits,
        rows + segment.position,
        context.padding,
        shift=segment.position - segment.first,
        keys=segment.keys,
        block_k=segment.block_k,
    )


def _pooled_block_lse(context: Context, rows: ProbeRows) -> torch.Tensor:
    """Eq. 3 for the routing and boundary rows, exact for the recent and certificate rows: [B, H, P, N]."""
    segment, made_by = context.segment, context.inputs.logits
    places = torch.arange(rows.rows.shape[-1], device=rows.rows.device)
    exact_part, pooled_part = (
        torch.cat([places[rows.slice_of(kind)] for kind in kinds])
        for kinds in ((RECENT, CERTIFICATE), (ROUTING, BOUNDARY))
    )
    pooled_rows = rows.rows[..., pooled_part]
    queries = row_queries(made_by.q, pooled_rows + segment.first).float()
    keys = pool_keys(context).repeat_interleave(made_by.group, dim=1)
    logits = queries @ keys.transpose(-1, -2) * made_by.scale
    if made_by.softcap:
        logits = made_by.softcap * torch.tanh(logits / made_by.softcap)
    edges = torch.arange(segment.key_blocks, device=logits.device) * segment.block_k
    low = torch.maximum(edges, context.geometry.first_keys.view(-1, 1)).view(len(logits), 1, 1, -1)
    visible = (pooled_rows.unsqueeze(-1) + segment.position + 1 - low).clamp(0, segment.block_k)
    visible = torch.minimum(visible, (edges + segment.block_k - low).clamp_min(0))
    logits = logits + visible.float().log()
    out = logits.new_empty(*rows.rows.shape, segment.key_blocks)
    out[..., pooled_part, :] = logits
    out[..., exact_part, :] = _exact_block_lse(context, rows.rows[..., exact_part])
    return out


def pool_keys(context: Context) -> torch.Tensor:
    """pool_g(K) of eq. 3: keys mean-pooled over KV blocks, real keys only: [B, Hkv, N, D] float32."""
    inputs, segment = context.inputs, context.segment
    return block_means(inputs.k, 0, segment.keys, segment.block_k, context.padding, inputs.table, place=1)


def describe(probe: Probe) -> Descriptors:
    """Entropy of the block distribution, mass within the local band, and agreement of recent and routing rows: what a
    head's attention looks like on this prompt, read from all rows but the certificate's.

    Agreement is 1 - total variation between the two groups' mean distributions over {sink block, distance to the
    diagonal in octaves of KV blocks}: rows at different positions see different keys, distances compare.
    """
    found = descriptors.describe_units(probe.entropy, probe.local, probe.spread, probe.rows.sizes)
    return Descriptors(*found.unbind(0))
