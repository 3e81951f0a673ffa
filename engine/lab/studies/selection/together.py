"""Greedy answers behind several prefills of one prompt, decoded in one batch.

Decoding is dense whatever served the prefill, so prefills of one prompt differ in their caches alone. A pass over one
prefill's cache leaves a GPU nearly idle: its few queries are one block of work a head. So the caches are stacked,
[B, Hkv, n, D], and the gold answer and all that is decoded run for all B at once.

Choices along the gold answer are greedy up to the first that differs from it. From there on each pass reads a guess of
all further tokens and is right up to the first that it changes (Jacobi iteration). A pass begins where the row that is
furthest behind stands; the others' tokens there are final, so that reading them again changes nothing. What comes out
is what decoding each prefill alone, token by token, gives, up to the rounding of matrix products of another size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache


@dataclass(frozen=True)
class Prefilled:
    """hidden [1, hidden]: at the prompt's last token. cache: of the prompt's n tokens."""

    hidden: Tensor
    cache: Any

    @property
    def bytes(self) -> int:
        """That the cache holds."""
        return sum(x.nbytes for layer in self.cache.layers for x in (layer.keys, layer.values))


@dataclass(frozen=True)
class Asked:
    """What is decoded behind a prompt of ``tokens``: at most ``limit`` tokens; ``end`` ends a text, -1: nothing does.

    A limit of 0: nothing is decoded. gold: the reference answer's tokens, at least one. past_gold: go on where the
    answer is the gold one so far.
    """

    tokens: int
    gold: list[int]
    limit: int
    end: int
    past_gold: bool


@dataclass(frozen=True)
class Answered:
    """ids: the greedy answer. nats: of the gold answer."""

    ids: list[int]
    nats: float


@dataclass
class _Row:
    """One prefill's text in the making: its first ``right`` tokens are final."""

    place: int
    text: list[int]
    right: int

    def ended(self, end: int) -> bool:
        return self.right >= len(self.text) or end in self.text[: self.right]

    def take(self, choice: Sequence[int]) -> None:
        """What a pass chose from ``right`` on."""
        before = self.text[self.right :]
        changed = next((i for i, (a, b) in enumerate(zip(before, choice, strict=True)) if a != b), None)
        self.text[self.right :] = choice
        self.right = len(self.text) if changed is None else self.right + changed + 1


def answers_together(
    body: Any, log_p: Callable[[Tensor], Tensor], prefills: Sequence[Prefilled], asked: Asked
) -> list[Answered]:
    """Each prefill's greedy answer and the gold answer's nats; the prefills' caches are used up.

    body: the model without its head, called with ids and ``past_key_values``; log_p: hidden states [..., hidden] to
    log-probabilities [..., vocabulary].
    """
    cache = stacked([one.cache for one in prefills])
    hidden = torch.stack([one.hidden for one in prefills])  # [B, 1, hidden]
    gold = torch.tensor(asked.gold, device=hidden.device)
    if len(gold) > 1:
        read = gold[None, :-1].expand(len(prefills), -1)
        hidden = torch.cat((hidden, body(read, past_key_values=cache).last_hidden_state), 1)
    found = log_p(hidden)  # [B, answer, vocabulary]
    nats = (-found.gather(-1, gold[None, :, None].expand(len(prefills), -1, -1))).sum((1, 2)).tolist()
    if asked.limit == 0:
        return [Answered([], cost) for cost in nats]
    choices = found.argmax(-1).tolist()
    return [
        Answered(ids, cost)
        for ids, cost in zip(decoded(body, log_p, cache, choices, asked), nats, strict=True)
    ]


def stacked(caches: Sequence[Any]) -> DynamicCache:
    """One cache whose batch is all of them; theirs are emptied layer by layer, so that little exists twice."""
    made = DynamicCache()
    for number in range(len(caches[0].layers)):
        layers = [cache.layers[number] for cache in caches]
        keys, values = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("keys", "values"))
        for layer in layers:
            layer.keys = layer.values = None
        made.update(keys, values, number)
    return made


def decoded(
    body: Any, log_p: Callable[[Tensor], Tensor], cache: Any, choices: list[list[int]], asked: Asked
) -> list[list[int]]:
    """The greedy answers. choices: of each row along the gold answer, which the cache holds but for its last token.

    asked: past its limit nothing is read; unless it goes past_gold, an answer that is the gold one ends with it.
    """
    rows = [_row(place, choice, asked) for place, choice in enumerate(choices)]
    active = [row for row in rows if not row.ended(asked.end)]
    batch = len(rows)
    while active:
        if 2 * len(active) <= batch or batch == len(rows):
            # Those that have ended are decoded along until they are half: choosing copies the whole cache.
            batch = _keep(cache, active, batch)
        at = [row.place for row in active]
        first = min(row.right for row in active)
        beyond = cache.get_seq_length() - (asked.tokens + first - 1)
        if beyond:
            cache.crop(-beyond)
        texts = [active[0].text[first - 1 : -1]] * batch
        for row in active:
            texts[row.place] = row.text[first - 1 : -1]
        out = body(torch.tensor(texts, device=_device(cache)), past_key_values=cache).last_hidden_state
        chosen = log_p(out).argmax(-1).tolist()
        for place, row in zip(at, active, strict=True):
            row.take(chosen[place][row.right - first :])
        active = [row for row in active if not row.ended(asked.end)]
    return [row.text[: row.text.index(asked.end)] if asked.end in row.text else row.text for row in rows]


def _row(place: int, choice: list[int], asked: Asked) -> _Row:
    """After the gold answer's pass. A row that is right all along has ended, unless its text may go on."""
    wrong = next((i for i, (a, b) in enumerate(zip(choice, asked.gold, strict=True)) if a != b), None)
    if wrong is None and not asked.past_gold:
        text = asked.gold[: asked.limit]
        return _Row(place, text, len(text))
    text = (choice + [max(asked.end, 0)] * (asked.limit - len(choice)))[: asked.limit]
    return _Row(place, text, len(choice) if wrong is None else wrong + 1)


def _keep(cache: Any, active: Sequence[_Row], batch: int) -> int:
    """Leave the active rows alone in the cache; returns how many."""
    if len(active) < batch:
        cache.batch_select_indices(torch.tensor([row.place for row in active], device=_device(cache)))
        for place, row in enumerate(active):
            row.place = place
    return len(active)


def _device(cache: Any) -> torch.device:
    return cache.layers[0].keys.device
