"""One routed model: holds configuration, calibration, profile and trace; called once per layer by the model.

No module-level state: every ``with route(model)`` has its own session, and every record is keyed by layer and
head, so sessions of several models, ranks or threads never meet.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine import audit as dense_audit
from routesparse.engine import layer as steps
from routesparse.engine.calibration import Calibration, load_calibration
from routesparse.engine.config import AuditDepth, RouterConfig
from routesparse.engine.errors import NumericsError
from routesparse.engine.heatmap import heatmaps
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.probe import AttentionInputs
from routesparse.engine.profiling import device_name, profile_for
from routesparse.engine.records import AuditRow
from routesparse.engine.segments import Segment, split
from routesparse.engine.trace import LayerPass, PromptTrace, Trace
from routesparse.kernels.interface import RowPlan, sparse_attention

MASKED_DENSE_LIMIT = 1 << 22  # rows x keys up to which dense attention may materialise its mask


class RoutingSession:
    """Decides, executes and records; see ``attend``."""

    def __init__(
        self,
        config: RouterConfig,
        calibration: Calibration | str | None = None,
        profile: LatencyProfile | str = "auto",
        audit: AuditDepth = "none",
        audit_rows: int = dense_audit.AUDIT_ROWS,
        model_revision: str | None = None,
    ) -> None:
        """model_revision: checked against the calibration's stamp; required with a calibration.

        Errors: CalibrationError for an unknown calibration or one of another model or configuration.
        """
        loaded = load_calibration(calibration) if isinstance(calibration, str) else calibration
        gate = config.gate_threshold
        if loaded is not None:
            loaded.check(model_revision or "unknown", config)
            config, gate = replace(config, alpha=loaded.alpha), loaded.gate
        self.config = config
        self.trace = Trace(config, gate, loaded, audit, audit_rows, profile)
        self._segments: dict[int, int] = {}  # segments of the current prompt already routed, by layer

    def begin_forward(self, *, batch: int, n_q: int, n_k: int) -> None:
        """A forward pass enters the model: a new prompt where no earlier keys are cached, else a continuation."""
        if n_q == n_k:
            self.trace.prompts.append(PromptTrace(batch, n_k))
            self._segments = {}
        elif n_q > 1 and self.trace.prompts:
            self.trace.prompts[-1].tokens += n_q

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layer: int,
        scale: float,
        key_start: torch.Tensor | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One layer's causal attention. q [B, H, n_q, D], k, v [B, Hkv, n_k, D] -> [B, H, n_q, D].

        n_q < n_k is a chunk of a longer prompt, bottom-right aligned. Decoding, prompts below break-even and
        layers with a sliding window (already linear in n) run dense and unprobed.
        Errors: ConfigError for a limit below the probe's cost; NumericsError where NaN or Inf would be routed.
        """
        n_q, n_k = q.shape[2], k.shape[2]
        inputs = AttentionInputs(q, k, v, scale, key_start, softcap, sinks)
        if not self.trace.prompts or n_q == 1:
            return dense_attention(inputs, window)
        prompt = self.trace.prompts[-1]
        if not prompt.layers:
            prompt.heads, prompt.kv_heads, prompt.head_dim = q.shape[1], k.shape[1], q.shape[3]
            prompt.device, prompt.dtype = device_name(q.device), str(q.dtype).removeprefix("torch.")
        prompt.layers.add(layer)
        segments = split(n_q, n_k, self.config, self._segments.get(layer, 0))
        if window is not None or not self._worth_routing(inputs, segments):
            return dense_attention(inputs, window)
        self._segments[layer] = segments[-1].index + 1
        out, layer_pass = self._route(inputs, segments, layer)
        prompt.passes.append(layer_pass)
        return out

    def _worth_routing(self, inputs: AttentionInputs, segments: list[Segment]) -> bool:
        least = max(self.config.certificate_rows, 2 * self.config.block_q)
        if any(s.body < least for s in segments):
            return False
        if self.config.break_even_tokens is not None:
            return segments[-1].keys >= self.config.break_even_tokens
        profile = self._measured_profile(inputs)
        return all(profile.pays(s, inputs.q.shape[1]) for s in segments)

    def _measured_profile(self, inputs: AttentionInputs) -> LatencyProfile:
        profile = self.trace.profile
        if isinstance(profile, str):
            self.trace.profile = profile_for(
                profile,
                inputs.q.device,
                inputs.q.dtype,
                head_dim=inputs.q.shape[3],
                heads=inputs.q.shape[1],
                kv_heads=inputs.k.shape[1],
                config=self.config,
            )
        return self.trace.profile

    def _route(
        self, inputs: AttentionInputs, segments: list[Segment], layer: int
    ) -> tuple[torch.Tensor, LayerPass]:
        profile = self._measured_profile(inputs)
        heads = inputs.q.shape[1] * inputs.q.shape[0]
        works = np.array([profile.dense_us(s) * heads for s in segments])
        limit = None if self.config.budget is None else self.config.budget.limit_us(float(works.sum()))
        shares = works / works.sum()
        try:
            decisions = [
                steps.decide(
                    inputs,
                    segment,
                    layer,
                    self.config,
                    self.trace.gate,
                    profile,
                    None if limit is None else limit * float(share),
                )
                for segment, share in zip(segments, shares, strict=True)
            ]
        except NumericsError as error:
            raise NumericsError(f"layer {layer}: {error}; nothing was recorded for this prompt") from None
        started = _now(inputs.q)
        plans = [steps.plan_of(d, inputs) for d in decisions]
        plan = plans[0] if len(plans) == 1 else RowPlan.concat(plans)
        out = execute(inputs, plan, decisions, self.config.launch)
        kernel_us = (_now(inputs.q) - started) * 1e6
        started = _now(inputs.q)
        audits: list[AuditRow] = []
        if self.trace.audit_depth != "none":
            rows = None if self.trace.audit_depth == "full" else self.trace.audit_rows
            for decision in decisions:
                audits += dense_audit.audit_units(inputs, decision, rows, self.config.seed)
        pictures = tuple(heatmaps(d) for d in decisions)
        layer_pass = LayerPass(
            layer=layer,
            decisions=tuple(replace(d, probe=None, indices={}) for d in decisions),
            heatmaps=pictures,
            kernel_us=kernel_us,
            density=float(np.mean(plan.head_density().numpy(force=True))),
            limit_us=limit,
            audits=tuple(audits),
            audit_us=(_now(inputs.q) - started) * 1e6,
        )
        return out, layer_pass


