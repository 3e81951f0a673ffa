"""The plans that a latency profile is fitted on (paper section 3.5): what the router makes, not random blocks.

A plan's time depends on more than its counts: heads with single columns fetch key by key, neighbouring blocks share
memory pages, rows of one head differ in length. A profile fitted on uniformly random blocks overrates the router's
plans by a quarter on a CPU. So plans are either

recorded   what the router decides on a model's own prompts, each layer's plan timed on that layer's inputs
synthetic  what the same builders make of random inputs that have a sink, a slow drift along the positions and a few
           heavy keys, each head with a random candidate: for a first run, where no prompts are at hand
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from routesparse.engine.audit.auditor import Auditor, Executed
from routesparse.engine.calibrate.measure import prefill
from routesparse.engine.calibrate.prompts import cut, read_documents, split_folds
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision
from routesparse.engine.decide.layer import begin, plan_of
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.row_plan import lower
from routesparse.engine.method.segments import Segment
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.rows import AuditRow, Pattern
from routesparse.engine.runtime.session import RoutingSession
from routesparse.kernels.families import FAMILIES
from routesparse.kernels.plan import RowPlan

# Tokens of the prompts to fit on and to check with, by device type; a text that is too short gives none of a length.
FIT_TOKENS = {"cpu": (4_096, 8_192, 16_384), "cuda": (16_384, 32_768, 65_536, 131_072)}
CHECK_TOKENS = {"cpu": (6_144, 12_288), "cuda": (24_576, 49_152, 98_304)}
# What the heads of a synthetic plan draw from, plan after plan and then in turn: families, and the range of their
# budgets. The first three alone tell the costs apart; a plan that mixes everything resembles every other one.
BLOCKS: tuple[Pattern, ...] = ("a_shape", "block_sparse", "block_top_p")
MIXES: tuple[tuple[tuple[Pattern, ...], float, float], ...] = (
    (BLOCKS, 0.0, 0.3),
    (BLOCKS, 0.7, 1.0),
    (("vertical_slash",), 0.0, 1.0),
    (FAMILIES, 0.0, 0.5),
    ((*FAMILIES, "dense"), 0.0, 1.0),
    ((*FAMILIES, "dense"), 0.5, 1.0),
)
HEAVY_KEYS = 6
CONTRAST = 6.0  # nats between keys that drift with the query and keys that drift against it
FAST_TOKENS = 90.0  # of one radian of the faster drift


@dataclass(frozen=True)
class Work:
    """What the latency model counts of one plan, over all of its heads; a sparse head's tail is dense tiles."""

    rows: int  # query blocks of sparse heads' bodies
    tiles: int  # KV blocks that these list
    columns: int  # (query block, column) pairs
    dense_heads: int
    dense_tiles: int  # KV blocks of every dense row


@dataclass(frozen=True)
class PlanCase:
    """A plan and the inputs that it runs on: q holds the segment's rows alone."""

    inputs: AttentionInputs
    segment: Segment
    plan: RowPlan


@dataclass(frozen=True)
class Prompts:
    """Token ids of a model's prompts to fit a profile on, and others to check it with."""

    loaded: LoadedModel
    fit: tuple[Sequence[int], ...]
    check: tuple[Sequence[int], ...]


def read_prompts(loaded: LoadedModel, folders: Sequence[Path], device: str, seed: int) -> Prompts:
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
    return Prompts(loaded, tuple(parts[0]), tuple(parts[1]))


def work_of(case: PlanCase) -> Work:
    """The counts of one plan, without padding."""
    segment, plan = case.segment, case.plan
    body, dense = slice(0, segment.body_blocks), plan.dense_rows
    whole = int(dense.all(-1).sum())
    reach = torch.from_numpy(segment.last_blocks() + 1).to(dense.device)
    return Work(
        rows=(plan.batch * plan.heads - whole) * segment.body_blocks,
        tiles=int(plan.block_count[:, :, body].sum()),
        columns=int(plan.column_count[:, :, body].sum()),
        dense_heads=whole,
        dense_tiles=int((dense * reach).sum()),
    )


def random_inputs(
    n: int,
    head_dim: int,
    heads: int,
    kv_heads: int,
    device: torch.device,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> AttentionInputs:
    """Random q, k and v [1, H, n, D] of one prompt whose attention has a sink, a drift and heavy keys."""

    def draw(count: int) -> torch.Tensor:
        return torch.randn(1, count, n, head_dim, generator=generator, device=device)

    q, k, v = draw(heads), draw(kv_heads), draw(kv_heads)
    scale = head_dim**-0.5
    strength = (CONTRAST / 4 / scale) ** 0.5
    position = torch.arange(n, device=device)
    angles = torch.stack([position / FAST_TOKENS, position * (torch.pi / n)])
    drift = strength * torch.stack([angles.cos(), angles.sin()], -1).permute(1, 0, 2).flatten(1)
    q[..., :4] += drift
    k[..., :4] += drift
    heavy = torch.randint(0, n, (HEAVY_KEYS,), generator=generator, device=device)
    k[:, :, heavy, 4] += 2 * strength
    k[:, :, 0, 4] += 3 * strength
    q[..., 4] += strength
    return AttentionInputs(q.to(dtype), k.to(dtype), v.to(dtype), scale)


def synthetic(
    inputs: AttentionInputs,
    segment: Segment,
    config: RouterConfig,
    costs: LatencyProfile,
    count: int,
    seed: int,
) -> list[PlanCase]:
    """``count`` plans of one segment: every head draws a family and a budget from the plan's entry of MIXES.

    The draws are those of the seed and the plan's number, so that a plan is the same mix at every length.
    """
    settings = LayerSettings(config, config.effective_gate_threshold, costs)
    pending = begin(inputs, segment, 0, settings)
    families: dict[str, list[int]] = {}
    for candidate in pending.candidates:
        families.setdefault(candidate.pattern, []).append(candidate.index)
    heads = inputs.q.shape[1]
    cases = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        drawn, low, high = MIXES[number % len(MIXES)]
        # Families that are not registered have no candidates; with none of the entry's, all that there are.
        known = [name for name in drawn if name in families] or list(families)
        names = rng.permutation(np.resize(known, heads))
        shares = rng.uniform(low, high, heads)
        budgets = [families[n][int(u * len(families[n]))] for n, u in zip(names, shares, strict=True)]
        choice = torch.tensor([budgets])
        plan = lower(inputs, segment, pending.indices, pending.candidates, choice)
        cases.append(PlanCase(inputs, segment, plan))
    return cases


def recorded(
    loaded: LoadedModel,
    token_ids: Sequence[int],
    config: RouterConfig,
    costs: LatencyProfile,
    seen: Callable[[PlanCase], None],
) -> None:
    """Prefill the prompt, routed by these costs; ``seen`` gets every layer's plan while its inputs are at hand."""
    routed = RoutingSession(replace(config, break_even_tokens=0), profile=costs, auditor=_PlanAuditor(seen))
    prefill(loaded, token_ids, routed)


class _PlanAuditor(Auditor):
    """Shows the plans of a session and audits nothing."""

    def __init__(self, seen: Callable[[PlanCase], None]) -> None:
        self._seen = seen

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> list[AuditRow]:
        """Hand on the plan with the inputs of its segment."""
        segment = decision.segment
        rows = slice(segment.first, segment.first + segment.rows)
        own = replace(
            inputs,
            q=inputs.q[:, :, rows],
            k=inputs.k[:, :, : segment.keys],
            v=inputs.v[:, :, : segment.keys],
        )
        self._seen(PlanCase(own, segment, plan_of(decision, inputs)))
        return []
