"""Prefills prompts by a method and compares with dense attention.

Of text and body tasks: at every asked position, from the prefill's own hidden states,
    KL = sum_v p_dense(v) (log p_dense(v) - log p(v)), in nats a token; first choices that agree; nats of the token.
Of the others: the same at the gold answer's tokens, which run as a second, dense chunk, and the share of the gold
strings in the greedy answer. Decoding is dense. Logits are float32 and made in chunks of positions; of the dense run
only hidden states are kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from routesparse.engine.audit.auditor import Auditor
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Computed
from routesparse.engine.device.broken import broken_device
from routesparse.engine.device.graphs import Graphs, Uncaptured
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab import study
from routesparse.engine.lab.rivals.rule import RuleRouter, Selection, View
from routesparse.engine.lab.studies.selection.methods import Method, find
from routesparse.engine.lab.studies.selection.prompts import DEVELOPMENT_SEED, Item, Prompt, Prompts
from routesparse.engine.lab.studies.selection.together import (
    Answered,
    Asked,
    Prefilled,
    answers_together,
)
from routesparse.engine.lab.training.samples import score_all
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.profiles.measure import NamedProfile, prepare_profile
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

SEGMENT_TOKENS = 131_072  # of the product: one segment a prompt
CHUNK = 4_096  # positions whose logits exist at a time
SEARCH_ROWS = 256  # of a calibration prompt
SEARCH_TOKENS, SEARCH_WINDOWS = 32_768, 2  # of MInference's offline search
HELD_SHARE, HELD_BYTES = 0.025, 1 << 30  # of a GPU's memory, or on a CPU: caches that are decoded together
SLACK = 8  # greedy tokens past the gold answer's length that may still bring a gold string
Profiles = Mapping[str, LatencyProfile]  # by the probe that they hold for


@dataclass(frozen=True)
class Outcome:
    """hidden [R, hidden]: at the positions that are compared, before the head. cache: of prompt and gold answer."""

    hidden: Tensor
    targets: Tensor  # int64 [R], the tokens that come next there
    cache: Any
    run: dict[str, float]


class Run:
    """One method on one prompt: its router, and what it read."""

    def __init__(
        self,
        method: Method,
        *,
        extras: bool,
        salt: str,
        seed: int,
        graphs: Graphs[Computed],
        device: torch.device,
        profile: LatencyProfile | NamedProfile,
        auditor: Auditor | None = None,
    ) -> None:
        self._laps: list[Laps] = []
        self._device = device
        if method.rule is None:
            config = RouterConfig(
                **{
                    "seed": seed,
                    "break_even_tokens": 0,
                    "segment_tokens": SEGMENT_TOKENS,
                    **method.options,
                }
            )
            self.router: AttentionRouter = RoutingSession(
                config, profile=profile, auditor=auditor, salt=salt, graphs=graphs
            )
        else:
            self._rule = method.rule
            self.router = RuleRouter(self._timed, extras=extras, salt=salt, counted=True)

    def _timed(self, view: View) -> Selection | None:
        laps = Laps(self._device)
        found = self._rule(view)
        laps.lap()
        self._laps.append(laps)
        return found

    def read(self) -> dict[str, float]:
        """area: the kept share of the causal area. All layers together, select_ms: of deciding what is read,
        attention_ms: of making the plan and of the kernel. Of our own policies also the share of heads and segments
        with a fallback."""
        if isinstance(self.router, RuleRouter):
            select_us = sum(sum(laps.elapsed_us()) for laps in self._laps)
            return {
                "area": self.router.density(),
                "select_ms": select_us / 1e3,
                "attention_ms": self.router.attention_us() / 1e3,
            }
        assert isinstance(self.router, RoutingSession)
        passes = self.router.trace.prompts[-1].passes
        select_us = sum(p.sum_of(name) for p in passes for name in ("probe_us", "index_us", "route_us"))
        area = sum(p.density for p in passes) / len(passes) if passes else 1.0
        attention_us = sum(p.kernel_us for p in passes)
        fell = [kind is not None for p in passes for d in p.decisions for kind in d.certified.fallback]
        return {
            "area": area,
            "select_ms": select_us / 1e3,
            "attention_ms": attention_us / 1e3,
            "fallback": sum(fell) / len(fell) if fell else 0.0,
        }


class Bench:
    """Measures methods against dense attention, which runs once a prompt; all references stay on the device."""

    segment_tokens = SEGMENT_TOKENS
    _auditor: Auditor | None = None  # of our own policies' sessions
    profiles: Profiles = MappingProxyType(
        {}
    )  # that our own policies route by; where one lacks: what the home holds

    def __init__(self, loaded: LoadedModel, *, extras: bool = True, captured: bool = True) -> None:
        """captured: decide by CUDA graphs, as the product does; False where processes share a GPU or lengths differ."""
        self._loaded = loaded
        self._model, self._tokenizer, self._extras = loaded.model, loaded.tokenizer, extras
        self._device = torch.device(loaded.device)
        self._head = loaded.model.lm_head.weight.float().T
        self._references: dict[str, Tensor] = {}
        self._graphs: Graphs[Computed] = Graphs() if captured else Uncaptured()

    def prepared(self, chosen: Iterable[Method]) -> Profiles:
        """The latency profile of each probe that our own of these methods use, measured here where none fits.

        It is for ``profiles`` of every process that measures with this one: each would find or measure its own while
        the others disturb it, and route otherwise. Errors: ProfileError.
        """
        probes = {method.options.get("probe", RouterConfig.probe) for method in chosen if method.rule is None}
        return {
            probe: prepare_profile("auto", self._loaded, RouterConfig(probe=probe))
            for probe in sorted(probes)
        }

    def forget(self) -> None:
        """Drop the references: measuring a prompt again runs dense attention again."""
        self._references.clear()

    @torch.no_grad()
    def measure(self, prompt: Prompt, method: Method) -> dict[str, float]:
        """Area, loss and score of one method on one prompt."""
        found, numbers = self._beside_dense(prompt, method)
        if not prompt.answer:
            return numbers if prompt.is_text else numbers | {"score": numbers["right"]}
        text = self._decoded(self._greedy(prompt, found, len(prompt.answer) + SLACK))
        return numbers | {"score": score_all(text, prompt.gold)}

    @torch.no_grad()
    def compared(self, prompt: Prompt, method: Method) -> dict[str, float]:
        """Area and loss of one method on one prompt; of a question over its gold answer's tokens, none decoded."""
        return self._beside_dense(prompt, method)[1]

    def _beside_dense(self, prompt: Prompt, method: Method) -> tuple[Outcome, dict[str, float]]:
        name = prompt.item.name
        if name not in self._references:
            self._references[name] = self._forward(prompt, find("dense", 1)).hidden
        found = self._forward(prompt, method)
        return found, found.run | self.compare(self._references[name], found.hidden, found.targets)

    @torch.no_grad()
    def answer(
        self, prompt: Prompt, method: Method, new_tokens: int, *, past_gold: bool
    ) -> tuple[str, dict[str, float]]:
        """The greedy answer of at most ``new_tokens``, and the gold answer's nats under the same prefill.

        past_gold: go on where the answer is the gold one so far; False: return that, and otherwise read at most SLACK
        tokens past its length.
        """
        found = self._forward(prompt, method)
        nats = -self._log_p(found.hidden).gather(-1, found.targets[:, None])
        limit = new_tokens if past_gold else min(new_tokens, len(prompt.answer) + SLACK)
        text = self._decoded(self._greedy(prompt, found, limit, past_gold=past_gold))
        return text, found.run | {"gold_nats": float(nats.sum()), "gold_tokens": len(prompt.answer)}

    @torch.no_grad()
    def answers(
        self, prompt: Prompt, chosen: Sequence[Method], new_tokens: int, *, past_gold: bool
    ) -> list[tuple[str, dict[str, float]] | Exception]:
        """``answer`` of each method, decoded together as far as memory allows; what failed, in its place."""
        limit = new_tokens if past_gold else min(new_tokens, len(prompt.answer) + SLACK)
        end = self._tokenizer.eos_token_id
        asked = Asked(len(prompt.ids), prompt.answer, limit, -1 if end is None else end, past_gold)
        found: dict[int, tuple[str, dict[str, float]] | Exception] = {}
        held: dict[int, tuple[Prefilled, dict[str, float]]] = {}
        for place, method in enumerate(chosen):
            try:
                out, numbers = self._prefill(prompt, method)
            except Exception as error:
                if broken_device() is not None:
                    raise
                found[place] = error
                self._give_back()
                continue
            held[place] = Prefilled(out.last_hidden_state[0, -1:].clone(), out.past_key_values), numbers
            del out
            if (len(held) + 1) * held[place][0].bytes > self._most_held():
                found |= self._answered(held, asked)
                held = {}
        found |= self._answered(held, asked)
        return [found[place] for place in range(len(chosen))]

    def _answered(
        self, held: dict[int, tuple[Prefilled, dict[str, float]]], asked: Asked
    ) -> dict[int, tuple[str, dict[str, float]] | Exception]:
        if not held:
            return {}
        try:
            answered: list[Answered] = answers_together(
                self._model.model, self._log_p, [one for one, _ in held.values()], asked
            )
        except Exception as error:
            if broken_device() is not None:
                raise
            self._give_back()
            return dict.fromkeys(held, error)
        return {
            place: (self._decoded(a.ids), numbers | {"gold_nats": a.nats, "gold_tokens": len(asked.gold)})
            for (place, (_, numbers)), a in zip(held.items(), answered, strict=True)
        }

    def _most_held(self) -> float:
        if self._device.type != "cuda":
            return HELD_BYTES
        return HELD_SHARE * torch.cuda.get_device_properties(self._device).total_memory

    def _give_back(self) -> None:
        """After an error, which may have been for want of memory."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def losses(self, prompt: Prompt, method: Method) -> tuple[Tensor, dict[str, float]]:
        """Nats of each asked token, float32 [R] on the CPU, from the prefill's own hidden states."""
        found = self._forward(prompt, method)
        places = torch.arange(len(found.targets), device=self._device).split(CHUNK)
        nats = [-self._log_p(found.hidden[at]).gather(-1, found.targets[at, None])[:, 0] for at in places]
        return torch.cat(nats).cpu(), found.run

    def searched_for(
        self, wanted: Sequence[str], lengths: Sequence[int], data: Path
    ) -> dict[str, dict[str, Any]]:
        """What MInference's offline search finds on development prose, where ``wanted`` names it."""
        if not any(text.partition("=")[0] == "minference" for text in wanted):
            return {}
        maker = Prompts(data, self._tokenizer, DEVELOPMENT_SEED)
        length = min(max(lengths), SEARCH_TOKENS)
        windows = [Item("text:prose", length, index, DEVELOPMENT_SEED) for index in range(SEARCH_WINDOWS)]
        try:
            return {"minference": {"heads": self.searched(map(maker.make, windows))}}
        except (ImportError, ConfigError) as error:
            study.note(f"minference runs without its offline search: {error}")
            return {}

    @torch.no_grad()
    def searched(self, calibration: Iterable[Prompt]) -> Any:
        """MInference's offline search on prompts of which no result is reported."""
        from routesparse.engine.lab.rivals.minference import MInferenceSearch

        search = MInferenceSearch(rows=SEARCH_ROWS)
        for prompt in calibration:
            self._forward(prompt, Method("search", 0, search))
        return search.best()

    @torch.no_grad()
    def timed(self, prompt: Prompt, method: Method) -> dict[str, float]:
        """One prefill's area and times, with the cache kept where the prompt has an answer."""
        return self._prefill(prompt, method)[1]

    def _prefill(self, prompt: Prompt, method: Method) -> tuple[Any, dict[str, float]]:
        """What the model's body returns, and the run's numbers.

        prefill_ms is what a caller waits for: it ends when the device is done and the session has settled its record,
        and does not hold the reading of that record, which took as long as the prefill itself.
        """
        ids = torch.tensor([prompt.ids], device=self._device)
        run = Run(
            method,
            extras=self._extras,
            salt=prompt.item.name,
            seed=prompt.item.seed,
            graphs=self._graphs,
            device=self._device,
            profile=self.profiles.get(method.options.get("probe", RouterConfig.probe)) or NamedProfile(),
            auditor=self._auditor,
        )
        self._wait()
        started = time.perf_counter()
        # The model's hooks see only whole calls, and its body alone spares the head [n, vocabulary].
        with routed_by(self._model, self._serving(run, prompt)):
            run.router.start()
            out = self._model.model(ids, use_cache=bool(prompt.answer))
            run.router.finish()
            self._wait()
            prefill_ms = 1e3 * (time.perf_counter() - started)
        return out, {**run.read(), "prefill_ms": prefill_ms}

    def _serving(self, run: Run, prompt: Prompt) -> AttentionRouter:
        """What serves the prefill; a study that looks at every layer puts its own router around the run's."""
        return run.router

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _forward(self, prompt: Prompt, method: Method) -> Outcome:
        out, numbers = self._prefill(prompt, method)
        hidden = out.last_hidden_state[0]
        if prompt.answer:
            answer = torch.tensor(prompt.answer, device=self._device)
            hidden = hidden[-1:]
            if len(answer) > 1:
                rest = self._model.model(answer[None, :-1], past_key_values=out.past_key_values)
                hidden = torch.cat((hidden, rest.last_hidden_state[0]))
            return Outcome(hidden, answer, out.past_key_values, numbers)
        asked = torch.tensor(prompt.asked, device=self._device)
        targets = torch.tensor(prompt.ids, device=self._device)[asked]
        return Outcome(hidden[asked - 1], targets, None, numbers)

    def compare(self, dense: Tensor, hidden: Tensor, targets: Tensor) -> dict[str, float]:
        """Means over positions: hidden states [R, hidden] of both, targets int64 [R]."""
        sums = torch.zeros(5, dtype=torch.float64, device=self._device)
        for place in torch.arange(len(targets), device=self._device).split(CHUNK):
            p, q = (self._log_p(x[place]) for x in (dense, hidden))
            target = targets[place, None]
            columns = (
                (p.exp() * (p - q)).sum(-1),
                p.argmax(-1) == q.argmax(-1),
                q.argmax(-1) == target[:, 0],
                -q.gather(-1, target)[:, 0],
                -p.gather(-1, target)[:, 0],
            )
            sums += torch.stack([column.double().sum() for column in columns])
        kl, agree, right, nats, nats_dense = (sums / len(targets)).tolist()
        return {"kl": kl, "agree": agree, "right": right, "nats": nats, "nats_dense": nats_dense}

    def _log_p(self, hidden: Tensor) -> Tensor:
        return (hidden.float() @ self._head).log_softmax(-1)

    def _decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _greedy(self, prompt: Prompt, found: Outcome, limit: int, *, past_gold: bool = False) -> list[int]:
        """The greedy answer of at most ``limit`` tokens; unless ``past_gold``, the gold one where it begins so.

        Choices along the gold answer are greedy up to the first that differs from it. From there on each pass reads a
        guess of all further tokens and is right up to the first that it changes (Jacobi iteration).
        """
        choice = self._log_p(found.hidden).argmax(-1)
        wrong = (choice != found.targets).nonzero()
        if not len(wrong) and not past_gold:
            return prompt.answer[:limit]
        end = self._tokenizer.eos_token_id
        end = -1 if end is None else end
        right = int(wrong[0]) + 1 if len(wrong) else len(choice)
        text = F.pad(choice, (0, limit - len(choice)), value=max(end, 0))
        while right < len(text) and end not in text[:right].tolist():
            beyond = found.cache.get_seq_length() - (len(prompt.ids) + right - 1)
            if beyond:
                found.cache.crop(-beyond)
            out = self._model.model(text[None, right - 1 : -1], past_key_values=found.cache)
            choice = self._log_p(out.last_hidden_state[0]).argmax(-1)
            wrong = (choice != text[right:]).nonzero()
            text = torch.cat((text[:right], choice))
            right = right + int(wrong[0]) + 1 if len(wrong) else len(text)
        answer = text.tolist()
        return answer[: answer.index(end)] if end in answer else answer
