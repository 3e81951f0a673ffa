"""LongRoPE's search on one model: how much to slow each rotary pair, by evolution on the loss of long text.

    python -m routesparse.engine.evaluation.studies.rope_search --seed 1 --out data/results/rope_search_h200.json

LongRoPE (Ding et al., arXiv 2402.13753, section 3 and algorithm 1) divides each theta_i by a factor of its own, between
1 and 1.25 s for a stretch by s and none smaller than that of a faster pair. It searches these factors: the population
begins with Position Interpolation, NTK-aware interpolation and YaRN; mutants and children of the best are added, and
what has the least perplexity on text of the aimed length wins. The same here, from --trained to --tokens.

Departures: tens of candidates in place of the paper's thousands; its first n tokens without a stretch are absent, which
transformers does not have; what queries and keys are multiplied by (YaRN's attention factor) is searched too, so that
YaRN itself is among the candidates; a mutated factor is multiplied by exp(N(0, --step^2)) and the list sorted, where
the paper draws again until it is in order.

The loss is the mean over the positions behind --trained of one window of the calibration split. The windows after it,
which no choice saw, say whether what was found is better, at the aimed length and cut to half of it. No document of the
test split is read.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine import plain_files
from routesparse.engine.errors import ConfigError, InputError, ModelError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.selection.prompts import DEVELOPMENT_SEED, documents
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.models.rope import RopeScaling

BEYOND = 1.25  # the largest factor, in stretches
MOST_ATTENTION = 1.5
SHARE = 0.3  # of a mutant's factors that change
PARENTS, MUTANTS, CHILDREN = 4, 5, 3  # of a round
CHUNK = 8_192  # positions whose logits exist at a time
MOST_BYTES = 1 << 24  # of a result file


@dataclass(frozen=True)
class Candidate:
    """factors: of the rotary pairs, fastest first; attention: what queries and keys are multiplied by."""

    factors: tuple[float, ...]
    attention: float

    def request(self, trained: int, tokens: int) -> RopeScaling:
        """As transformers takes it: prompts of at most ``trained`` tokens keep their positions."""
        return RopeScaling.of(
            {
                "rope_type": "longrope",
                "factor": tokens / trained,
                "original_max_position_embeddings": trained,
                "short_factor": [1.0] * len(self.factors),
                "long_factor": list(self.factors),
                "attention_factor": self.attention,
            }
        )


class Losses:
    """Mean nats of a window's tokens behind ``trained``, under a candidate's positions."""

    def __init__(self, loaded: LoadedModel, trained: int) -> None:
        """Errors: ModelError where the model's positions are rescaled already, or not rotary."""
        self._rotary: Any = getattr(loaded.model.model, "rotary_emb", None)
        if getattr(self._rotary, "rope_type", None) != "default":
            raise ModelError(f"model {loaded.name!r} has no plain rotary positions; nothing is searched")
        self._model, self._trained = loaded.model, trained
        self._plain = loaded.model.model.rotary_emb.inv_freq.detach().clone()
        self._head = loaded.model.lm_head.weight.float().T

    @torch.no_grad()
    def __call__(self, candidate: Candidate, ids: list[int]) -> float:
        given = torch.tensor([ids], device=self._plain.device)
        factors = torch.tensor(candidate.factors, dtype=self._plain.dtype, device=self._plain.device)
        try:
            self._rotary.inv_freq.copy_(self._plain / factors)
            self._rotary.attention_scaling = candidate.attention
            hidden = self._model.model(given, use_cache=False).last_hidden_state[0]
        finally:
            self._rotary.inv_freq.copy_(self._plain)
            self._rotary.attention_scaling = 1.0
        total = 0.0
        for place in torch.arange(self._trained, len(ids), device=given.device).split(CHUNK):
            log_p = (hidden[place - 1].float() @ self._head).log_softmax(-1)
            total -= float(log_p.gather(-1, given[0, place, None]).sum())
        return total / (len(ids) - self._trained)


