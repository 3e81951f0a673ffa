"""``routesparse doctor --deep``: the user's model on the user's device against the oracle, in a few random layers.

A bundled text is prefilled densely; in each chosen layer its queries, keys and values are routed as a run would route
them, and the kernel's output is compared with float64 attention on the same keys (kernels/reference.py), in
random rows of every head. That checks the kernel and the plan's meaning on this device, not the choice of the plan.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import begin, plan_of
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import dense_attention, execute, joined
from routesparse.engine.method.segments import split
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.prompts.text import read_prompt, tokenize
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.transformers import routed_by
from routesparse.kernels.plan import RowPlan
from routesparse.kernels.reference import masked_attention

LAYERS = 3
TOKENS = 2048
ROWS = 64  # compared in each head
# Largest relative error of a row's output: rounding of inputs and sums in that dtype, with room.
LIMITS = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class LayerCheck:
    """What one layer showed; times are of one call each, after one that is not counted."""

    layer: int
    tokens: int
    density: float  # kept share of the causal area
    error: float  # largest relative error of an output row against the oracle
    limit: float
    routed_ms: float  # deciding and attention
    dense_ms: float

    @property
    def right(self) -> bool:
        """Whether the error is rounding; NaN is not."""
        return self.error <= self.limit


class _Checker(AttentionRouter):
    """Dense attention everywhere; the chosen layers are routed beside it and compared."""

    def __init__(self, layers: int, seed: int) -> None:
        draw = random.Random(seed)
        self.wanted = set(draw.sample(range(layers), min(LAYERS, layers)))
        self.config = RouterConfig(break_even_tokens=0, seed=seed)
        self.found: list[LayerCheck] = []
        self.windowed: list[int] = []

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        if layer in self.wanted and window is None:
            self.found.append(check_layer(inputs, layer, self.config))
        elif layer in self.wanted:
            self.windowed.append(layer)
        return dense_attention(inputs, window)


def check_model(model: LoadedModel, seed: int = 0) -> tuple[list[LayerCheck], list[int]]:
    """The chosen layers' checks, and those of them that have a sliding window and are never routed.

    Errors: ConfigError, NumericsError, ProfileError, UnsupportedModelError.
    """
    text = read_prompt(paths.DATA / "samples" / "prompts" / "prose.txt")
    short = replace(text, text=text.text[: 6 * TOKENS])
    ids = tokenize(short, model.tokenizer, 12 * TOKENS).token_ids[: min(TOKENS, model.max_tokens)]
    checker = _Checker(model.layers, seed)
    tokens = torch.as_tensor(ids, dtype=torch.long, device=next(model.model.parameters()).device)[None]
    with routed_by(model.model, checker), torch.no_grad():
        model.model(tokens, logits_to_keep=1, use_cache=False)
    return sorted(checker.found, key=lambda check: check.layer), sorted(checker.windowed)


def check_layer(inputs: AttentionInputs, layer: int, config: RouterConfig) -> LayerCheck:
    """Route one layer's inputs as a run would and compare with the oracle. Errors: as ``check_model``."""
    n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
    profile = NamedProfile().on(AttentionShape.of(inputs), config)
    settings = LayerSettings(config, config.effective_gate_threshold, profile)
    segments = split(n_q, n_k, config)

    def routed() -> tuple[torch.Tensor, RowPlan]:
        pendings = [begin(inputs, segment, layer, settings, None, None) for segment in segments]
        plan = joined([plan_of(pending, inputs) for pending in pendings])
        out, _ = execute(inputs, plan, "fused", [])
        return out, plan

    (out, plan), routed_ms = routed(), _ms(routed, inputs)
    kept = plan.to_mask()
    dense_ms = _ms(lambda: dense_attention(inputs, None), inputs)
    rows = torch.randperm(n_q, generator=torch.Generator().manual_seed(layer))[:ROWS].to(out.device)
    exact, _ = masked_attention(
        inputs.q[:, :, rows], inputs.k, inputs.v, kept[:, :, rows], inputs.scale, inputs.softcap, inputs.sinks
    )
    size = exact.norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    error = ((out[:, :, rows].double() - exact).norm(dim=-1) / size).max().item()
    return LayerCheck(layer, n_q, plan.density, error, LIMITS[inputs.q.dtype], routed_ms, dense_ms)


def _ms(work: Callable[[], object], inputs: AttentionInputs) -> float:
    """Milliseconds of a call that ran once before."""
    if inputs.q.is_cuda:
        torch.cuda.synchronize(inputs.q.device)
    began = time.perf_counter()
    work()
    if inputs.q.is_cuda:
        torch.cuda.synchronize(inputs.q.device)
    return 1e3 * (time.perf_counter() - began)
