"""How a prompt goes on by both prefills. CPU; a model of rules by hand, and a tiny random Llama through the engine."""

from types import SimpleNamespace

import pytest
import torch

from routesparse.engine import analyze
from routesparse.engine.audit.answer import CONTINUED, continuation_row, continued
from routesparse.engine.models.load import LoadedModel

END = 9


class Counting:
    """After token t comes t + 1; it remembers what it was given."""

    def __init__(self, ends):
        self.generation_config = SimpleNamespace(eos_token_id=ends)
        self.given = []

    def __call__(self, ids, past_key_values, use_cache):
        self.given.append((int(ids), past_key_values))
        return SimpleNamespace(logits=odds(int(ids) + 1)[:, None])


def odds(token):
    return torch.nn.functional.one_hot(torch.tensor([token]), 32).float()


@pytest.mark.parametrize("ends", [END, [END, 31]])
def test_it_stops_with_the_token_that_ends_a_text(ends):
    model = Counting(ends)
    assert continued(model, odds(6), "cache", 20) == (6, 7, 8, 9)
    assert model.given == [(6, "cache"), (7, "cache"), (8, "cache")]


def test_it_decodes_as_many_tokens_as_asked_for_and_no_more():
    model = Counting(None)
    assert continued(model, odds(2), None, 3) == (2, 3, 4)
    assert len(model.given) == 2


def text_of(tokens):
    return " ".join(map(str, tokens))


def test_a_row_says_how_far_both_sides_agree():
    row = continuation_row((4, 5, 7), (4, 5, 6, 8), "run", text_of)
    assert (row.tokens, row.same_tokens, row.same_text) == (4, 2, "4 5")
    assert (row.dense_text, row.routed_text) == ("4 5 6 8", "4 5 7")
    assert continuation_row((4,), (4, 5), "run", text_of).same_tokens == 1
    assert continuation_row((4, 5), (4, 5), "run", text_of).same_tokens == 2
    row = continuation_row((4, 5), (4, 6), "run", None)  # the prompt's text is not kept
    assert (row.same_text, row.dense_text, row.routed_text, row.same_tokens) == (None, None, None, 1)


def loaded(free, max_tokens=1_000):
    class Loaded(LoadedModel):
        def free_bytes(self):
            return free

    return Loaded(None, None, "m", "", "", max_tokens, 2, 4, 2, 16, "cpu", "float32")


def test_a_cache_that_would_take_much_of_the_memory_is_not_kept():
    cache = 2 * 2 * 2 * 16 * 4 * 100  # keys and values, layers, heads, head size, bytes, tokens
    assert loaded(0).cache_bytes(100) == cache
    assert analyze.steps_after(loaded(4 * cache), 100) == CONTINUED
    assert analyze.steps_after(loaded(4 * cache - 1), 100) == 0


def test_a_prompt_is_not_continued_beyond_what_the_model_reads():
    assert analyze.steps_after(loaded(1 << 40), 990) == 10
    assert analyze.steps_after(loaded(1 << 40), 1_000) == 0
