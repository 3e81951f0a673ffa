"""FlexPrefill against a plain-loop reading of the authors' rule in float64. CPU only."""

from __future__ import annotations

import math

import pytest

from routesparse.engine.lab.rivals.flexprefill import FlexPrefill


def reading(view, slow, gamma: float, tau: float, least_tokens: int):
    """Key blocks of block_q tokens by head and query block, and which heads are query-aware."""
    n, block, scale = view.tokens, view.block_q, view.inputs.scale
    blocks = math.ceil(n / block)
    q, k, _ = slow.tensors(view)
    attention, rows = slow.attention(view).tolist(), range(n - min(n, block), n)
    chosen, aware = [], []
    for head in range(view.heads):
        column, slash = [0.0] * n, [0.0] * n
        for row in rows:
            for key in range(row + 1):
                column[key] += attention[head][row][key] / len(rows)
                slash[row - key] += attention[head][row][key] / len(rows)
        column_blocks, slash_blocks = [0.0] * blocks, [0.0] * blocks
        for place in range(n):
            column_blocks[place // block] += column[place]
            # Upstream lists slashes from the oldest to the diagonal and sums blocks of that list.
            slash_blocks[blocks - 1 - (n - 1 - place) // block] += slash[place]
        mean_q = [q[head, i : i + block].mean(0) for i in range(0, n, block)]
        mean_k = [k[head, i : i + block].mean(0) for i in range(0, n, block)]
        last = q[head, list(rows)].mean(0)
        estimate = softmax([float(last @ key) * scale for key in mean_k])
        aware.append(math.sqrt(max(0.0, divergence(estimate, column_blocks))) < tau)

        least = math.ceil(least_tokens / block)
        budget = {}
        for name, means in (("column", column), ("slash", slash)):
            held, tokens = 0.0, 1
            for value in sorted(means, reverse=True):
                held += value
                tokens += held <= gamma
            budget[name] = least if aware[-1] else max(least, tokens // block + 1)
        column_blocks[0] = slash_blocks[0] = math.inf
        columns = sorted(range(blocks), key=lambda i: -column_blocks[i])[: budget["column"]]
        slashes = sorted(range(blocks), key=lambda i: -slash_blocks[i])[: budget["slash"]]
        own = set()
        if aware[-1]:
            entries = []
            for i in range(blocks):
                weights = softmax([float(mean_q[i] @ mean_k[j]) * scale for j in range(i + 1)])
                entries += [(weight, i, j) for j, weight in enumerate(weights)]
            held = 0.0
            for weight, i, j in sorted(entries, reverse=True):
                held += weight
                if held > gamma * blocks:
                    break
                own.add((i, j))
        chosen.append(
            [
                {j for j in range(i + 1) if j in columns or i - j in slashes or (i, j) in own}
                for i in range(blocks)
            ]
        )
    return slow.halves(view, chosen), aware


def softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def divergence(p: list[float], q: list[float]) -> float:
    total = 0.0
    for a, b in zip(p, q, strict=True):
        middle = (a + b) / 2
        total += sum(x * math.log(x / middle) / 2 for x in (a, b) if x > 0)
    return total


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0], ids=["no-head-aware", "some", "all-aware"])
@pytest.mark.parametrize("gamma", [0.5, 0.9])
def test_reads_what_the_published_rule_reads(view, slow, gamma, tau) -> None:
    found = FlexPrefill(gamma, tau, least_tokens=view.block_q)(view)
    expected, aware = reading(view, slow, gamma, tau, view.block_q)
    causal = view.forced_and_causal[1]
    assert ((found.blocks ^ expected) & causal).sum() == 0
    assert {0.0: not any(aware), 1.0: all(aware)}.get(tau, True)


def test_budgets_leave_blocks_out_of_a_long_prompt(make_view, slow) -> None:
    view = make_view(560, 16, 16, sharpness=4.0)
    expected, _ = reading(view, slow, 0.5, 0.3, 32)
    slow.same(view, FlexPrefill(0.5, 0.3, least_tokens=32)(view), expected)


@pytest.mark.parametrize(("tokens", "dense"), [(64, True), (65, False), (257, False)])
def test_a_prompt_of_two_blocks_or_the_least_budget_is_dense(make_view, tokens, dense) -> None:
    assert (FlexPrefill(least_tokens=64)(make_view(tokens, 32, 16)) is None) == dense
    assert FlexPrefill(least_tokens=1_024)(make_view(tokens, 32, 16)) is None


def test_keys_of_no_mass_make_no_nan(make_view) -> None:
    """Upstream's divergence is NaN there, which is below no tau: its heads always read columns and slashes."""
    view = make_view(400, 32, 16, sharpness=4.0)
    view.inputs.q[:, :, -32:] *= 1e4
    kept = FlexPrefill(tau=1.1, least_tokens=32)(view).blocks
    pooled = FlexPrefill(tau=0.0, least_tokens=32)(view).blocks
    assert not kept.equal(pooled), "every head is query-aware under tau above 1"