def main(argv: list[str] | None = None) -> None:
    """Search until the time is up, then compare on windows that the search did not see."""
    parser = study.parser(__doc__)
    parser.add_argument("--trained", type=int, default=65_536, help="tokens of training")
    parser.add_argument("--tokens", type=int, default=262_144, help="the aimed length")
    parser.add_argument("--step", type=float, default=0.15, help="a mutation's standard deviation")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--held-out", type=int, default=2, help="windows to compare on at the end, at most")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start no round after it")
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    loaded = load_model(arguments.model)
    names, (searched, *held_out) = windows(loaded, arguments.data, arguments.tokens)
    begun = starts(loaded, arguments.trained, arguments.tokens)
    losses = Losses(loaded, arguments.trained)
    result = {
        **study.header(loaded, arguments),
        **{"trained": arguments.trained, "tokens": arguments.tokens, "documents": names},
        "positions": arguments.tokens - arguments.trained,
    }
    search = Search(begun, lambda one: losses(one, searched), arguments)
    for tried in search.rounds(deadline):
        result |= search.told() | {"rope": search.best.request(arguments.trained, arguments.tokens).values}
        study.note(
            f"{tried} candidates, best {search.cost[search.best]:.5f} nats ({search.origin[search.best]})"
        )
        study.save(arguments.out, result)
    result["held_out"] = list(
        compared(losses, {**begun, "searched": search.best}, held_out[: arguments.held_out], arguments)
    )
    study.save(arguments.out, result)


class Search:
    """The population: every candidate that was measured, its cost and where it came from."""

    def __init__(
        self,
        begun: dict[str, Candidate],
        measure: Callable[[Candidate], float],
        arguments: argparse.Namespace,
    ) -> None:
        self._begun, self._measure = begun, measure
        self._rng = np.random.default_rng(arguments.seed)
        self._step, self._most = arguments.step, arguments.rounds
        self._longest = max(1.0, BEYOND * arguments.tokens / arguments.trained)
        self.cost: dict[Candidate, float] = {}
        self.origin: dict[Candidate, str] = {}

    @property
    def best(self) -> Candidate:
        return min(self.cost, key=self.cost.__getitem__)

    def rounds(self, deadline: float) -> Iterator[int]:
        """How many candidates were measured, after each round; the starting points are the first one."""
        for name, one in self._begun.items():
            self._add(one, name)
        yield len(self.cost)
        for _ in range(self._most):
            if time.time() > deadline:
                return
            parents = sorted(self.cost, key=self.cost.__getitem__)[:PARENTS]
            for _ in range(MUTANTS):
                self._add(self.mutant(parents[self._rng.integers(len(parents))]), "mutant")
            for _ in range(CHILDREN):
                first, second = self._rng.choice(len(parents), 2, replace=len(parents) < 2)
                self._add(self.child(parents[first], parents[second]), "child")
            yield len(self.cost)

    def told(self) -> dict[str, Any]:
        """For the file: starting points with their loss, every candidate's loss in order, and the best one."""
        return {
            "starts": {name: self.cost[one] for name, one in self._begun.items()},
            "tried": [[self.origin[one], cost] for one, cost in self.cost.items()],
            "nats": self.cost[self.best],
            "best_from": self.origin[self.best],
        }

    def mutant(self, parent: Candidate) -> Candidate:
        """A share of the factors, and as often the attention's, a little larger or smaller."""
        factors = np.array(parent.factors)
        changed = self._rng.random(len(factors)) < SHARE
        factors = np.where(changed, factors * np.exp(self._rng.normal(0, self._step, len(factors))), factors)
        attention = parent.attention
        if self._rng.random() < SHARE:
            attention *= math.exp(self._rng.normal(0, self._step / 5))
        return self._made(factors, attention)

    def child(self, first: Candidate, second: Candidate) -> Candidate:
        """Each factor from either parent."""
        either = self._rng.random(len(first.factors)) < 0.5
        attention = (first, second)[self._rng.integers(2)].attention
        return self._made(np.where(either, first.factors, second.factors), attention)

    def _made(self, factors: np.ndarray, attention: float) -> Candidate:
        kept = np.sort(np.clip(factors, 1.0, self._longest)).round(4)
        return Candidate(tuple(kept.tolist()), round(min(max(attention, 1.0), MOST_ATTENTION), 4))

    def _add(self, one: Candidate, origin: str) -> None:
        if one not in self.cost:
            self.cost[one], self.origin[one] = self._measure(one), origin


