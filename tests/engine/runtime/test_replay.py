"""Rows run again with exact attention: with all of them the truth, with a stretch more than with single rows. CPU."""

import numpy as np
import pytest
import torch

from routesparse.engine.errors import PromptError
from routesparse.engine.runtime.replay import (
    Keeping,
    hidden_at,
    kl_of,
    log_p,
    replayed,
    rows_of,
    stretches,
)
from routesparse.engine.runtime.transformers import routed_by
from routesparse.kernels.row_attention import naive
from tests.engine.runtime.test_transformers import (
    FAMILIES,
    DenseRouter,
    FixedPlanRouter,
    build,
    prompt,
    relative,
)

TOKENS = 320


def prefilled(model, router, ids):
    """Last hidden states, and what a replay needs."""
    keeping = Keeping(router)
    with torch.no_grad(), routed_by(model, keeping), hidden_at(model, torch.arange(ids.shape[1])) as found:
        model(ids, logits_to_keep=1)
    return found.hidden, keeping.kept


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_log_probabilities_are_the_models_own(family):
    changes = {"Granite": {"logits_scaling": 3.0}, "Gemma2": {"final_logit_softcapping": 0.5}}
    model, ids = build(family, **changes.get(family, {})), prompt(24)
    rows = torch.tensor([3, 20])
    with torch.no_grad(), hidden_at(model, rows) as found:
        wanted = model(ids).logits[0, rows].float().log_softmax(-1)
    with torch.no_grad():
        torch.testing.assert_close(log_p(model, found.hidden), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("most", [1 << 27, 5_000], ids=["at once", "in parts"])
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2", "GptOss", "SmolLM3", "Granite"])
def test_with_every_row_replayed_it_is_dense_attention(family, most, monkeypatch):
    monkeypatch.setattr(naive, "MOST_LOGITS", most)
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

    def seen(chosen):
        exact = replayed(model, {"input_ids": ids[:, chosen]}, kept, chosen)
        return float(kl_of(model, exact[-1:], hidden[-1:]))

    truth = float(kl_of(model, dense[-1:], hidden[-1:]))
    errors = [abs(seen(chosen) - truth) for chosen in (torch.arange(TOKENS), rows, rows[-1:])]
    assert errors[0] < 1e-5 < errors[1] < errors[2]


@pytest.mark.parametrize("family", ["Llama", "Gemma2", "GptOss"])
def test_what_each_head_lost_is_its_output_less_exact_attention(family):
    model, ids, rows = build(family), prompt(TOKENS), torch.tensor([40, 200, 319])
    seen = {}

    class Compared(FixedPlanRouter):
        def attend(self, inputs, *, layer, window=None):
            out = super().attend(inputs, layer=layer, window=window)
            exact = DenseRouter().attend(inputs, layer=layer, window=window)
            seen[layer] = (out - exact)[0, :, rows].square().sum(-1).mean(-1)
            return out

    keeping = Keeping(Compared(), rows)
    with torch.no_grad(), routed_by(model, keeping):
        model(ids)
    lost = keeping.lost()
    assert sorted(seen) == sorted(lost) and max(float(one.max()) for one in seen.values()) > 1e-6
    for layer, wanted in seen.items():
        torch.testing.assert_close(lost[layer], wanted, atol=1e-9, rtol=1e-3)


def test_a_question_decoded_after_the_prefill_does_not_replace_what_was_kept():
    model, ids = build("Llama"), prompt(64)
    keeping = Keeping(DenseRouter())
    with torch.no_grad(), routed_by(model, keeping), hidden_at(model, torch.tensor([63])) as found:
        out = model(ids, use_cache=True)
        hidden = found.hidden
        model(ids[:, :1], past_key_values=out.past_key_values)
    assert keeping.kept[0].inputs.k.shape[2] == 64 and found.hidden is hidden


@pytest.mark.parametrize(
    ("tokens", "rows"), [(1_023, None), (1_024, 256), (8_192, 256), (16_384, 512), (1 << 17, 768)]
)
def test_how_many_rows_are_replayed(tokens, rows):
    found = rows_of(tokens, 3)
    assert (found is None) == (rows is None)
    assert found is None or (found.size, found.shape[1]) == (rows, 16)


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
