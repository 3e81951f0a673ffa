"""Pooled top-k, FlashPrefill, Prism and Stem, which score blocks by means, against plain loops in float64. CPU only."""

from __future__ import annotations

import math

import pytest
import torch

from routesparse.engine.lab.rivals.flashprefill import FlashPrefill
from routesparse.engine.lab.rivals.pooled_top_k import PooledTopK
from routesparse.engine.lab.rivals.prism import Prism
from routesparse.engine.lab.rivals.stem import Stem


def means(x, block: int) -> list[torch.Tensor]:
    return [x[start : start + block].mean(0) for start in range(0, len(x), block)]


@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_pooled_top_k_reads_the_best_blocks_with_the_forced_ones_among_them(view, slow, blocks) -> None:
    q, k, _ = slow.tensors(view)
    scores = torch.stack(
        [
            torch.stack(means(q[head], view.block_q)) @ torch.stack(means(k[head], view.block_k)).T
            for head in range(view.heads)
        ]
    )
    slow.same(view, PooledTopK(blocks)(view), slow.best_blocks(view, scores, blocks))


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_flashprefill_keeps_what_reaches_a_share_of_the_best_score(view, slow, alpha) -> None:
    n, block = view.tokens, view.block_q
    blocks = math.ceil(n / block)
    q, k, _ = slow.tensors(view)
    chosen = []
    for head in range(view.heads):
        rows, pairs = [], (q[head] @ torch.stack(means(k[head], block)).T).tolist()
        for i in range(blocks):
            score = [0.0] * (i + 1)
            for row in range(i * block, min(n, (i + 1) * block)):
                for j in range(i + 1):
                    if row >= (j + 1) * block - 1:
                        score[j] += math.exp(pairs[row][j] * view.inputs.scale)
            kept = {j for j in range(i + 1) if score[j] > 0 and score[j] >= alpha * max(score)}
            kept |= {j for j in range(i + 1) if j < 1 or i - j < 2}
            rows.append(set(range(i + 1)) if i >= blocks - 1 else kept)
        chosen.append(rows)
    rule = FlashPrefill(alpha, sink_blocks=1, window_blocks=2, last_blocks=1)
    slow.same(view, rule(view), slow.halves(view, chosen))


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_prism_reads_to_a_share_of_each_band(view, slow, share) -> None:
    block = view.block_q
    q, k, _ = slow.tensors(view)
    size = q.shape[-1]
    half = size // 2
    bands = {
        "fast": [*range(0, size // 4), *range(half, half + size // 4)],
        "slow": [*range(half - size * 3 // 8, half), *range(size - size * 3 // 8, size)],
    }
    chosen = []
    for head in range(view.heads):
        queries, keys = (torch.stack(means(x[head], block)) for x in (q, k))
        rows = [{0, i} for i in range(len(queries))]
        for band in bands.values():
            strength = [
                math.sqrt(float(x[:, band].square().mean()) / float(x.square().mean()))
                for x in (queries, keys)
            ]
            temperature = math.sqrt(len(band) / size) * strength[0] * strength[1]
            for i, query in enumerate(queries):
                logits = [
                    float(query[band] @ key[band]) / (math.sqrt(len(band)) * temperature)
                    for key in keys[: i + 1]
                ]
                weights = [math.exp(logit - max(logits)) for logit in logits]
                rows[i] |= slow.fewest(weights, share, set())
        chosen.append(rows)
    slow.same(view, Prism(share)(view), slow.halves(view, chosen))


@pytest.mark.parametrize("weight", [0.0, 2.0], ids=["keys-alone", "values-count"])
def test_stem_reads_fewer_blocks_further_down_by_scores_with_value_norms(view, slow, weight) -> None:
    n, block, stride = view.tokens, view.block_q, 8
    blocks = math.ceil(n / block)
    q, k, v = slow.tensors(view)
    chosen = []
    for head in range(view.heads):
        pairs, norms = (q[head] @ k[head].T).tolist(), v[head].norm(dim=-1)
        rows = []
        for i in range(blocks):
            metric = []
            for j in range(i + 1):
                total = 0.0
                for g in range(i * block, (i + 1) * block, stride):
                    for h in range(j * block, (j + 1) * block, stride):
                        for place in range(stride):
                            row, key = g + stride - 1 - place, h + place
                            total += pairs[row][key] if row < n and key < n else 0.0
                logit = total * view.inputs.scale / stride / (block // stride) ** 2
                metric.append(
                    logit + weight * max(0.0, math.log(float(norms[j * block : (j + 1) * block].max())))
                )
            start = 0.5 * blocks
            budget = max(2, math.ceil(start - start * (1 - 0.7) * i / blocks))
            best = sorted(range(i + 1), key=lambda j: -metric[j])[:budget]
            rows.append({*best, *(j for j in range(i + 1) if j < 1 or i - j < 1)})
        chosen.append(rows)
    rule = Stem(start_share=0.5, value_weight=weight, least_blocks=2, edge_blocks=1)
    slow.same(view, rule(view), slow.halves(view, chosen))
