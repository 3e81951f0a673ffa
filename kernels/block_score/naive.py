"""Block scores by tensor operations, some query blocks of one KV head at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from routesparse.kernels.block_score.contract import ALIGNED_QUERY_BLOCKS, LEAST_SCORE, TILE
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import NORMALISER_STEP, VARIANCE_WEIGHT

LOGITS_AT_ONCE = 1 << 24


class Descriptions(NamedTuple):
    """C clusters of each KV block: mean beside VARIANCE_WEIGHT / 2 times variance, and how many keys they stand for."""

    features: torch.Tensor  # [B, Hkv, C, N, 2 D] in the type of k
    counts: torch.Tensor  # float32 [B, Hkv, C, N]


def block_score(
    q: torch.Tensor,
    k: torch.Tensor,
    first: int,
    geometry: SegmentGeometry,
    *,
    rows: int,
    clusters: int,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Natural logarithm of each KV block's share of a query block's rows: float16 [B, H, M, N], at least LEAST_SCORE.

    q [B, H, n, D], k [B, Hkv, >= keys, D]; first: the segment's first row in q. rows: rows of each query block that are
    scored (``scored_rows``); clusters: 1 or 2 descriptions of a KV block (``descriptions``). Keys before
    ``geometry.first_keys`` count nowhere; blocks after the diagonal and those without a real key have LEAST_SCORE. The
    soft cap holds for the logit of one key, before ln(keys). sinks [H]: logits that join every row's normaliser. table:
    as in ``block_lse``.

    Descriptions and the squares of queries, scale q_d^2, are rounded to the model's own type, as the tensor cores take
    them; all else is float32.
    """
    batch, heads, _, head_size = q.shape
    kv_heads, group = k.shape[1], heads // k.shape[1]
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    described = descriptions(k, geometry, clusters)
    chosen = scored_rows(q, first, geometry, rows)
    starts = torch.arange(key_blocks, device=q.device) * geometry.block_k
    counted = described.counts.log()
    out = torch.full((batch, heads, query_blocks, key_blocks), LEAST_SCORE, dtype=torch.float16)
    out = out.to(q.device)
    at_once = max(1, LOGITS_AT_ONCE // (group * chosen.shape[-1] * key_blocks * clusters))
    for b in range(batch):
        weights = sampled_tiles(geometry, clusters, int(geometry.first_keys[b])).log().to(q.device)
        for kv_head in range(kv_heads):
            own = slice(kv_head * group, (kv_head + 1) * group)
            means, spreads = described.features[b, kv_head].float().split(head_size, -1)
            for start in range(0, query_blocks, at_once):
                part = slice(start, start + at_once)
                end = min(geometry.rows, (start + at_once) * geometry.block_q) + geometry.position
                blocks = -(-end // geometry.block_k)
                row = chosen[b, own, part].flatten(1)  # [group, rows of the part]
                queries = q[b, own].gather(1, (row + first).unsqueeze(-1).expand(-1, -1, head_size)).float()
                squares = (queries.square() * scale).to(q.dtype).float()
                logits = torch.einsum("grd,cnd->grcn", queries, means[:, :blocks])
                logits += torch.einsum("grd,cnd->grcn", squares, spreads[:, :blocks])
                logits.mul_(scale)
                if softcap:
                    logits = softcap * (logits / softcap).tanh_()
                logits += counted[b, kv_head, :, :blocks]
                hidden = starts[:blocks] > (row + geometry.position).unsqueeze(-1)
                logits.masked_fill_(hidden.unsqueeze(2), -torch.inf)
                logits = logits.unflatten(1, (-1, chosen.shape[-1]))  # [group, M of the part, R, C, N]
                weight = weights[part, None, None, :blocks]
                whole = (logits + weight).flatten(3).logsumexp(-1)
                if sinks is not None:
                    whole = torch.logaddexp(whole, sinks[own].float().view(-1, 1, 1))
                # Rows of the padding see nothing; their shares are 0. A sampled normaliser can fall short.
                share = (logits - whole[..., None, None]).clamp_max_(0.0).exp_().nan_to_num_(0.0)
                share = share.sum(3).clamp_max_(1.0)
                score = share.square_().mean(2).log_().mul_(0.5).clamp_min_(LEAST_SCORE)
                out[b, own, part, :blocks] = score.half()
    return out


def scored_rows(q: torch.Tensor, first: int, geometry: SegmentGeometry, rows: int) -> torch.Tensor:
    """int64 [B, H, M, R]: the rows of each query block that are scored, as rows of the segment.

    Half of them are those whose queries are farthest from the query block's mean: rows that look something up stand out
    among their neighbours. The others are one of each stride of the rest, a place further in each query block, so that
    neighbouring query blocks see different phases of what repeats in the text. Rows past the segment's last one are
    that one. Of equal distances the first row's is the larger.
    """
    rows = min(rows, geometry.block_q)
    outstanding = rows // 2
    block = torch.arange(geometry.query_blocks, device=q.device)
    row = block.unsqueeze(-1) * geometry.block_q + torch.arange(geometry.block_q, device=q.device)
    row = row.clamp_max(geometry.rows - 1)
    queries = q[:, :, (row + first).flatten()].unflatten(2, row.shape).float()
    distance = (queries - queries.mean(3, keepdim=True)).square_().sum(-1)  # [B, H, M, block_q]
    order = distance.argsort(dim=-1, descending=True, stable=True)
    standing = torch.zeros_like(distance, dtype=torch.bool).scatter_(-1, order[..., :outstanding], True)
    # Of the others every stride-th, in order of position.
    stride = (geometry.block_q - outstanding) // (rows - outstanding)
    place = (~standing).cumsum(-1) - 1
    others = ~standing & (place % stride == (block % stride).unsqueeze(-1))
    others &= place // stride < rows - outstanding
    at = (standing | others).nonzero()[:, -1].view(*distance.shape[:3], rows)
    return row.expand(*distance.shape).gather(-1, at)


def sampled_tiles(geometry: SegmentGeometry, clusters: int, first_key: int) -> torch.Tensor:
    """What each KV block counts in a row's normaliser: float32 [M, N].

    A tile holds the descriptions of TILE / clusters KV blocks. The first one that any row sees, and those from the
    first row of a query block on (of ALIGNED_QUERY_BLOCKS, whose first row's), count as they are; of NORMALISER_STEP
    tiles between them one counts for all, where there are at least two such groups.
    """
    width = TILE // clusters
    block = torch.arange(geometry.query_blocks)
    aligned = block // ALIGNED_QUERY_BLOCKS * ALIGNED_QUERY_BLOCKS * geometry.block_q
    begin = first_key // geometry.block_k // width + 1
    end = ((aligned + geometry.position) // geometry.block_k // width).unsqueeze(-1)
    tile = (torch.arange(geometry.key_blocks) // width).expand(len(block), -1)
    between = (tile >= begin) & (tile < end)
    count = (end - begin).clamp_min(0)
    taken = (count - NORMALISER_STEP // 2 + NORMALISER_STEP - 1) // NORMALISER_STEP
    sampled = between & ((tile - begin) % NORMALISER_STEP == NORMALISER_STEP // 2)
    few = count < 2 * NORMALISER_STEP
    weight = torch.where(sampled, count / taken.clamp_min(1), 0.0)
    return torch.where(between & ~few, weight, 1.0)


def descriptions(k: torch.Tensor, geometry: SegmentGeometry, clusters: int) -> Descriptions:
    """The keys of each KV block as one or two clusters.

    Two: the key farthest from the block's mean and all that are nearer to it than to the mean are one, the rest the
    other; then each key joins the mean that is nearer (one step of k-means). A few keys that stand apart from their
    block, to which a rare query belongs, are so not lost in its mean. Keys before the first and after the last real one
    count nowhere; a cluster without keys has mean 0 and count 0.
    """
    padding = -geometry.keys % geometry.block_k
    blocks = (geometry.key_blocks, geometry.block_k)
    at = torch.arange(geometry.keys, device=k.device)
    real = F.pad(at >= geometry.first_keys.view(-1, 1), (0, padding)).unflatten(1, blocks)
    real = real.unsqueeze(1).expand(-1, k.shape[1], -1, -1)  # [B, Hkv, N, block_k]
    values = F.pad(k[:, :, : geometry.keys].float(), (0, 0, 0, padding)).unflatten(2, blocks)
    sides = [real]
    if clusters == 2:
        mean = _mean(values, real)
        distance = _distance(values, mean)
        farthest = distance.masked_fill(~real, -1.0).argmax(-1, keepdim=True)
        seed = values.gather(3, farthest.unsqueeze(-1).expand(-1, -1, -1, -1, k.shape[-1])).squeeze(3)
        near = (_distance(values, seed) < distance) & real
        means = _mean(values, real & ~near), _mean(values, near)
        near = (_distance(values, means[1]) < _distance(values, means[0])) & real
        sides = [real & ~near, near]
    features = []
    for side in sides:
        mean = _mean(values, side)
        deviations = (values - mean.unsqueeze(3)) * side.unsqueeze(-1)
        spread = deviations.square_().sum(3) * (0.5 * VARIANCE_WEIGHT) / _count(side)
        features.append(torch.cat([mean, spread.clamp_max(torch.finfo(k.dtype).max)], -1).to(k.dtype))
    counts = torch.stack([side.sum(-1) for side in sides], 2).float()
    return Descriptions(torch.stack(features, 2), counts)


def _count(side: torch.Tensor) -> torch.Tensor:
    return side.sum(-1, keepdim=True).clamp_min(1)


def _mean(values: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
    """[B, Hkv, N, D]: means of the keys of one side, 0 without any."""
    return (values * side.unsqueeze(-1)).sum(3) / _count(side)


def _distance(values: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """[B, Hkv, N, block_k]: squared distances of keys from their block's centre."""
    return (values - centre.unsqueeze(3)).square_().sum(-1)
