"""What the slow readings of the rules share. CPU only."""

from __future__ import annotations

import pytest
import torch

# (tokens, block_q, block_k): few blocks of full size, and many small ones; both with a ragged end.
SHAPES = {"n300-128x64": (300, 128, 64), "n397-32x16": (397, 32, 16)}


@pytest.fixture
def make_view(oracle):
    """make_view(tokens, block_q, block_k, ...) -> the view of one layer's random attention, 4 heads on 2 KV heads."""
    from routesparse.engine.lab.rivals.rule import View

    def make(tokens=517, block_q=32, block_k=16, *, seed=0, layer=3, salt="prompt", **inputs):
        drawn = oracle.draw_inputs(seed, n_q=tokens, **inputs)
        return View(drawn, layer, salt, block_q, block_k, tail_tokens=block_q)

    return make


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def view(request, make_view):
    """A view in each of SHAPES."""
    return make_view(*request.param)


@pytest.fixture
def slow(oracle):
    """Plain readings in float64 that several rules need."""
    return Slow(oracle)


class Slow:
    def __init__(self, oracle) -> None:
        self.oracle = oracle

    def attention(self, view) -> torch.Tensor:
        """The whole softmax: float64 [H, n, n]."""
        return self.oracle.softmax(view.inputs)[0][0]

    def tensors(self, view) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k, v of each query head: float64 [H, n, D]."""
        groups = view.inputs.groups
        return (
            view.inputs.q[0].double(),
            *(x[0].double().repeat_interleave(groups, 0) for x in (view.inputs.k, view.inputs.v)),
        )

    def tiles(self, view, reads, heads: int = 1) -> torch.Tensor:
        """The KV blocks that hold a causal pair (row, key) which ``reads(head, row, key)``: bool [1, heads, M, N]."""
        n = view.tokens
        out = torch.zeros(1, heads, view.segment.query_blocks, view.segment.key_blocks, dtype=torch.bool)
        for head in range(heads):
            for row in range(n):
                for key in range(row + 1):
                    if reads(head, row, key):
                        out[0, head, row // view.block_q, key // view.block_k] = True
        return out

    def halves(self, view, square) -> torch.Tensor:
        """A list [H][M] of sets of key blocks of block_q tokens, as KV blocks: bool [1, H, M, N]."""
        out = torch.zeros(1, view.heads, view.segment.query_blocks, view.segment.key_blocks, dtype=torch.bool)
        for head, rows in enumerate(square):
            for row, chosen in enumerate(rows):
                for key in range(view.segment.key_blocks):
                    out[0, head, row, key] = key * view.block_k // view.block_q in chosen
        return out

    def row_shares(self, view, logits) -> torch.Tensor:
        """Root mean squares over a query block's rows of a KV block's share: float64 [H, M, N].

        logits [H, n, n].
        """
        sums = torch.zeros(
            len(logits), view.segment.query_blocks, view.segment.key_blocks, dtype=torch.float64
        )
        for head in range(len(logits)):
            for i in range(view.segment.query_blocks):
                rows = range(i * view.block_q, min(view.tokens, (i + 1) * view.block_q))
                for row in rows:
                    held = [0.0] * view.segment.key_blocks
                    for place, share in enumerate(logits[head, row, : row + 1].double().softmax(0).tolist()):
                        held[place // view.block_k] += share
                    sums[head, i] += torch.tensor(held, dtype=torch.float64) ** 2 / len(rows)
        return sums.sqrt()

    def best_blocks(self, view, scores, blocks: int) -> torch.Tensor:
        """The best causal KV blocks with the forced ones before all others: scores [H, M, N] -> bool [1, H, M, N]."""
        forced, causal = (mask[0, 0] for mask in view.forced_and_causal)
        scores = scores.expand(view.heads, -1, -1)
        out = torch.zeros(1, *scores.shape, dtype=torch.bool)
        for head in range(view.heads):
            for i in range(len(causal)):
                order = sorted(
                    causal[i].nonzero().flatten().tolist(),
                    key=lambda j: (not forced[i, j], j if forced[i, j] else -float(scores[head, i, j])),
                )
                out[0, head, i, order[:blocks]] = True
        return out

    def same(self, view, selection, expected) -> None:
        """The causal part of a selection's blocks is what the slow reading says; of many blocks, some but not all."""
        causal = view.forced_and_causal[1]
        found = (selection.blocks & causal).expand(1, view.heads, -1, -1)
        different = (found != (expected & causal)).nonzero().tolist()
        assert not different, (
            f"{len(different)} blocks differ; [0, head, query block, KV block]: {different[:3]}"
        )
        least = 1 if view.segment.query_blocks > 9 else 0
        assert 0 < found.sum() <= causal.expand_as(found).sum() - least, "all or no blocks are read"

    def fewest(self, weights: list[float], share: float, first: set[int]) -> set[int]:
        """The fewest entries that reach share of the sum, those of first before all others."""
        chosen, total = set(first), sum(weights)
        held = sum(weights[i] for i in first)
        for i in sorted(set(range(len(weights))) - first, key=lambda i: -weights[i]):
            if held >= share * total:
                break
            chosen.add(i)
            held += weights[i]
        return chosen
