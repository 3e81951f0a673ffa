"""Block scores by tensor operations, some query blocks of one KV head at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import VARIANCE_WEIGHT

LEAST_SCORE = -20.0  # of logarithms; a block without a share has it, too
LOGITS_AT_ONCE = 1 << 24


def block_score(
    q: torch.Tensor,
    k: torch.Tensor,
    first: int,
    geometry: SegmentGeometry,
    *,
    rows: int,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Natural logarithm of each KV block's share of a query block's rows: float16 [B, H, M, N], at least LEAST_SCORE.

    q [B, H, n, D], k [B, Hkv, >= keys, D]; first: the segment's first row in q. rows: sampled rows of each query block
    (``sampled_rows``). Keys before ``geometry.first_keys`` count nowhere; blocks after the diagonal and those without a
    real key have LEAST_SCORE. The soft cap holds for the logit of one key, before ln(keys in b). sinks [H]: logits that
    join every row's normaliser. table: as in ``block_lse``.

    Means and weighted variances (``block_features``) and the squares of queries, scale q_d^2, are rounded to the
    model's own type, as the tensor cores take them; all else is float32.
    """
    batch, heads, _, head_size = q.shape
    kv_heads, group = k.shape[1], heads // k.shape[1]
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    picked = sampled_rows(geometry, rows).to(q.device)
    means, spreads = block_features(k, geometry).float().split(head_size, -1)
    edges = torch.arange(key_blocks, device=q.device) * geometry.block_k
    count = real_keys(geometry).float().log()
    out = torch.full((batch, heads, query_blocks, key_blocks), LEAST_SCORE, dtype=torch.float16)
    out = out.to(q.device)
    step = max(1, LOGITS_AT_ONCE // (group * picked.shape[1] * key_blocks))
    for start in range(0, query_blocks, step):
        part = picked[start : start + step]
        end = min(geometry.rows, (start + step) * geometry.block_q) + geometry.position
        blocks = -(-end // geometry.block_k)
        hidden = edges[:blocks] > (part + geometry.position).unsqueeze(-1)
        for b in range(batch):
            for kv_head in range(kv_heads):
                own = slice(kv_head * group, (kv_head + 1) * group)
                queries = q[b, own].index_select(1, (part + first).flatten()).float()
                squares = (queries.square() * scale).to(q.dtype).float()
                logits = queries @ means[b, kv_head, :blocks].mT + squares @ spreads[b, kv_head, :blocks].mT
                logits = logits.mul_(scale).unflatten(1, part.shape)
                if softcap:
                    logits = softcap * (logits / softcap).tanh_()
                logits = (logits + count[b, :blocks]).masked_fill_(hidden, -torch.inf)
                whole = logits.logsumexp(-1, keepdim=True)
                if sinks is not None:
                    whole = torch.logaddexp(whole, sinks[own].float().view(-1, 1, 1, 1))
                # Rows of the padding see nothing; their shares are 0.
                squared = logits.sub_(whole).mul_(2.0).exp_().nan_to_num_(0.0)
                score = squared.mean(2).log_().mul_(0.5).clamp_min_(LEAST_SCORE)
                out[b, own, start : start + step, :blocks] = score.half()
    return out


def sampled_rows(geometry: SegmentGeometry, rows: int) -> torch.Tensor:
    """int64 [M, R]: rows of the segment, one of each stride of block_q / rows, a place further in each query block.

    So neighbouring query blocks see different phases of what repeats in the text. Rows past the segment's last one are
    that one.
    """
    rows = min(rows, geometry.block_q)
    stride = geometry.block_q // rows
    block = torch.arange(geometry.query_blocks).unsqueeze(-1)
    place = torch.arange(rows)
    row = block * geometry.block_q + place * stride + (place + block) % stride
    return row.clamp_max(geometry.rows - 1)


def real_keys(geometry: SegmentGeometry) -> torch.Tensor:
    """int64 [B, N]: keys of each KV block up to the segment's last key, padding aside."""
    edges = torch.arange(geometry.key_blocks, device=geometry.first_keys.device) * geometry.block_k
    low = torch.maximum(edges, geometry.first_keys.view(-1, 1))
    return ((edges + geometry.block_k).clamp_max(geometry.keys) - low).clamp_min(0)


def block_features(k: torch.Tensor, geometry: SegmentGeometry) -> torch.Tensor:
    """Mean and VARIANCE_WEIGHT / 2 times variance of each KV block's real keys: [B, Hkv, N, 2 D] in the type of k."""
    padding = -geometry.keys % geometry.block_k
    blocks = (geometry.key_blocks, geometry.block_k)
    at = torch.arange(geometry.keys, device=k.device)
    real = F.pad(at >= geometry.first_keys.view(-1, 1), (0, padding)).unflatten(1, blocks)
    real = real.unsqueeze(1).unsqueeze(-1)
    count = real_keys(geometry).clamp_min(1).view(len(k), 1, -1, 1)
    values = F.pad(k[:, :, : geometry.keys].float(), (0, 0, 0, padding)).unflatten(2, blocks)
    means = (values * real).sum(3) / count
    deviations = (values - means.unsqueeze(3)) * real
    spreads = deviations.square_().sum(3) * (0.5 * VARIANCE_WEIGHT) / count
    return torch.cat([means, spreads.clamp_max(torch.finfo(k.dtype).max)], -1).to(k.dtype)
