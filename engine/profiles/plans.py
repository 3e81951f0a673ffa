"""The plans that a latency profile is fitted on (paper section 3.5): what the router makes, not random blocks.

A plan's time depends on more than its counts: heads with single columns fetch key by key, neighbouring blocks share
memory pages, rows of one head differ in length. A profile fitted on uniformly random blocks overrates the router's
plans by a quarter on a CPU. So plans are either

recorded   what the router decides on a model's own prompts, each layer's plan timed on that layer's inputs; these are
           handed in (calibrate/prompt_plans.py)
synthetic  what the same builders make of random inputs that have a sink, a slow drift along the positions and a few
           heavy keys, each head with a random candidate: for a first run, where no prompts are at hand
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import lower
from routesparse.engine.method.records import Context
from routesparse.engine.method.segments import Segment
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.kernels.plan import RowPlan

if TYPE_CHECKING:
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.decide.decision import Pending
    from routesparse.engine.method.latency import LatencyProfile

# What the heads of a synthetic plan draw from, plan after plan and then in turn: kinds of families, and the range of
# their budgets. The first three alone tell the costs apart; a plan that mixes everything resembles every other one.
MIXES: tuple[tuple[Literal["blocks", "columns", "sparse", "all"], float, float], ...] = (
    ("blocks", 0.0, 0.3),
    ("blocks", 0.7, 1.0),
    ("columns", 0.0, 1.0),
    ("sparse", 0.0, 0.5),
    ("all", 0.0, 1.0),
    ("all", 0.5, 1.0),
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


class PromptPlans:
    """Plans that the router makes of prompts; handed in, since making them takes a model and a routing session."""

    passes: int  # layers of all prompts together

    def run(
        self, fitted: bool, config: RouterConfig, costs: LatencyProfile, seen: Callable[[PlanCase], None]
    ) -> None:
        """Route the prompts to fit on, or the others, by these costs; ``seen`` gets every layer's plan."""
        raise NotImplementedError


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


def random_inputs(n: int, shape: AttentionShape, generator: torch.Generator) -> AttentionInputs:
    """Random q, k and v [1, H, n, D] of one prompt whose attention has a sink, a drift and heavy keys."""

    device, counts = shape.device, (shape.heads, shape.kv_heads, shape.kv_heads)
    q, k, v = (torch.randn(1, h, n, shape.head_dim, generator=generator, device=device) for h in counts)
    scale = shape.head_dim**-0.5
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
    q, k, v = (x.to(shape.dtype) for x in (q, k, v))
    return AttentionInputs(q, k, v, scale)


def synthetic(inputs: AttentionInputs, decided: Pending, count: int, seed: int) -> list[PlanCase]:
    """``count`` plans of one segment: every head draws a family and a budget from the plan's entry of MIXES.

    decided: a decision on these inputs, whose candidates and indices are used. The draws are those of the seed and the
    plan's number, so that a plan is the same mix at every length.
    """
    budgets_of: dict[str, list[int]] = {}
    for candidate in decided.candidates:
        budgets_of.setdefault(candidate.pattern, []).append(candidate.index)
    kinds = {
        "blocks": [name for name, index in decided.indices.items() if index.columns is None],
        "columns": [name for name, index in decided.indices.items() if index.columns is not None],
        "sparse": list(decided.indices),
        "all": list(budgets_of),
    }
    heads = inputs.q.shape[1]
    cases = []
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        drawn, low, high = MIXES[number % len(MIXES)]
        names = rng.permutation(np.resize(kinds[drawn], heads))
        shares = rng.uniform(low, high, heads)
        budgets = [budgets_of[n][int(u * len(budgets_of[n]))] for n, u in zip(names, shares, strict=True)]
        choice = torch.tensor([budgets])
        plan = lower(Context(inputs, decided.segment, decided.candidates), decided.indices, choice)
        cases.append(PlanCase(inputs, decided.segment, plan))
    return cases
