"""Decoding several prefills of one prompt in one batch, against plain greedy decoding, on a model made up of a table:
the next token is a hash of the prefill and all tokens before. CPU.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from routesparse.engine.lab.studies.selection.together import (
    Asked,
    Prefilled,
    answers_together,
)

PROMPT, VOCABULARY, END = 5, 7, 6


def next_token(prefill, tokens, noise):
    """Mostly the same whatever came before, so that guesses are often right; END is rare."""
    draw = np.random.default_rng([prefill, len(tokens), *(tokens[-2:] if noise else ())])
    return int(draw.choice(VOCABULARY, p=[0.2, 0.2, 0.2, 0.1, 0.1, 0.15, 0.05]))


class Body:
    """A body whose cache holds the tokens that were read; counts its passes."""

    def __init__(self, noise):
        self.noise, self.passes = noise, 0

    def __call__(self, ids, *, past_key_values):
        self.passes += 1
        new = ids[:, None, :, None].float()
        keys, _ = past_key_values.update(new, new, 0)
        hidden = torch.zeros(*ids.shape, VOCABULARY)
        for row, read in enumerate(keys[:, 0, :, 0].long().tolist()):
            for place in range(ids.shape[1]):
                upto = read[: len(read) - ids.shape[1] + place + 1]
                hidden[row, place, next_token(upto[0], upto[PROMPT:], self.noise)] = 9.0
        return SimpleNamespace(last_hidden_state=hidden)


def prefilled(number, noise):
    cache = DynamicCache()
    tokens = torch.full((1, 1, PROMPT, 1), float(number))
    cache.update(tokens, tokens, 0)
    hidden = torch.zeros(1, VOCABULARY)
    hidden[0, next_token(number, [], noise)] = 9.0
    return Prefilled(hidden, cache)


def greedy(number, limit, noise):
    text = []
    while len(text) < limit:
        token = next_token(number, text, noise)
        if token == END:
            break
        text.append(token)
    return text


def log_p(hidden):
    return hidden.log_softmax(-1)


@pytest.mark.parametrize("noise", [False, True], ids=["easy guesses", "hard guesses"])
@pytest.mark.parametrize("limit", [3, 12])
@pytest.mark.parametrize("length", [1, 6])
def test_each_answer_is_that_of_plain_greedy_decoding(noise, limit, length):
    numbers = list(range(10, 21))
    gold = greedy(numbers[0], length, noise)
    gold = (gold + [1] * length)[:length]
    asked = Asked(PROMPT, gold, limit, END, past_gold=True)
    body = Body(noise)
    found = answers_together(body, log_p, [prefilled(one, noise) for one in numbers], asked)
    expected = [greedy(one, limit, noise) for one in numbers]
    assert [one.ids for one in found] == expected
    assert len({tuple(one) for one in expected}) > 5
    assert body.passes <= limit + 1, "one pass serves all prefills"
    # What the gold answer costs: little where every token is the first choice.
    for number, one in zip(numbers, found, strict=True):
        right = [next_token(number, gold[:i], noise) == token for i, token in enumerate(gold)]
        assert (one.nats < 0.01 * length) == all(right)


def test_where_the_answer_is_the_gold_one_decoding_ends_with_it():
    first, other = [number for number in range(10, 99) if len(greedy(number, 12, True)) == 12][:2]
    gold = greedy(first, 6, True)
    prefills = [prefilled(first, True), prefilled(other, True)]
    found = answers_together(Body(True), log_p, prefills, Asked(PROMPT, gold, 12, END, past_gold=False))
    assert found[0].ids == gold and found[1].ids == greedy(other, 12, True)


def test_a_text_without_an_end_token_is_as_long_as_its_limit():
    found = answers_together(
        Body(True), log_p, [prefilled(12, True)], Asked(PROMPT, [0], 9, -1, past_gold=True)
    )
    assert len(found[0].ids) == 9
