"""Block scores by tensor operations, some query blocks of one KV head at a time."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F

from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits
from routesparse.kernels.rules import NORMALISER_STEP, VARIANCE_WEIGHT

LEAST_SCORE = -20.0  # of logarithms; a block without a share has it, too
TILE = 64  # descriptions of a tile, by which the normaliser's sum is sampled
ALIGNED_QUERY_BLOCKS = 8  # whose normalisers sample the same tiles


# Few enough to stay in a core's own cache; each operation on fewer would wait longer for torch's threads than it takes,
# above all beside other processes that want the cores.
LOGITS_AT_ONCE, VALUES_AT_ONCE = 1 << 20, 1 << 19
TINY = 1e-37
MOST_ABOVE = 76.0  # nats above the largest description that counts in the normaliser: as good as all of it


class Descriptions(NamedTuple):
    """C clusters of each KV block: mean beside VARIANCE_WEIGHT / 2 times variance, and how many keys they stand for."""

    features: torch.Tensor  # [B, Hkv, C, N, 2 D] in the type of k
    counts: torch.Tensor  # float32 [B, Hkv, C, N]


def block_score(
    logits: Logits, first: int, geometry: SegmentGeometry, *, rows: int, clusters: int
) -> torch.Tensor:
    """Natural logarithm of each KV block's share of a query block's rows: float16 [B, H, M, N], at least LEAST_SCORE.

    first: the segment's first row in q. rows: rows of each query block that are scored (``scored_rows``); clusters: 1
    or 2 descriptions of a KV block (``descriptions``). Keys before ``geometry.first_keys`` count nowhere; blocks after
    the diagonal and those without a real key have LEAST_SCORE. The soft cap holds for the logit of one key, before
    ln(keys).

    Descriptions and the squares of queries, scale q_d^2, are rounded to the model's own type, as the tensor cores take
    them; all else is float32.
    """
    q, k, sinks, group = logits.q, logits.k, logits.sinks, logits.group
    (batch, heads), kv_heads = q.shape[:2], k.shape[1]
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    described = descriptions(k, geometry, clusters)
    chosen = scored_rows(q, first, geometry, rows)
    starts = torch.arange(key_blocks, device=q.device) * geometry.block_k
    out = torch.full((batch, heads, query_blocks, key_blocks), LEAST_SCORE, dtype=torch.float16)
    out = out.to(q.device)
    at_once = max(1, LOGITS_AT_ONCE // (group * chosen.shape[-1] * key_blocks * clusters))
    for b in range(batch):
        weights = sampled_tiles(geometry, clusters, int(geometry.first_keys[b])).to(q.device)
        for kv_head, start in itertools.product(range(kv_heads), range(0, query_blocks, at_once)):
            own = slice(kv_head * group, (kv_head + 1) * group)
            part = slice(start, start + at_once)
            end = min(geometry.rows, (start + at_once) * geometry.block_q) + geometry.position
            blocks = -(-end // geometry.block_k)
            counts = described.counts[b, kv_head, :, :blocks]
            features = described.features[b, kv_head, :, :blocks].float().flatten(0, 1)
            row = chosen[b, own, part]
            scored = _queries(q[b, own], row + first, logits.scale) @ features.mT
            if logits.softcap:
                scored = scored.div_(logits.softcap).tanh_().mul_(logits.softcap)
            scored = scored.unflatten(-1, (clusters, blocks))  # [group, M of the part, R, C, N]
            # Blocks after the diagonal: a row that comes first sees all that start before it.
            seen = (start * geometry.block_q + geometry.position) // geometry.block_k + 1
            hidden = starts[seen:blocks] > (row + geometry.position).unsqueeze(-1)
            scored[..., seen:].masked_fill_(hidden.unsqueeze(3), -torch.inf)
            joined = None if sinks is None else sinks[own].float().view(-1, 1, 1, 1)
            share = _shares(scored, counts, weights[part, None, :blocks], joined)
            score = share.square_().mean(2).log_().mul_(0.5).clamp_min_(LEAST_SCORE)
            out[b, own, part, :blocks] = score.half()
    return out


def _shares(
    logits: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Shares of blocks in a row's softmax: logits [group, M, R, C, N], overwritten -> [group, M, R, N].

    counts [C, N]: keys of each description; weight [M, 1, N]: see ``sampled_tiles``; sinks [group, 1, 1, 1]: logits
    that join the normaliser.
    """
    if not counts.all():
        logits.masked_fill_(counts == 0, -torch.inf)
    sampled = bool((weight == 0).any())
    peak = logits.masked_fill(weight.unsqueeze(1) == 0, -torch.inf) if sampled else logits
    peak = peak.flatten(3).amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
    weights = logits.sub_(peak.unsqueeze(-1))
    if sampled:
        weights.clamp_max_(MOST_ABOVE)
    weights.exp_()
    whole = weights.flatten(3) @ (weight * counts).flatten(1).unsqueeze(-1)  # [group, M, R, 1]
    if sinks is not None:
        whole += (sinks - peak).exp_()
    share = weights[..., 0, :] * counts[0]
    for cluster in range(1, len(counts)):
        share.addcmul_(weights[..., cluster, :], counts[cluster])
    # Rows of the padding see nothing; their shares are 0, as those beside a NaN. A sampled normaliser can fall short.
    return share.mul_(whole.clamp_min_(TINY).reciprocal_()).clamp_max_(1.0).nan_to_num_(0.0)


