"""Row plans that the router chose for the bundled model on a real prompt, to be timed at another model's shape.

Random weights give no plans worth timing, and forced ones of a stated density say nothing of where real heads read. So
the bundled model's heads lend theirs: query head h of the larger shape runs the plan of head h mod H, layer l that of
layer l mod L. What is timed is real in its pattern, its imbalance and its density; it is no plan for those weights.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from routesparse.engine.calibrate.prompt_plans import PlanAuditor
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.models.token_count import chat
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.prompts.jsonl import read_one
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by
from routesparse.kernels.interface import RowPlan


class Recorder:
    """Plans of the bundled model for the first tokens of one text."""

    def __init__(self, prompt: Path, seed: int = 0, model: str = "demo") -> None:
        """Errors: PromptError where the text can't be read; ModelError without the model."""
        text = read_one(prompt, None, functools.partial(chat, model))[0].text
        self._loaded: LoadedModel = load_model(model)
        self._ids = self._loaded.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        self.prompt, self._seed = prompt, seed

    @property
    def most_tokens(self) -> int:
        """The longest prompt that there are plans for."""
        return min(len(self._ids), self._loaded.max_tokens)

    def plans(self, n_tokens: int, heads: int) -> list[RowPlan]:
        """One plan a layer of the bundled model, of ``heads`` heads each; by the default policy, in one segment.

        Errors: InputError beyond ``most_tokens``.
        """
        if n_tokens > self.most_tokens:
            raise InputError(f"there are plans for {self.most_tokens:,} tokens at most, not {n_tokens:,}")
        plans: list[RowPlan] = []
        config = RouterConfig(seed=self._seed, break_even_tokens=0, segment_tokens=n_tokens)
        session = RoutingSession(
            config, profile=NamedProfile(), auditor=PlanAuditor(lambda case: plans.append(case.plan))
        )
        ids = torch.tensor([self._ids[:n_tokens]], device=self._loaded.device)
        with torch.no_grad(), routed_by(self._loaded.model, session):
            self._loaded.model(ids, use_cache=False, logits_to_keep=1)
        return [plan.select_heads([head % plan.heads for head in range(heads)]) for plan in plans]
