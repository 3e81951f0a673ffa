"""Skip-softmax, QuoKA, ProxyAttn and Kascade against plain readings in float64. CPU only."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from routesparse.engine.errors import ConfigError
from routesparse.engine.lab.rivals import kascade, pieces
from routesparse.engine.lab.rivals.kascade import Kascade, KascadeSearch
from routesparse.engine.lab.rivals.proxy_attn import ProxyAttn
from routesparse.engine.lab.rivals.quoka import Quoka
from routesparse.engine.lab.rivals.skip_softmax import SkipSoftmax


def spans(n, block):
    return [range(start, min(start + block, n)) for start in range(0, n, block)]


@pytest.mark.parametrize(("threshold", "tile"), [(0.75, 64), (0.9, 64), (0.9, 128)])
def test_skip_softmax_walks_the_blocks_with_a_running_maximum(view, slow, threshold, tile):
    q, k, _ = slow.tensors(view)
    logits = (q @ k.transpose(-1, -2) * view.inputs.scale).tolist()
    expected = torch.zeros(
        1, view.heads, view.segment.query_blocks, view.segment.key_blocks, dtype=torch.bool
    )
    for head, (i, rows) in itertools.product(range(view.heads), enumerate(spans(view.tokens, view.block_q))):
        running = dict.fromkeys(rows, -math.inf)
        for j, keys in enumerate(spans(view.tokens, tile)):
            of_tile = slice(j * tile // view.block_k, (j + 1) * tile // view.block_k)
            for row in rows:
                seen = [logits[head][row][key] for key in keys if key <= row]
                if not seen:
                    continue
                running[row] = max(running[row], max(seen))
                expected[0, head, i, of_tile] |= max(seen) - running[row] >= math.log(threshold)
    slow.same(view, SkipSoftmax(threshold, tile)(view), expected)
    assert SkipSoftmax(threshold, tile, frozenset({view.layer}))(view) is None


def test_quoka_reads_what_its_strangest_queries_are_most_like(view, slow):
    q, k, _ = slow.tensors(view)
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    groups, wanted = view.inputs.groups, 7
    worth = torch.full((1, view.heads, view.segment.query_blocks, view.segment.key_blocks), -math.inf)
    for pair, (i, rows) in itertools.product(
        range(view.heads // groups), enumerate(spans(view.tokens, view.block_q))
    ):
        best = []
        for head in range(pair * groups, (pair + 1) * groups):
            block = q[head, list(rows) + [view.tokens - 1] * (view.block_q - len(rows))]
            order = (block @ block.mean(0)).argsort(stable=True)[: Quoka.queries]
            best.append((block[order] @ k[head].T).max(0).values)
        mean = torch.stack(best).mean(0)
        for j, keys in enumerate(spans(view.tokens, view.block_k)):
            worth[0, pair * groups : (pair + 1) * groups, i, j] = mean[list(keys)].max()
    expected = pieces.best_blocks(view, worth, wanted).blocks
    slow.same(view, Quoka(wanted)(view), expected)


@pytest.mark.parametrize("proxies", [1, 2])
def test_proxy_attn_ranks_by_a_mean_head_and_reads_as_many_as_each_head_needs(view, slow, proxies):
    rule = ProxyAttn(0.8, proxies, 1)
    q, k = view.inputs.q[0].double(), view.inputs.k[0].double()
    causal = view.forced_and_causal[1][0, 0]
    attention = slow.attention(view)
    expected = torch.zeros(1, view.heads, *causal.shape, dtype=torch.bool)
    for head in range(view.heads):
        group = head * proxies // view.heads
        mean_q = q[group * len(q) // proxies : (group + 1) * len(q) // proxies].mean(0)
        mean_k = k[group * len(k) // proxies : (group + 1) * len(k) // proxies].mean(0)
        logits = mean_q @ mean_k.T * view.inputs.scale
        weight = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -math.inf).softmax(-1)
        last = attention[head, -(view.tokens - (len(causal) - 1) * view.block_q) :].mean(0)
        held = sorted(
            (float(last[list(keys)].sum()) for keys in spans(view.tokens, view.block_k)), reverse=True
        )
        needed = next(count for count in range(len(held) + 1) if sum(held[:count]) >= 0.8) / len(held)
        for i, rows in enumerate(spans(view.tokens, view.block_q)):
            peak = [
                float(weight[list(rows)][:, list(keys)].max()) for keys in spans(view.tokens, view.block_k)
            ]
            seen = [j for j in range(len(peak)) if causal[i, j]]
            for j in sorted(seen, key=lambda j: -peak[j])[: math.ceil(needed * len(seen) - 1e-6)]:
                expected[0, head, i, j] = True
    slow.same(view, rule(view), expected)


def layers_of(make_view, count):
    return [make_view(200, 32, 16, layer=layer, seed=layer // 3) for layer in range(count)]


def test_kascade_keeps_the_largest_blocks_and_later_layers_read_an_anchors_choice(make_view, slow):
    first, anchor, later = layers_of(make_view, 3)
    rule = Kascade(0.3, {2: (1, (1, 0))})
    assert rule(first) is None
    chosen = rule(anchor).blocks
    mass = slow.attention(anchor).unflatten(0, (2, 2)).sum(1)
    causal = anchor.forced_and_causal[1][0, 0]
    for head, (i, rows) in itertools.product(range(2), enumerate(spans(200, 32))):
        held = [float(mass[head][list(rows)][:, list(keys)].sum()) for keys in spans(200, 16)]
        seen = [j for j in range(len(held)) if causal[i, j]]
        best = sorted(seen, key=lambda j: -held[j])[: math.ceil(0.3 * len(seen) - 1e-6)]
        assert set(chosen[0, 2 * head, i].nonzero().flatten().tolist()) == set(best)
    swapped = rule(later).blocks
    assert torch.equal(swapped[0, :2], chosen[0, 2:]) and torch.equal(swapped[0, 2:], chosen[0, :2])


def test_kascade_s_search_finds_the_layers_that_the_others_resemble(make_view):
    search = KascadeSearch(anchors=2, share=0.3)
    for view in layers_of(make_view, 7):  # layers 0 to 2, 3 to 5 and 6 have the same attention
        search(view)
    found = search.best()
    assert {layer: anchor for layer, (anchor, _) in found.items()} in (
        {2: 1, 4: 3, 5: 3, 6: 3},
        {2: 1, 3: 1, 4: 1, 5: 1},
    )
    assert all(heads == (0, 1) for layer, (anchor, heads) in found.items() if layer // 3 == anchor // 3)
    everywhere = [sum(captured_by(search, anchors)) for anchors in itertools.combinations(range(1, 6), 1)]
    best = sum(captured_by(search, sorted({anchor for anchor, _ in found.values()})[1:]))
    assert best >= max(everywhere) - 1e-6
    with pytest.raises(ConfigError, match="one prompt"):
        search(layers_of(make_view, 1)[0])


def captured_by(search, anchors):
    """The worth of each layer when the anchors stand at layer 1 and at these, counted from layer 1."""
    starts = [0, *(anchor - 1 if anchor > 1 else anchor for anchor in anchors)]
    for layer in range(6):
        anchor = max(start for start in starts if start <= layer)
        yield float(search._captured(anchor, layer).amax(1).mean())


def test_a_search_without_a_prompt_is_told():
    with pytest.raises(ConfigError, match="nothing was searched"):
        KascadeSearch().best()


def test_masses_of_blocks_do_not_depend_on_chunks(make_view, monkeypatch):
    view = make_view(200, 32, 16)
    whole = kascade.block_mass(view)
    monkeypatch.setattr(pieces, "MOST_LOGITS", 1)
    assert torch.allclose(kascade.block_mass(view), whole, atol=1e-5)