def _queries(q: torch.Tensor, rows: torch.Tensor, scale: float) -> torch.Tensor:
    """What meets the features: scale times queries beside their squares, q [group, n, D], rows [group, M, R]."""
    # A selection for each head: on a CPU a gather of whole vectors takes three times as long.
    chosen = torch.stack(
        [head.index_select(0, row) for head, row in zip(q, rows.flatten(1), strict=True)]
    ).float()
    squares = (chosen.square() * scale).to(q.dtype).float()
    return torch.cat([chosen, squares], -1).mul_(scale).unflatten(1, rows.shape[1:])


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
    row = row.clamp_max(geometry.rows - 1)  # [M, block_q]
    distance = torch.empty(*q.shape[:2], *row.shape, device=q.device)  # [B, H, M, block_q]
    at_once = max(1, VALUES_AT_ONCE // (geometry.block_q * q.shape[3]))
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        for start in range(0, len(row), at_once):
            part = row[start : start + at_once]
            queries = q[b, h].index_select(0, (part + first).flatten()).unflatten(0, part.shape).float()
            deviations = (queries - queries.mean(1, keepdim=True)).square_()
            distance[b, h, start : start + at_once] = deviations.sum(-1)
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
    batch, kv_heads, _, head_size = k.shape
    block, blocks = geometry.block_k, geometry.key_blocks
    features = k.new_empty(batch, kv_heads, clusters, blocks, 2 * head_size)
    counts = torch.empty(batch, kv_heads, clusters, blocks, device=k.device)
    at_once = max(1, VALUES_AT_ONCE // (block * head_size))
    for b in range(batch):
        for start in range(0, blocks, at_once):
            end = min(start + at_once, blocks)
            keys = torch.arange(start * block, end * block, device=k.device)
            real = (keys >= geometry.first_keys[b]) & (keys < geometry.keys)
            for h in range(kv_heads):
                values = k[b, h, start * block : min(end * block, geometry.keys)].float()
                values = F.pad(values, (0, 0, 0, len(keys) - len(values))).unflatten(0, (-1, block))
                for c, side in enumerate(_sides(values, real.view(-1, 1, block).float(), clusters)):
                    mean = _mean(values, side)
                    # What overflows times a side's 0 would be no number.
                    deviations = _deviations(values, mean).clamp_max_(torch.finfo(torch.float32).max)
                    spread = side @ deviations * (0.5 * VARIANCE_WEIGHT) / _count(side)
                    spread.clamp_max_(torch.finfo(k.dtype).max)
                    features[b, h, c, start:end] = torch.cat([mean, spread], -1).squeeze(1)
                    counts[b, h, c, start:end] = side.sum(-1).squeeze(1)
    return Descriptions(features, counts)


def _sides(values: torch.Tensor, real: torch.Tensor, clusters: int) -> list[torch.Tensor]:
    """Which keys each cluster holds, 1.0 or 0.0 [N, 1, block_k]; values [N, block_k, D], real like a side."""
    if clusters == 1:
        return [real]
    distance = _distance(values, _mean(values, real))
    farthest = distance.masked_fill(real == 0, -1.0).argmax(-1, keepdim=True)
    seed = values.gather(1, farthest.mT.expand(-1, -1, values.shape[-1]))
    near = (_distance(values, seed) < distance) * real
    means = _mean(values, real - near), _mean(values, near)
    near = (_distance(values, means[1]) < _distance(values, means[0])) * real
    return [real - near, near]


def _count(side: torch.Tensor) -> torch.Tensor:
    return side.sum(-1, keepdim=True).clamp_min(1)


def _mean(values: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
    """[N, 1, D]: means of the keys of one side, 0 without any."""
    return (side @ values) / _count(side)


def _deviations(values: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """[N, block_k, D]: squared differences of keys from their block's centre [N, 1, D]."""
    return (values - centre).square_()


def _distance(values: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """[N, 1, block_k]: squared distances of keys from their block's centre."""
    return _deviations(values, centre).sum(-1).unsqueeze(1)
