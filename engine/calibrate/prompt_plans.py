"""Plans that the router makes of a model's own prompts, for the latency profile to be fitted on (paper section 3.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from routesparse.engine.audit.rows import Auditor, Executed
from routesparse.engine.calibrate.measure import prefill
from routesparse.engine.calibrate.prompts import cut, read_documents, split_folds
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.decide.layer import plan_of
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.profiles.plans import PlanCase, PromptPlans
from routesparse.engine.rows import Audited
from routesparse.engine.runtime.session import RoutingSession

# Tokens of the prompts to fit on and to check with, by device type; a text that is too short gives none of a length.
FIT_TOKENS = {"cpu": (4_096, 8_192, 16_384), "cuda": (16_384, 32_768, 65_536, 131_072)}
CHECK_TOKENS = {"cpu": (6_144, 12_288), "cuda": (24_576, 49_152, 98_304)}


@dataclass(frozen=True)
class ModelPrompts(PromptPlans):
    """Token ids of a model's prompts to fit a profile on, and others to check it with."""

    loaded: LoadedModel
    fit: tuple[Sequence[int], ...]
    check: tuple[Sequence[int], ...]

    @property
    def passes(self) -> int:  # type: ignore[override]
        """Layers of all prompts together."""
        return self.loaded.layers * len((*self.fit, *self.check))

    def run(
        self, fitted: bool, config: RouterConfig, costs: LatencyProfile, seen: Callable[[PlanCase], None]
    ) -> None:
        """Prefill the prompts, routed by these costs; ``seen`` gets every plan while its inputs are at hand."""
        for token_ids in self.fit if fitted else self.check:
            always = replace(config, break_even_tokens=0)
            session = RoutingSession(always, profile=costs, auditor=PlanAuditor(seen))
            prefill(self.loaded, token_ids, session)


def read_prompts(loaded: LoadedModel, folders: Sequence[Path], device: str, seed: int) -> ModelPrompts:
    """A window of every length from each folder's (or file's) texts; no text is in both the fit and the check.

    Errors: CalibrationError for fewer than two texts in a folder, or where no text is long enough for either part.
    """
    parts: tuple[list[Sequence[int]], list[Sequence[int]]] = ([], [])
    bos = 0 if loaded.tokenizer.bos_token_id is None else 1
    for folder in folders:
        texts = split_folds(read_documents(folder, folder.name, loaded.tokenizer), 0.5, seed)
        for windows, members, lengths in zip(parts, texts, (FIT_TOKENS, CHECK_TOKENS), strict=True):
            longest = max(text.tokens for text in members) + bos
            for n in lengths[device]:
                if n <= min(longest, loaded.max_tokens):
                    windows += [w.token_ids for w in cut(members, 1, n, n, loaded.tokenizer, seed)]
    if not all(parts):
        raise CalibrationError(
            f"the texts hold less than {FIT_TOKENS[device][0]:,} tokens to fit on, or {CHECK_TOKENS[device][0]:,} to "
            "check with; pass longer ones"
        )
    return ModelPrompts(loaded, tuple(parts[0]), tuple(parts[1]))


class PlanAuditor(Auditor):
    """Shows the plans of a session and audits nothing."""

    def __init__(self, seen: Callable[[PlanCase], None]) -> None:
        self._seen = seen

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        """Hand on the plan with the inputs of its segment."""
        segment = decision.segment
        rows = slice(segment.first, segment.first + segment.rows)
        k, v = (x[:, :, : segment.keys] for x in (inputs.k, inputs.v))
        own = replace(inputs, q=inputs.q[:, :, rows], k=k, v=v)
        self._seen(PlanCase(own, segment, plan_of(decision, inputs)))
        return Audited()
