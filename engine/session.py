"""One routed model: holds configuration, calibration, profile and trace; called once per layer by the model.

No module-level state: every ``with route(model)`` has its own session, and every record is keyed by layer and
head, so sessions of several models, ranks or threads never meet.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine import audit as dense_audit
from routesparse.engine import layer as steps
from routesparse.engine.calibration import Calibration
from routesparse.engine.config import AuditDepth, RouterConfig
from routesparse.engine.decision import Computed
from routesparse.engine.errors import CalibrationError, ConfigError, NumericsError
from routesparse.engine.execute import head_density
from routesparse.engine.graphs import Graphs
from routesparse.engine.latency import LAYERS, LatencyProfile
from routesparse.engine.predictor import PredictorTables
from routesparse.engine.probe import AttentionInputs
from routesparse.engine.profiling import device_name, profile_for
from routesparse.engine.readout import Copies, Laps
from routesparse.engine.records import AuditRow
from routesparse.engine.segments import Segment, split
from routesparse.engine.trace import PendingPass, PromptTrace, Trace
from routesparse.kernels.interface import RowPlan, sparse_attention

KEPT_PROMPTS = 4  # of a session; older ones are dropped, so that a long-lived session stays small
MASKED_DENSE_LIMIT = 1 << 22  # rows x keys up to which dense attention may materialise its mask


class RoutingSession:
    """Decides, executes and records; see ``attend``."""

    def __init__(
        self,
        config: RouterConfig,
        calibration: Calibration | None = None,
        profile: LatencyProfile | str = "auto",
        audit: AuditDepth = "none",
        audit_rows: int = dense_audit.AUDIT_ROWS,
        salt: str = "",
        graphs: Graphs[Computed] | None = None,
    ) -> None:
        """calibration: checked against model and configuration by the caller; its lambda and alpha apply.

        salt: makes the random rows this prompt's own (its hash), so that an unlucky draw does not recur on every
        prompt of one length; later prompts of the session draw anew in any case. graphs: those of earlier sessions on
        this device, whose shapes need no capture again.
        Errors: ConfigError for beta > 0 without a calibration that has an error predictor, or a gate that
        contradicts the calibration.
        """
        if config.beta and (calibration is None or calibration.predictor is None):
            raise ConfigError(
                f"beta {config.beta:g} needs an error predictor; pass a calibration that has one, or beta 0"
            )
        least = 2 * (config.least_body_rows + config.tail_tokens)
        if config.segment_tokens < least:
            raise ConfigError(
                f"segment {config.segment_tokens} tokens is too short to be probed; use at least {least}, "
                f"a multiple of {config.block_q}"
            )
        gate = config.gate_threshold
        if calibration is not None:
            if config.gate not in (None, calibration.gate):
                raise ConfigError(
                    f"gate {config.gate:g} contradicts calibration {calibration.name!r}, which froze "
                    f"{calibration.gate:g}; pass one of the two"
                )
            config, gate = replace(config, alpha=calibration.alpha), calibration.gate
        self.config = config
        self.trace = Trace(config, gate, calibration, audit, audit_rows, profile, salt)
        self._prompts = 0
        self._current: PromptTrace | None = None  # what a chunk may join; its prompt is the trace's last one
        self._in_forward = self._prefilling = False
        self._predictors: dict[torch.device, PredictorTables] = {}
        # A graph reads the predictor's tables by address, and they are this session's own.
        own = calibration is not None and calibration.predictor is not None
        self._graphs: Graphs[Computed] = Graphs() if graphs is None or own else graphs
        self._segments: dict[int, int] = {}  # segments of the current prompt already routed, by layer
        self._worth: dict[tuple[int, int, int], list[Segment] | None] = {}
        self._layers = LAYERS

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
        Errors: ConfigError for a limit below the probe's cost; NumericsError where NaN or Inf would be routed. A GPU is
        not waited for: there ``finish`` raises it.
        """
        # A model's layers may lie on several GPUs, and kernels start on the current one.
        with torch.cuda.device_of(q):
            return self._attend(AttentionInputs(q, k, v, scale, key_start, softcap, sinks), layer, window)

    def _attend(self, inputs: AttentionInputs, layer: int, window: int | None) -> torch.Tensor:
        prompt = self._current_prompt(inputs, layer)
        if prompt is None or inputs.q.shape[2] == 1:
            # Decoding waits for its tokens anyway; a session without route() is not told when a forward ends.
            self.trace.settle()
            return dense_attention(inputs, window)
        self._prefilling = self._in_forward
        segments = None if window is not None else self._worth_routing(inputs, layer)
        if segments is None:
            return dense_attention(inputs, window)
        self._segments[layer] = segments[-1].index + 1
        try:
            out, pending_pass = self._route(inputs, segments, layer)
            prompt.add(pending_pass)
            if not inputs.q.is_cuda:
                prompt.settle()
        except BaseException:
            self._forget()
            raise
        return out

    def untouched(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layer: int, scale: float | None
    ) -> torch.Tensor | None:
        """Dense attention of one layer of a whole, plain prompt that a layer before it found not worth routing.

        None where this layer has to ask (``attend``).
        """
        shape = (q.shape[2], k.shape[2], 0)
        current = self._current
        found_dense = shape[0] == shape[1] and shape in self._worth and self._worth[shape] is None
        if not found_dense or current is None or layer in current.layers:
            return None
        current.layers.add(layer)
        return _plain_attention(q, k, v, scale)

    def serve(self, layers: int) -> None:
        """The model's number of layers, which share what a prompt costs once."""
        self._layers = layers

    def start(self) -> None:
        """Before a forward pass: a prefill that ended in an error, wherever in the model, leaves no prompt behind."""
        if self._prefilling:
            self._forget()
        self._in_forward, self._prefilling = True, False

    def finish(self) -> None:
        """After a forward pass: whether anything in it was NaN or Inf, which a GPU was not asked before.

        Errors: NumericsError; nothing is recorded of that prompt.
        """
        self._in_forward = self._prefilling = False
        self.trace.settle()

    def _forget(self) -> None:
        """A prompt that was not routed to its end must not look like one that was, nor take a later chunk."""
        if self.trace.prompts and self.trace.prompts[-1] is self._current:
            self.trace.prompts.pop()
        self._current = None

    def _current_prompt(self, inputs: AttentionInputs, layer: int) -> PromptTrace | None:
        """The prompt this call belongs to: a new one where no earlier keys are cached and the layer comes again.

        None where keys are cached that this session never saw, or saw in a prompt that failed.
        """
        batch, heads, n_q, head_dim = inputs.q.shape
        kv_heads, n_k = inputs.k.shape[1:3]
        prompts = self.trace.prompts
        current = self._current if prompts and prompts[-1] is self._current else None
        if n_q == n_k and (current is None or layer in current.layers):
            device, dtype = device_name(inputs.q.device), str(inputs.q.dtype).removeprefix("torch.")
            self.trace.settle()
            del prompts[: -KEPT_PROMPTS + 1]
            current = self._current = PromptTrace(batch, n_k, heads, kv_heads, head_dim, device, dtype)
            prompts.append(current)
            self._segments = {}
            self._prompts += 1
        if current is None:
            return None
        current.layers.add(layer)
        if n_q > 1:
            current.tokens = max(current.tokens, n_k)
        return current

    def _seed(self) -> int:
        """The current prompt's seed: the configuration's own for the first prompt of an unsalted session."""
        if not self.trace.salt and self._prompts == 1:
            return self.config.seed
        return steps.stable_seed(self.config.seed, self.trace.salt, self._prompts)

    def _worth_routing(self, inputs: AttentionInputs, layer: int) -> list[Segment] | None:
        """The segments of this call, or None where dense attention is as fast; decided once for all layers."""
        shape = (inputs.q.shape[2], inputs.k.shape[2], self._segments.get(layer, 0))
        if shape not in self._worth:
            segments = split(*shape[:2], self.config, shape[2])
            self._worth = {shape: segments if self._pays(inputs, segments) else None}
        return self._worth[shape]

    def _pays(self, inputs: AttentionInputs, segments: list[Segment]) -> bool:
        if any(s.body < self.config.least_body_rows for s in segments):
            return False
        if self.config.break_even_tokens is not None:
            return segments[-1].keys >= self.config.break_even_tokens
        return self._measured_profile(inputs).pays(segments, inputs.q.shape[1], self._layers)

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
            calibration = self.trace.calibration
            differs = None if calibration is None else calibration.cost_mismatch(self.trace.profile)
            if differs is not None:
                raise CalibrationError(differs)
        return self.trace.profile

    def _route(
        self, inputs: AttentionInputs, segments: list[Segment], layer: int
    ) -> tuple[torch.Tensor, PendingPass]:
        profile = self._measured_profile(inputs)
        heads = inputs.q.shape[1] * inputs.q.shape[0]
        works = np.array([profile.dense_us(s) * heads for s in segments])
        limit = None if self.config.budget is None else self.config.budget.limit_us(float(works.sum()))
        shares = works / works.sum()
        try:
            pendings = [
                steps.begin(
                    inputs,
                    segment,
                    layer,
                    self.config,
                    self.trace.gate,
                    profile,
                    None if limit is None else limit * float(share),
                    self._seed(),
                    self._predictor_on(inputs.q.device),
                    self._graphs,
                )
                for segment, share in zip(segments, shares, strict=True)
            ]
        except NumericsError as error:
            raise NumericsError(f"layer {layer}: {error}; nothing was recorded for this prompt") from None
        laps = Laps(inputs.q.device)
        plans = [steps.plan_of(p, inputs) for p in pendings]
        plan = plans[0] if len(plans) == 1 else RowPlan.concat(plans)
        density = pendings[0].density if len(plans) == 1 else None
        out, finite = execute(inputs, plan, pendings, self.config.launch)
        laps.lap()
        audits: list[AuditRow] = []
        if self.trace.audit_depth != "none":
            for pending, mine in zip(pendings, plans, strict=True):
                ran = dense_audit.Executed(out, mine.dense_rows)
                audits += self._audit(inputs, pending.read(), ran)
        laps.lap()
        pending_pass = PendingPass(
            layer=layer,
            pendings=tuple(replace(p, probe=None, indices={}, plan=None, density=None) for p in pendings),
            laps=laps,
            copies=Copies({"density": head_density(plan) if density is None else density, "finite": finite}),
            limit_us=limit,
            audits=tuple(audits),
        )
        return out, pending_pass

    def _audit(
        self, inputs: AttentionInputs, decision: steps.Decision, executed: dense_audit.Executed
    ) -> list[AuditRow]:
        """The dense audit of one decision; the time it takes is not part of the prefill's."""
        rows = None if self.trace.audit_depth == "full" else self.trace.audit_rows
        return dense_audit.audit_units(inputs, decision, rows, self._seed(), self.config.row_level, executed)

    def _predictor_on(self, device: torch.device) -> PredictorTables | None:
        calibration = self.trace.calibration
        if calibration is None or calibration.predictor is None:
            return None
        # Kept for each device: graphs know a predictor by its identity and read its tables where they lie.
        if device not in self._predictors:
            self._predictors[device] = calibration.predictor.on(device)
        return self._predictors[device]


