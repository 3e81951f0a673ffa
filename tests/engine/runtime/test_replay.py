"""Rows run again with exact attention: with all of them the truth, with a stretch more than with single rows. CPU."""

import numpy as np
import pytest
import torch

from routesparse.engine.errors import PromptError
from routesparse.engine.runtime import replay
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.replay import Keeping, most_read, question_rows, replayed, row_kl, stretches
from routesparse.engine.runtime.transformers import routed_by
from tests.engine.runtime.test_transformers import (
    DenseRouter,
    FixedPlanRouter,
    build,
    logits,
    prompt,
    relative,
)

TOKENS = 320


def prefilled(model, router, ids):
    """Last hidden states, and what a replay needs."""
    keeping = Keeping(router)
    with torch.no_grad(), routed_by(model, keeping):
        return model.base_model(ids).last_hidden_state[0], keeping.kept


@torch.no_grad()
def log_p(model, hidden):
    """What the model's own call makes of hidden states, scales and caps included."""
    found = model.lm_head(hidden) / getattr(model.config, "logits_scaling", 1.0)
    cap = getattr(model.config, "final_logit_softcapping", None)
    return (found if cap is None else cap * torch.tanh(found / cap)).float().log_softmax(-1)


@pytest.mark.parametrize("most", [1 << 27, 5_000], ids=["at once", "in parts"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2", "GptOss", "SmolLM3", "Granite"])
def test_with_every_row_replayed_it_is_dense_attention(family, most, monkeypatch):
    monkeypatch.setattr(replay, "MOST_LOGITS", most)
    model, ids = build(family), prompt(TOKENS)
    with torch.no_grad():
        wanted = model.base_model(ids).last_hidden_state[0]
    hidden, kept = prefilled(model, FixedPlanRouter(), ids)
    again = replayed(model, {"input_ids": ids}, kept, torch.arange(TOKENS))
    assert relative(hidden, wanted) > 1e-2 and relative(again, wanted) < 1e-5
    assert model.config._attn_implementation == "eager"  # as it was


def test_rows_of_a_dense_prefill_are_the_same_again_and_embeddings_do():
    model, ids = build("Llama"), prompt(TOKENS)
    hidden, kept = prefilled(model, DenseRouter(), ids)
    rows = torch.from_numpy(stretches(TOKENS, 4, 8, seed=3).flatten())
    embeds = model.get_input_embeddings()(ids[:, rows])
    for tokens in ({"input_ids": ids[:, rows]}, {"inputs_embeds": embeds}):
        assert relative(replayed(model, tokens, kept, rows), hidden[rows]) < 1e-5


def test_neighbours_see_more_of_the_loss_than_rows_apart():
    model, ids = build("Llama"), prompt(TOKENS)
    with torch.no_grad():
        dense = model.base_model(ids).last_hidden_state[0]
    hidden, kept = prefilled(model, FixedPlanRouter(), ids)
    rows = torch.arange(256, TOKENS)

    def foretold(chosen):
        exact = log_p(model, replayed(model, {"input_ids": ids[:, chosen]}, kept, chosen)[-1:])
        return float(row_kl(exact, log_p(model, hidden[-1:])))

    truth = float(row_kl(log_p(model, dense[-1:]), log_p(model, hidden[-1:])))
    errors = [abs(foretold(chosen) - truth) for chosen in (torch.arange(TOKENS), rows, rows[-1:])]
    assert errors[0] < 1e-5 < errors[1] < errors[2]


def test_a_prefill_that_nothing_serves_is_not_kept():
    class Failing(AttentionRouter):
        def attend(self, inputs, *, layer, window=None):
            raise ZeroDivisionError

    model = build("Llama")
    with pytest.raises(ZeroDivisionError):
        prefilled(model, Failing(), prompt(TOKENS))
    assert logits(model, prompt(8)).shape[1] == 8


@pytest.mark.parametrize("tokens", [256, 1_000, 16_384])
def test_stretches_lie_one_in_each_part_and_start_anywhere(tokens):
    found = np.stack([stretches(tokens, 8, 32, seed) for seed in range(200)])
    assert found.min() >= 0 and found.max() < tokens
    assert (np.diff(found, axis=2) == 1).all()
    part = tokens // 8
    assert (found[:, :, 0] // part == np.arange(8)).all() and (found[:, :, -1] // part == np.arange(8)).all()
    places = {int(one) for one in found[:, 3, 0] - 3 * part}
    assert len(places) == 1 if part == 32 else min(places) < part / 8 and max(places) > (part - 32) * 7 / 8
    assert (stretches(tokens, 8, 32, 5) == stretches(tokens, 8, 32, 5)).all()


def test_stretches_that_do_not_fit_are_refused():
    with pytest.raises(PromptError, match="8 stretches of 32 rows don't fit into 255 tokens"):
        stretches(255, 8, 32, 0)


def test_a_questions_rows_are_what_its_last_rows_read_and_they_themselves():
    weights = torch.zeros(100)
    weights[[17, 40, 41, 95]] = torch.tensor([5.0, 2.0, 2.0, 9.0])
    first = most_read(weights, 16, 2, before=90)
    assert first == [16, 32]  # 95 lies among the last
    rows = question_rows(100, first, 16, 10, "cpu")
    assert rows.tolist() == [*range(16, 48), *range(90, 100)]
    assert question_rows(100, [], 16, 4, "cpu").tolist() == [96, 97, 98, 99]
