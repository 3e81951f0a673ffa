"""InfLLM's memory against a plain-loop reading in float64. CPU only."""

from __future__ import annotations

import math

import pytest
import torch

from routesparse.engine.lab.rivals.scorers.infllm import InfLLM


@pytest.mark.parametrize(("units", "representatives", "local"), [(2, 4, 70), (1, 2, 33), (3, 1, 129)])
def test_reads_the_units_whose_representatives_match(make_view, slow, units, representatives, local) -> None:
    view = make_view(517, 32, 16)
    n, block = view.tokens, view.block_q
    blocks = math.ceil(n / block)
    q, k, _ = slow.tensors(view)
    chosen = []
    for head in range(view.heads):
        known = []
        for unit in range(blocks):
            score = {}
            for m in range(unit * block, min(n, (unit + 1) * block)):
                behind = range(m + 1, min(n, m + local + 1))
                score[m] = sum(float(q[head, j] @ k[head, m]) for j in behind) / max(1, len(behind))
            known.append(sorted(score, key=lambda m: -score[m])[:representatives])
        rows = []
        for i in range(blocks):
            queries = q[head, i * block : (i + 1) * block]
            whole, memory = set(), {}
            for unit in range(i + 1):
                # The window of the block's first row, i * block, begins behind key i * block - local.
                if unit * block < 40 or (unit + 1) * block - 1 > i * block - local:
                    whole.add(unit)
                else:
                    memory[unit] = float((queries @ k[head, known[unit]].mT).sum())
            rows.append(whole | set(sorted(memory, key=lambda unit: -memory[unit])[:units]))
        chosen.append(rows)
    rule = InfLLM(units, representatives, initial_tokens=40, local_tokens=local)
    slow.same(view, rule(view), slow.halves(view, chosen))


def test_finds_a_far_key_that_a_whole_query_block_reads_above_all(needle) -> None:
    view, row, key = needle
    first = row // view.block_q * view.block_q
    view.inputs.q[:, :, first : first + view.block_q] += 0.2 * view.inputs.q[:, :, row : row + 1]
    blocks = InfLLM(units=1, initial_tokens=16, local_tokens=64)(view).blocks
    assert blocks[0, :, row // view.block_q, key // view.block_k].all()


def test_a_short_last_unit_has_no_more_representatives_than_tokens(make_view) -> None:
    view = make_view(32 * 9 + 2, 32, 16)
    chosen = InfLLM(representatives=4, local_tokens=40).chosen(view)[0]
    assert (chosen[:, : 32 * 9].unflatten(-1, (-1, 32)).sum(-1) == 4).all()
    assert (chosen[:, 32 * 9 :].sum(-1) == 2).all()


def test_representatives_are_known_before_their_unit_leaves_the_window(make_view) -> None:
    """What a unit is known by depends on no query after the first that can look it up in the memory."""
    rule, view, changed = InfLLM(local_tokens=64), make_view(517, 32, 16), make_view(517, 32, 16)
    row = 320
    changed.inputs.q[:, :, row:] = torch.randn_like(changed.inputs.q[:, :, row:])
    units = rule.memory(view)[row // 32].nonzero().flatten().tolist()
    assert units
    for unit in units:
        keys = slice(unit * 32, (unit + 1) * 32)
        assert rule.chosen(view)[..., keys].equal(rule.chosen(changed)[..., keys])
