"""Prefills prompts by a method and compares with dense attention (engine/calibrate/beside_dense.py).

Of prompts with a gold answer also the share of the gold strings in the greedy answer. Decoding is dense.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from routesparse.engine import paths
from routesparse.engine.calibrate.beside_dense import CHUNK, BesideDense, Probe, Run, Text
from routesparse.engine.calibrate.fisher import head_fisher
from routesparse.engine.calibrate.fitting import FISHER_TEXTS, FISHER_TOKENS, HEAD_TEXTS
from routesparse.engine.calibrate.head_floors import head_curves, head_floors
from routesparse.engine.calibration import fitted
from routesparse.engine.config import RouterConfig
from routesparse.engine.device.broken import broken_device
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab import study
from routesparse.engine.lab.generators.samples import score_all
from routesparse.engine.lab.rivals.kascade import KascadeSearch
from routesparse.engine.lab.rivals.minference import MInferenceSearch
from routesparse.engine.lab.rivals.rule import Rule, RuleRouter, Selection, View
from routesparse.engine.lab.studies.selection import foretold
from routesparse.engine.lab.studies.selection.methods import Method, learnt_on, usable, varied
from routesparse.engine.lab.studies.selection.prompts import DEVELOPMENT_SEED, Item, Prompt, Prompts
from routesparse.engine.lab.studies.selection.together import Asked, Prefilled, answers_together, decoded
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.runtime.replay import Keeping, stretches

SEARCH_ROWS = 256  # of a calibration prompt
SEARCH_TOKENS, SEARCH_WINDOWS = 32_768, 2  # of MInference's offline search
HELD_SHARE, HELD_BYTES = 0.025, 1 << 30  # of a GPU's memory, or on a CPU: caches that are decoded together
SLACK = 8  # greedy tokens past the gold answer's length that may still bring a gold string
Answer = tuple[str, dict[str, float]]  # a greedy answer, and its run's numbers


def why_failed(error: Exception) -> str:
    """What a row says in place of numbers, so that the others go on; raises the error where it broke the device.

    Memory is given back: the error may have been for want of it.
    """
    if broken_device() is not None:
        raise error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return f"{type(error).__name__}: {error}"[:500]


class Bench(BesideDense):
    """Measures methods: rules on our kernel, and our own policies."""

    def __init__(
        self, loaded: LoadedModel, *, extras: bool = True, captured: bool = True, stretches: int = 0
    ) -> None:
        """extras: rules read what all our plans read, too. stretches: that are replayed (foretold.py)."""
        super().__init__(loaded, captured=captured)
        self._tokenizer, self._extras, self._stretches = loaded.tokenizer, extras, stretches
        self._hidden: Tensor | None = None  # of the last prefill, where something is foretold of it

    def run(self, prompt: Prompt, method: Method) -> Run:
        """The router that serves a prompt by a method, and what it reads."""
        if method.rule is None:
            return self.session(prompt, method.options)
        return self._by_rule(prompt, method.rule)

    def _by_rule(self, prompt: Prompt, rule: Rule) -> Run:
        taken: list[Laps] = []

        def timed(view: View) -> Selection | None:
            laps = Laps(self._device)
            found = rule(view)
            laps.lap()
            taken.append(laps)
            return found

        router = RuleRouter(timed, extras=self._extras, salt=prompt.name, counted=True)

        def read() -> dict[str, float]:
            area = router.density()
            return {
                # Logits are half of a block's work, its values the other half.
                "area": (1 + area) / 2 if getattr(rule, "scores_every_block", False) else area,
                "select_ms": sum(sum(laps.elapsed_us()) for laps in taken) / 1e3,
                "attention_ms": router.attention_us() / 1e3,
            }

        return Run(router, read)

    @torch.no_grad()
    def measure(self, prompt: Prompt, method: Method) -> dict[str, Any]:
        """Area, loss and score of one method on one prompt."""
        run = self.run(prompt, method)
        if self._stretches and prompt.is_text:
            return self._foretold(prompt, run)
        found, numbers = self.beside_dense(prompt, run)
        if not prompt.answer:
            return numbers if prompt.is_text else numbers | {"score": numbers["right"]}
        asked = self._asked(prompt, len(prompt.answer) + SLACK, past_gold=False)
        choices = self.log_p(found.hidden).argmax(-1).tolist()
        (ids,) = decoded(self._model.model, self.log_p, found.cache, [choices], asked)
        return numbers | {"score": score_all(self._decoded(ids), prompt.gold)}

    def _foretold(self, prompt: Prompt, run: Run) -> dict[str, Any]:
        # The last row of a text has no next token to be wrong about.
        rows = stretches(len(prompt.ids) - 1, self._stretches, foretold.REPLAYED, prompt.seed).flatten()
        keeping = Keeping(run.router)
        _, numbers = self.beside_dense(prompt, Run(keeping, run.read))
        assert self._hidden is not None
        hidden, self._hidden = self._hidden, None
        at, dense = torch.from_numpy(rows).to(self._device), self._references[prompt.name]
        return numbers | foretold.of_text(self._model, self.log_p, prompt, hidden, dense, keeping, at)

    def prefill(self, text: Text, run: Run) -> tuple[Any, dict[str, float]]:
        """See ``BesideDense.prefill``."""
        out, numbers = super().prefill(text, run)
        if self._stretches:
            self._hidden = out.last_hidden_state[0]
        return out, numbers

    @torch.no_grad()
    def answers(
        self, prompt: Prompt, chosen: Sequence[Method], new_tokens: int, *, past_gold: bool
    ) -> list[Answer | str]:
        """Each method's greedy answer of at most ``new_tokens``, and the gold answer's nats under the same prefill,
        decoded together as far as memory allows; of what failed why, in its place. new_tokens 0: nothing is decoded.

        past_gold: go on where the answer is the gold one so far; False: return that, and otherwise read at most SLACK
        tokens past its length.
        """
        limit = new_tokens if past_gold else min(new_tokens, len(prompt.answer) + SLACK)
        asked = self._asked(prompt, limit, past_gold)
        found: dict[int, Answer | str] = {}
        held: dict[int, tuple[Prefilled, dict[str, float]]] = {}
        for place, method in enumerate(chosen):
            try:
                out, numbers = self.prefill(prompt, self.run(prompt, method))
            except Exception as error:  # noqa: BLE001 - a rule of any kind may fail in any way
                found[place] = why_failed(error)
                continue
            held[place] = Prefilled(out.last_hidden_state[0, -1:].clone(), out.past_key_values), numbers
            del out
            if (len(held) + 1) * held[place][0].bytes > self._most_held():
                found |= self._answered(held, asked)
                held = {}
        found |= self._answered(held, asked)
        return [found[place] for place in range(len(chosen))]

    def _asked(self, prompt: Prompt, limit: int, past_gold: bool) -> Asked:
        end = self._tokenizer.eos_token_id
        return Asked(len(prompt.ids), prompt.answer, limit, -1 if end is None else end, past_gold)

    def _answered(
        self, held: dict[int, tuple[Prefilled, dict[str, float]]], asked: Asked
    ) -> dict[int, Answer | str]:
        if not held:
            return {}
        try:
            answered = answers_together(
                self._model.model, self.log_p, [one for one, _ in held.values()], asked
            )
        except Exception as error:  # noqa: BLE001
            return dict.fromkeys(held, why_failed(error))
        return {
            place: (self._decoded(a.ids), numbers | {"gold_nats": a.nats, "gold_tokens": len(asked.gold)})
            for (place, (_, numbers)), a in zip(held.items(), answered, strict=True)
        }

    def _most_held(self) -> float:
        if self._device.type != "cuda":
            return HELD_BYTES
        return HELD_SHARE * torch.cuda.get_device_properties(self._device).total_memory

    @torch.no_grad()
    def losses(self, prompt: Prompt, method: Method) -> tuple[Tensor, dict[str, float]]:
        """Nats of each asked token, float32 [R] on the CPU, from the prefill's own hidden states."""
        found = self.forward(prompt, self.run(prompt, method))
        places = torch.arange(len(found.targets), device=self._device).split(CHUNK)
        nats = [-self.log_p(found.hidden[at]).gather(-1, found.targets[at, None])[:, 0] for at in places]
        return torch.cat(nats).cpu(), found.run

    @torch.no_grad()
    def timed(self, prompt: Prompt, method: Method) -> dict[str, float]:
        """One prefill's area and times, with the cache kept where the prompt has an answer."""
        return self.prefill(prompt, self.run(prompt, method))[1]

    def usable(self, wanted: Sequence[str], lengths: Sequence[int], data: Path, kept: Path) -> list[Method]:
        """The methods that can be made, each with what it learns beforehand; floors are kept in a folder."""
        fit = fitted.of_model(self._loaded.revision)
        learnt: dict[str, dict[str, Any]] = {}
        names = [text.partition("=")[0] for text in wanted]
        maker = Prompts(data, self._tokenizer, DEVELOPMENT_SEED)
        for name in names:
            if varied(name)[0] == "routesparse_fitted":
                learnt[name] = {"head_floors": None if fit is None else fit.head_floors}
            if name in learnt and (on := learnt_on(name)):
                file = kept / f"floors-{on[0]}-{on[1]}-{self._loaded.revision[:12]}.json"
                if not file.exists():
                    paths.write_json(file, {"head_floors": self._floors(maker, *on)})
                learnt[name] = {"head_floors": tuple(map(tuple, json.loads(file.read_text())["head_floors"]))}
        return usable(wanted, learnt | self._searched_for(names, min(max(lengths), SEARCH_TOKENS), maker))

    def _floors(self, maker: Prompts, domain: str, tokens: int) -> list[list[float]]:
        """Head floors [L, H] of some texts, as a fit has them (calibrate/fitting.py)."""
        texts = [maker.make(Item(f"text:{domain}", tokens, at, DEVELOPMENT_SEED)) for at in range(HEAD_TEXTS)]
        few = (one.ids[:FISHER_TOKENS] for one in texts[:FISHER_TEXTS])
        weights = head_fisher(self._model, few, DEVELOPMENT_SEED)
        curves = head_curves(self, texts)
        if curves is None:
            raise ConfigError(f"texts of {tokens:,} tokens are not routed; learn on longer ones")
        return head_floors(*curves, weights).round(4).tolist()

    def _searched_for(self, names: Sequence[str], length: int, maker: Prompts) -> dict[str, dict[str, Any]]:
        """What the offline searches of rules find on development texts, by name, for those that are named."""
        found = {}
        searches: dict[str, tuple[Callable[[], MInferenceSearch | KascadeSearch], int]] = {
            "minference": (functools.partial(MInferenceSearch, rows=SEARCH_ROWS), SEARCH_WINDOWS),
            "kascade": (KascadeSearch, 1),
        }
        for name in dict.fromkeys(names):
            if varied(name)[0] not in searches:
                continue
            make, windows = searches[varied(name)[0]]
            search, (domain, tokens) = make(), learnt_on(name) or ("prose", length)
            try:
                for index in range(windows):
                    prompt = maker.make(Item(f"text:{domain}", tokens, index, DEVELOPMENT_SEED))
                    self.prefill(prompt, self._by_rule(prompt, search))
                found[name] = {"heads": search.best()}
            except ConfigError as error:
                study.note(f"{name} runs without its offline search: {error}")
        return found

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def probes_of(chosen: Iterable[Method]) -> set[Probe]:
    """Whose latency profiles our own of these methods route by."""
    return {method.options.get("probe", RouterConfig.probe) for method in chosen if method.rule is None}
