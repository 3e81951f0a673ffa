"""The next token by the routed prefill beside the one by dense attention. CPU, logits by hand."""

import math

import pytest
import torch

from routesparse.engine.audit.answer import MOST_PROBABLE, answer_figures, answer_rows


def test_figures_by_hand():
    dense = torch.tensor([[0.0, math.log(3.0)]])
    found = answer_figures(torch.tensor([[0.0, 0.0]]), dense)
    assert found["logit_error"] == pytest.approx(1.0)
    assert found["kl_nats"] == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-7)
    assert found["top1_agreement"] == 0.0
    assert answer_figures(dense, dense) == {"top1_agreement": 1.0, "logit_error": 0.0, "kl_nats": 0.0}
    both = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert answer_figures(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), both)["top1_agreement"] == 0.5


def test_the_most_probable_of_both_sides_have_odds_and_ranks_on_both():
    dense = torch.arange(20, 0, -1.0)[None]
    routed = dense.clone()
    routed[0, 0], routed[0, 12] = -5.0, 40.0
    rows = answer_rows(routed, dense, "run", lambda tokens: f"<{tokens[0]}>")
    assert [row.token_id for row in rows] == [0, 1, 2, 3, 4, 12]
    assert [row.dense_rank for row in rows] == [1, 2, 3, 4, 5, 13]
    assert [row.routed_rank for row in rows] == [20, 2, 3, 4, 5, 1]
    odds = dense.double().softmax(-1)[0]
    assert [row.dense for row in rows] == pytest.approx([float(odds[row.token_id]) for row in rows])
    assert rows[-1].routed == pytest.approx(1.0, abs=1e-6) and rows[-1].text == "<12>"
    assert sum(row.dense_rank <= MOST_PROBABLE for row in rows) == MOST_PROBABLE
    assert {row.text for row in answer_rows(routed, dense, "run", None)} == {None}, "where no text is kept"