def windows(loaded: LoadedModel, data: Path, tokens: int) -> tuple[list[str], list[list[int]]]:
    """Names of the calibration split's books, and all windows of ``tokens`` of them, one behind the other.

    Errors: InputError where they make fewer than two.
    """
    split, found = documents(data, "prose", DEVELOPMENT_SEED)
    text = "\n\n".join(one.text for one in found)
    ids = loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    begin = loaded.tokenizer.bos_token_id
    begun = [] if begin is None else [begin]
    room = tokens - len(begun)
    made = [[*begun, *ids[at : at + room]] for at in range(0, len(ids) - room + 1, room)]
    if len(made) < 2:
        raise InputError(
            f"the {split} split has {len(ids):,} tokens of prose; pass --tokens of at most half of them"
        )
    return [one.name for one in found], made


def starts(loaded: LoadedModel, trained: int, tokens: int) -> dict[str, Candidate]:
    """The published points that a search begins with; the *file's* stretch what the model's file claims to read."""
    plain = Candidate((1.0,) * len(loaded.model.model.rotary_emb.inv_freq), 1.0)
    made = {"as trained": plain}
    for name, original in (("", trained), (", the file's context", loaded.max_tokens)):
        if original < tokens and (not name or original != trained):
            factor = tokens / original
            spread = np.linspace(0, 1, len(plain.factors))
            ntk = Candidate(tuple((factor**spread).round(4).tolist()), 1.0)
            made |= {
                f"Position Interpolation{name}": _of(loaded, "linear", factor, original),
                f"NTK-aware{name}": ntk,
                f"YaRN{name}": _of(loaded, "yarn", factor, original),
            }
    return made


def _of(loaded: LoadedModel, kind: str, factor: float, original: int) -> Candidate:
    """What transformers makes of a request, as factors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = copy.deepcopy(loaded.model.config)
    request = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    RopeScaling.of(request).extend(config, loaded.name)
    turns, attention = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    plain = loaded.model.model.rotary_emb.inv_freq.float().cpu()
    factors = (plain / turns.float()).double().numpy().round(4)
    return Candidate(tuple(factors.tolist()), round(float(attention), 4))


def compared(
    losses: Losses, named: dict[str, Candidate], held_out: list[list[int]], arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Every named candidate on the windows that the search did not see, at the aimed length and at half of it."""
    for tokens in (arguments.tokens, arguments.tokens // 2):
        if tokens > arguments.trained:
            for name, one in named.items():
                nats = [losses(one, ids[:tokens]) for ids in held_out]
                yield {"name": name, "tokens": tokens, "nats": nats}
                study.note(f"held out, {tokens:,} tokens, {name}: {np.mean(nats):.5f} nats")


def read_scaling(path: Path) -> RopeScaling:
    """What a search found. Errors: InputError, ConfigError for a file that holds no scaling."""
    try:
        found = json.loads(plain_files.read_bounded(path, MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} can't be read ({error}); pass a file of rope_search.py") from None
    if not isinstance(found, dict) or not isinstance(found.get("rope"), dict):
        raise ConfigError(f"{path} holds no scaling; pass a file of rope_search.py")
    return RopeScaling.of(found["rope"])


if __name__ == "__main__":
    study.run(main)
