"""A prompt prefilled by a router, and what it loses against dense attention.

Of a text: at every asked position, from the prefill's own hidden states,
    KL = sum_v p_dense(v) (log p_dense(v) - log p(v)), in nats a token; first choices that agree; nats of the token.
Of a question: the same at the gold answer's tokens, which run as a second, dense chunk. Logits are float32 and made in
chunks of positions; of the dense run only hidden states are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.profiles.measure import NamedProfile, prepare_profile
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.record.trace import Trace
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.replay import Keeping, figures_of, log_p, replayed, rows_of
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by
from routesparse.engine.seeds import stable_seed

SEGMENT_TOKENS = 131_072  # of the product on a GPU: one segment a prompt
CHUNK = 4_096  # positions whose logits exist at a time
Probe = Literal["exact", "pooled"]
Profiles = Mapping[str, LatencyProfile]  # by the probe that they hold for


@dataclass(frozen=True)
class Text:
    """name: places the random rows. ids: with the begin token. asked: positions whose token is looked up.

    answer: tokens of the gold answer of a question, of which no position is asked.
    """

    name: str
    seed: int
    ids: list[int]
    asked: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Run:
    """A router for one prefill, and the numbers of what it did."""

    router: AttentionRouter
    read: Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Outcome:
    """hidden [R, hidden]: at the positions that are compared, before the head. cache: of prompt and gold answer."""

    hidden: Tensor
    targets: Tensor  # int64 [R], the tokens that come next there
    cache: Any
    run: dict[str, float]


class DenseRouter(AttentionRouter):
    """Exact attention in every layer."""

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> Tensor:
        return dense_attention(inputs, window)


class BesideDense:
    """Measures routers against dense attention, which runs once a prompt; all references stay on the device.

    profiles: that sessions route by; where one lacks, what the home holds.
    """

    segment_tokens = SEGMENT_TOKENS
    profiles: Profiles = MappingProxyType({})

    def __init__(self, loaded: LoadedModel, *, captured: bool = True) -> None:
        """captured: decide by CUDA graphs, as the product does; False where processes share a GPU or lengths differ."""
        self._loaded, self._model = loaded, loaded.model
        self._device = torch.device(loaded.device)
        self._references: dict[str, Tensor] = {}
        self._graphs = Graphs(capture=captured)

    def prepared(self, probes: Iterable[Probe], progress: Progress = no_progress) -> Profiles:
        """The latency profile of each probe, measured here where none fits.

        It is for ``profiles`` of every process that measures with this one: each would find or measure its own while
        the others disturb it, and route otherwise. Errors: ProfileError.
        """
        return {
            probe: prepare_profile("auto", self._loaded, RouterConfig(probe=probe), progress)
            for probe in sorted(probes)
        }

    def forget(self) -> None:
        """Drop the references: measuring a prompt again runs dense attention again."""
        self._references.clear()

    @torch.no_grad()
    def lost(self, text: Text, options: Mapping[str, Any]) -> dict[str, float]:
        """Area and loss of one configuration on one text; of a question over its gold answer's tokens.

        Of a text that is long enough also what a replay says of it (runtime/replay.py): replayed, in nats a token, and
        the replay's own mean entropy and surprise, that of the token that came.
        """
        run = self.session(text, options)
        rows = (
            None if text.answer else rows_of(len(text.ids) - 1, stable_seed("replay", text.name, text.seed))
        )
        if rows is None:
            return self.beside_dense(text, run)[1]
        keeping, at = Keeping(run.router), torch.from_numpy(rows.flatten()).to(self._device)
        found, numbers = self.beside_dense(text, replace(run, router=keeping))
        ids = torch.tensor([text.ids], device=self._device)
        # Every position but the first is asked: the row before it has its hidden state.
        again = replayed(self._model, {"input_ids": ids[:, at]}, keeping.kept, at)
        figures = figures_of(self._model, again, found.hidden[at], ids[0, at + 1])
        names = ("replayed", "entropy", "surprise")
        return numbers | {name: float(one.mean()) for name, one in zip(names, figures, strict=True)}

    def session(self, text: Text, options: Mapping[str, Any]) -> Run:
        """The product's own session. options: of its RouterConfig.

        read: area, the kept share of the causal area; all layers together select_ms, of deciding what is read, and
        attention_ms, of making the plan and of the kernel; the share of heads and segments with a fallback.
        """
        session, trace = self.routing(text, options)

        def read() -> dict[str, float]:
            passes = trace.prompts[-1].passes
            select_us = sum(p.deciding_us for p in passes)
            fell = [kind is not None for p in passes for d in p.decisions for kind in d.certified.fallback]
            return {
                "area": sum(p.density for p in passes) / len(passes) if passes else 1.0,
                "select_ms": select_us / 1e3,
                "attention_ms": sum(p.kernel_us for p in passes) / 1e3,
                "fallback": sum(fell) / len(fell) if fell else 0.0,
            }

        return Run(session, read)

    def routing(self, text: Text, options: Mapping[str, Any]) -> tuple[RoutingSession, Trace]:
        """The product's own session for a text, and its trace. options: of its RouterConfig."""
        own = {"seed": text.seed, "break_even_tokens": 0, "segment_tokens": SEGMENT_TOKENS}
        config = RouterConfig(**{**own, **options})
        profile = self.profiles.get(config.probe) or NamedProfile()
        session = RoutingSession(config, profile=profile, salt=text.name, graphs=self._graphs)
        return session, session.trace

    def beside_dense(self, text: Text, run: Run) -> tuple[Outcome, dict[str, float]]:
        """What the run left, and its numbers."""
        if text.name not in self._references:
            self._references[text.name] = self.forward(text, Run(DenseRouter(), dict)).hidden
        found = self.forward(text, run)
        return found, found.run | self.compare(self._references[text.name], found.hidden, found.targets)

    def forward(self, text: Text, run: Run) -> Outcome:
        """Prefill, and behind it the gold answer."""
        out, numbers = self.prefill(text, run)
        hidden = out.last_hidden_state[0]
        if text.answer:
            answer = torch.tensor(text.answer, device=self._device)
            hidden = hidden[-1:]
            if len(answer) > 1:
                rest = self._model.model(answer[None, :-1], past_key_values=out.past_key_values)
                hidden = torch.cat((hidden, rest.last_hidden_state[0]))
            return Outcome(hidden, answer, out.past_key_values, numbers)
        asked = torch.tensor(text.asked, device=self._device)
        targets = torch.tensor(text.ids, device=self._device)[asked]
        return Outcome(hidden[asked - 1], targets, None, numbers)

    def prefill(self, text: Text, run: Run) -> tuple[Any, dict[str, float]]:
        """What the model's body returns, and the run's numbers; the cache is kept where there is an answer.

        prefill_ms is what a caller waits for: it ends when the device is done and the session has settled its record,
        and does not hold the reading of that record, which took as long as the prefill itself.
        """
        ids = torch.tensor([text.ids], device=self._device)
        self._wait()
        started = time.perf_counter()
        # The model's hooks see only whole calls, and its body alone spares the head [n, vocabulary].
        with routed_by(self._model, run.router):
            run.router.start()
            out = self._model.model(ids, use_cache=bool(text.answer))
            run.router.finish()
            self._wait()
            prefill_ms = 1e3 * (time.perf_counter() - started)
        return out, {**run.read(), "prefill_ms": prefill_ms}

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def compare(self, dense: Tensor, hidden: Tensor, targets: Tensor) -> dict[str, float]:
        """Means over positions: hidden states [R, hidden] of both, targets int64 [R]."""
        sums = torch.zeros(5, dtype=torch.float64, device=self._device)
        for place in torch.arange(len(targets), device=self._device).split(CHUNK):
            p, q = (self.log_p(x[place]) for x in (dense, hidden))
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

    def log_p(self, hidden: Tensor) -> Tensor:
        """Log-probabilities float32 [..., vocabulary] of hidden states."""
        return log_p(self._model, hidden)
