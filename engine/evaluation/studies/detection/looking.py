"""A prefill with its own certificate: what the certificate of ``certify`` says while a method serves a prompt.

In each layer three kinds of rows are scored exactly (``certification/rows.py``), of every head:

    random      ``rows`` uniform ones, which are all that a server has: the claims of ``certify``
    far         those random ones whose largest key lies neither in the first 64 nor the last 1,024 tokens before it
    question    rows of the question, or of looked-up tokens: whoever makes the prompt may know them
    needles     rows of the asked needles: only a benchmark knows them

Seed, prompt and layer place them, so all methods are looked at in the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from routesparse.engine.audit.auditor import Audited, Auditor, Executed
from routesparse.engine.baselines.rule import RuleRouter
from routesparse.engine.certification.certify import Settings, facts_of
from routesparse.engine.certification.reads import PlanReads
from routesparse.engine.certification.report import Certified
from routesparse.engine.certification.rows import ROWS, RowScores, draw_rows, score_rows
from routesparse.engine.decide.decision import Decision
from routesparse.engine.decide.layer import plan_of
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.evaluation.studies.detection.names import (
    CHOSEN_ROWS,
    NEAR_TOKENS,
    SINK_TOKENS,
    TOLERANCES,
)
from routesparse.engine.evaluation.studies.selection.measure import Bench, Run
from routesparse.engine.evaluation.studies.selection.methods import Method
from routesparse.engine.evaluation.studies.selection.prompts import Prompt
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.kernels.interface import RowPlan

Scores = dict[str, np.ndarray]  # [1, H, C] by name


@dataclass(frozen=True)
class Places:
    """Rows that are looked at in every head beside the random ones."""

    question: tuple[int, ...]
    needles: tuple[int, ...]

    @classmethod
    def of(cls, prompt: Prompt) -> Places:
        """A looked-up token is foretold by the row before it."""
        question = prompt.question or ([] if prompt.is_text else [place - 1 for place in prompt.asked])
        return cls(spread(question), spread(prompt.needles))


def spread(places: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """At most CHOSEN_ROWS of them, evenly, the last among them."""
    if len(places) <= CHOSEN_ROWS:
        return tuple(places)
    chosen = np.linspace(0, len(places) - 1, CHOSEN_ROWS).round().astype(int)
    return tuple(places[place] for place in chosen)


class PlanKeeper(Auditor):
    """Remembers the row plan of the layer that a routing session served last; prompts of one segment."""

    plan: RowPlan | None = None

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        """See ``Auditor.audit``."""
        self.plan = plan_of(decision, inputs)
        return Audited()


class Looking(AttentionRouter):
    """Serves as the inner router does, and scores rows of every layer that it served.

    plan: what the inner router read in the layer that it served last, None where that ran dense.
    """

    def __init__(
        self,
        inner: AttentionRouter,
        plan: Callable[[], RowPlan | None],
        places: Places,
        *,
        salt: str,
        seed: int,
        rows: int,
    ) -> None:
        self._inner, self._plan, self._places = inner, plan, places
        self._salt, self._seed, self._rows = salt, seed, rows
        self._scores: dict[int, RowScores] = {}
        self._facts: dict[str, Any] = {}

    def serve(self, layers: int) -> None:
        """See ``AttentionRouter.serve``."""
        self._inner.serve(layers)

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """See ``AttentionRouter.attend``."""
        out = self._inner.attend(inputs, layer=layer, window=window)
        heads = inputs.q.shape[1]
        drawn = draw_rows(inputs, self._rows, self._salt, self._seed, layer)
        chosen = torch.tensor((*self._places.question, *self._places.needles), dtype=torch.int64)
        rows = torch.cat([drawn, chosen.expand(1, heads, -1)], dim=-1)
        plan = self._plan()
        reads = None if plan is None else PlanReads(plan)
        self._scores[layer] = score_rows(inputs, out, rows, window, reads, planned=True)
        self._facts = facts_of(inputs)
        return out

    def certified(self, name: str, settings: Settings | None = None) -> Certified:
        """What ``certify`` says of the random rows."""
        layers = tuple(sorted(self._scores))
        return Certified(
            name=name,
            plan=name,
            prompt=self._salt,
            **self._facts,
            seed=self._seed,
            settings=settings or Settings(),
            layers=layers,
            scores=tuple(self._part("random", layer) for layer in layers),
            dense_layers=tuple(layer for layer in layers if self._scores[layer].dense),
        )

    def pooled(self, kind: str) -> Scores:
        """The rows of one kind, of all heads and layers: [L H, C] by name."""
        parts = [self._part(kind, layer) for layer in sorted(self._scores)]
        return {name: np.concatenate([part[name][0] for part in parts]) for name in parts[0]}

    def _part(self, kind: str, layer: int) -> Scores:
        asked = self._rows + len(self._places.question)
        place = {"random": slice(0, self._rows), "question": slice(self._rows, asked)}.get(
            kind, slice(asked, None)
        )
        return {name: values[..., place] for name, values in self._scores[layer].numpy().items()}


def claims(looking: Looking, name: str) -> dict[str, float]:
    """Every claim of one prefill, by kind and name; of rows that a prompt lacks there are none."""
    found = looking.certified(name)
    output, plan, random = found.run.output, found.run.plan, looking.pooled("random")
    assert plan is not None
    by_head = np.minimum(random["error"], 1.0).mean(-1)
    told: dict[str, float] = {
        "alarm": float(found.verdict.level != "exact"),
        "rows": output.rows,
        "error": output.mean,
        "error_bound": output.mean_bound,
        "nonfinite": output.nonfinite,
        "beyond_rounding": output.beyond_rounding,
        "disagreement": plan.disagreement,
        "mass": plan.mass,
        "mass_bound": plan.mass_bound,
        "low_rows": plan.low_rows / output.rows,
        "low_rows_bound": plan.low_rows_bound,
        "hit_rate": plan.hit_rate,
        "hit_rate_bound": plan.hit_rate_bound,
        "worst_head": float(by_head.max()),
        "worst_layer": float(by_head.reshape(len(found.layers), -1).mean(-1).max()),
        "worst_head_mass": float(random["mass"].mean(-1).min()),
    }
    for tolerance in TOLERANCES:
        over = replace(found, settings=Settings(tolerance=tolerance))
        told[f"alarm_{tolerance:g}"] = float(not over.verdict.passed)
    back = random["positions"] - random["largest"]
    far = (random["largest"] >= SINK_TOKENS) & (back >= NEAR_TOKENS)
    return (
        told
        | _summary("far", {key: values[far] for key, values in random.items()})
        | _summary("question", looking.pooled("question"))
        | _summary("needles", looking.pooled("needles"))
    )


def _summary(kind: str, scores: Scores) -> dict[str, float]:
    rows = scores["error"].size
    if not rows:
        return {f"{kind}_rows": 0}
    return {
        f"{kind}_rows": rows,
        f"{kind}_error": float(np.minimum(scores["error"], 1.0).mean()),
        f"{kind}_mass": float(np.clip(scores["mass"], 0.0, 1.0).mean()),
        f"{kind}_hit_rate": float(scores["hit"].mean()),
        f"{kind}_low_rows": float((scores["mass"] < Settings.mass_level).mean()),
    }


class LookingBench(Bench):
    """``Bench`` whose every prefill is looked at."""

    def __init__(self, loaded: LoadedModel, *, extras: bool = True, rows: int = ROWS) -> None:
        super().__init__(loaded, extras=extras)
        self._keeper = self._auditor = PlanKeeper()
        self._rows = rows
        self._looking: Looking | None = None

    def measure(self, prompt: Prompt, method: Method) -> dict[str, float]:
        """See ``Bench.measure``, with the claims about that prefill."""
        numbers = super().measure(prompt, method)
        assert self._looking is not None
        return numbers | claims(self._looking, method.name)

    def _serving(self, run: Run, prompt: Prompt) -> AttentionRouter:
        router, keeper = run.router, self._keeper
        keeper.plan = None

        def plan() -> RowPlan | None:
            return router.plan if isinstance(router, RuleRouter) else keeper.plan

        self._looking = Looking(
            router, plan, Places.of(prompt), salt=prompt.item.name, seed=prompt.item.seed, rows=self._rows
        )
        return self._looking
