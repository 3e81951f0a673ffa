"""What ``lm_eval.py`` does for the harness, without the harness: prompts prefill routed, continuations run dense.

A context is prefilled by a routing session of its own, whose random rows are placed by the hash of its tokens: a
prompt's numbers depend neither on the other prompts nor on their order. Its continuations run as a second, dense chunk
behind it, as the gold answers of ``routesparse evaluate`` do. Windows of a rolling perplexity have no context: there
the losses are those of the routed prefill itself, as with PG-19.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.lab import study
from routesparse.engine.models.load import revision_of_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.record.passes import ProfileByName
from routesparse.engine.runtime import quality
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import check_supported, routed_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.calibration.tuned import TunedPrice
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.record.passes import PromptTrace

Answer = tuple[float, bool]  # log-likelihood in nats, and whether greedy decoding writes it


class RoutedModel:
    """A transformers model with one routing configuration, and how many of its prompts were routed.

    Errors: UnsupportedModelError, ConfigError; CalibrationError where calibration or tuned price are for another model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: RouterConfig,
        *,
        calibration: Calibration | TunedPrice | str | None = None,
        profile: str = "auto",
    ) -> None:
        check_supported(model)
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        self._chosen = quality.choose(config, calibration, lambda: revision_of_model(model), dtype, None)
        self._model, held = model, self._chosen.calibration
        self._chosen.config.check_runnable(held is not None and held.predictor is not None)
        self._profile: LatencyProfile | ProfileByName = NamedProfile(profile)
        self._graphs: Graphs = Graphs()
        self._areas: list[float] = []  # of each routed prefill
        self._dense = 0

    @contextmanager
    def prompt(self, ids: Tensor) -> Iterator[None]:
        """The prefill of prompts [B, n] inside the block is routed; decoding is dense, and so is what is too short."""
        session = RoutingSession(
            self._chosen.config,
            self._chosen.calibration,
            profile=self._profile,
            salt=hashlib.sha256(ids.cpu().numpy().tobytes()).hexdigest()[:16],
            graphs=self._graphs,
        )
        with routed_by(self._model, session):
            yield
        self._profile = session.trace.settings.profile
        for prompt in session.trace.prompts:
            self._count(prompt)

    @torch.no_grad()
    def continuations(self, context: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[Answer]:
        """The log-likelihood of each continuation behind one context, which is prefilled once."""
        ids = self._tensor(context)
        with self.prompt(ids):
            out = self._model(ids, use_cache=True, logits_to_keep=1)
        found = []
        for number, tokens in enumerate(continuations, 1):
            logits = out.logits[0]
            if len(tokens) > 1:
                # A copy, not a crop: caches with a sliding window can't be cropped.
                last = number == len(continuations)
                cache = out.past_key_values if last else copy.deepcopy(out.past_key_values)
                rest = self._model(self._tensor(tokens[:-1]), past_key_values=cache)
                logits = torch.cat((logits, rest.logits[0]))
            found.append(_answer(logits, tokens))
        return found

    @torch.no_grad()
    def window(self, context: Sequence[int], continuation: Sequence[int]) -> Answer:
        """The log-likelihood of the continuation where all of it is prefilled: one window of a rolling perplexity."""
        ids = self._tensor([*context, *continuation][:-1])
        with self.prompt(ids):
            out = self._model(ids, use_cache=False, logits_to_keep=len(continuation))
        return _answer(out.logits[0], continuation)

    def about(self) -> dict[str, Any]:
        """For the record of a run: the configuration, how many prefills were routed, and what these read."""
        area = sum(self._areas) / len(self._areas) if self._areas else None
        held = self._chosen.calibration
        return {
            "config": self._chosen.config.to_dict(),
            "calibration": self._chosen.tuned_price if held is None else held.name,
            "routed_prefills": len(self._areas),
            "dense_prefills": self._dense,
            "area_of_routed": area,
        }

    def _count(self, prompt: PromptTrace) -> None:
        if prompt.passes:
            self._areas.append(sum(p.density for p in prompt.passes) / len(prompt.passes))
            return
        if not self._dense:
            study.note(
                f"a prompt of {prompt.tokens:,} tokens runs dense: routing pays for longer ones only; break_even=0 "
                "routes every prompt that is long enough to be probed. How many ran dense stands in the results"
            )
        self._dense += 1

    def _tensor(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self._model.device)


def _answer(logits: Tensor, tokens: Sequence[int]) -> Answer:
    """logits [n, vocabulary] at the places before the n tokens."""
    target = torch.tensor(list(tokens), device=logits.device)
    log_p = logits.float().log_softmax(-1)
    nats = log_p.gather(-1, target[:, None]).sum()
    return float(nats), bool((log_p.argmax(-1) == target).all())