def execute(
    inputs: AttentionInputs, plan: RowPlan, pendings: list[steps.Pending], launch: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the plan: all heads in one launch, or (ablations, which ask the device for its choice) one per
    (pattern, budget) group, or one per head. Returns the output and whether it is finite, a bool scalar.
    """
    q, k, v = inputs.q, inputs.k, inputs.v
    # Only a CPU's choice is at hand; on a GPU dense heads are rows of the one launch.
    if not q.is_cuda and all(bool((p.choice == len(p.candidates) - 1).all()) for p in pendings):
        out = dense_attention(inputs, None)
        return out, torch.isfinite(out).all()
    if launch == "fused":
        out, lse = sparse_attention(q, k, v, plan, inputs.scale)
        return out, _finite(inputs, lse)
    heads = q.shape[1]
    choices = [p.choice.tolist() for p in pendings]
    keys = [tuple(row[h] for choice in choices for row in choice) for h in range(heads)]
    groups: dict[object, list[int]] = {}
    for h in range(heads):
        groups.setdefault(keys[h] if launch == "grouped" else h, []).append(h)
    out = torch.empty_like(q)
    for members in groups.values():
        kv = [h // inputs.groups for h in members]
        out[:, members] = sparse_attention(
            q[:, members], k[:, kv], v[:, kv], plan.select_heads(members), inputs.scale
        )[0]
    return out, torch.isfinite(out).all()


def _finite(inputs: AttentionInputs, lse: torch.Tensor) -> torch.Tensor:
    """Whether an output is finite, without reading it: a mean of values is where logits and values are.

    The log-sum-exp of a padding row is -inf by right.
    """
    positions = torch.arange(inputs.k.shape[2] - inputs.q.shape[2], inputs.k.shape[2], device=lse.device)
    padding = positions < inputs.first_keys().view(-1, 1, 1)
    # A sum carries NaN and Inf along and needs no second tensor.
    return (torch.isfinite(lse) | padding).all() & torch.isfinite(inputs.v.sum(dtype=torch.float32))


def _plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None) -> torch.Tensor:
    """Causal attention without padding of a whole prompt, or of one query over all keys; scale None: d^-1/2."""
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=q.shape[2] > 1, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


def dense_attention(inputs: AttentionInputs, window: int | None) -> torch.Tensor:
    """Exact causal attention by the fastest kernel that can express it: [B, H, n_q, D]."""
    q, k, v = inputs.q, inputs.k, inputs.v
    n_q, n_k = q.shape[2], k.shape[2]
    plain = inputs.softcap is None and inputs.sinks is None
    if plain and inputs.key_start is None and window is None and (n_q == n_k or n_q == 1):
        return _plain_attention(q, k, v, inputs.scale)
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