def execute(
    inputs: AttentionInputs, plan: RowPlan, decisions: list[steps.Decision], launch: str
) -> torch.Tensor:
    """Run the plan: all heads in one launch, or (ablations) one per (pattern, budget) group, or one per head."""
    all_dense = bool(np.all([d.certified.choice == len(d.candidates) - 1 for d in decisions]))
    if all_dense:
        return dense_attention(inputs, None)
    if launch == "fused":
        return sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale)[0]
    heads = inputs.q.shape[1]
    keys = [tuple(int(c) for d in decisions for c in d.choice[:, h]) for h in range(heads)]
    groups: dict[object, list[int]] = {}
    for h in range(heads):
        groups.setdefault(keys[h] if launch == "grouped" else h, []).append(h)
    out = torch.empty_like(inputs.q)
    for members in groups.values():
        kv = [h // inputs.groups for h in members]
        out[:, members] = sparse_attention(
            inputs.q[:, members], inputs.k[:, kv], inputs.v[:, kv], plan.select_heads(members), inputs.scale
        )[0]
    return out


def dense_attention(inputs: AttentionInputs, window: int | None) -> torch.Tensor:
    """Exact causal attention by the fastest kernel that can express it: [B, H, n_q, D]."""
    q, k, v = inputs.q, inputs.k, inputs.v
    n_q, n_k = q.shape[2], k.shape[2]
    plain = inputs.softcap is None and inputs.sinks is None
    if plain and inputs.key_start is None and window is None and (n_q == n_k or n_q == 1):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=n_q > 1, scale=inputs.scale, enable_gqa=inputs.groups > 1
        )
    if plain and n_q * n_k <= MASKED_DENSE_LIMIT:
        position = torch.arange(n_k - n_q, n_k, device=q.device).view(-1, 1)
        key = torch.arange(n_k, device=q.device)
        mask = (key <= position) & (key >= inputs.first_keys().view(-1, 1, 1, 1))
        if window is not None:
            mask = mask & (key > position - window)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=inputs.scale, enable_gqa=inputs.groups > 1
        )
        return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    plan = RowPlan.dense(len(q), q.shape[1], n_q, n_k, device=q.device)
    plan = replace(
        plan, key_start=inputs.key_start, window=window, softcap=inputs.softcap, sinks=inputs.sinks
    )
    return sparse_attention(q, k, v, plan, inputs.scale)[0]


def _now(tensor: torch.Tensor) -> float:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
