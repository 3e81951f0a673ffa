"""One routed model: holds configuration, calibration, profile and trace; called once per layer by the model.

Every ``with route(model)`` has its own session, and every record is keyed by layer and head, so sessions of several
models, ranks or threads never meet; those of one model share what a GPU captured (route.py).

Whether routing pays is the same for all layers of a plain prompt. So the first layer asks the session, and below
break-even the others call the dense kernel at once (``untouched``). Padded prompts, sliding windows, chunks and
gradients ask in every layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import torch

from routesparse.engine.audit.rows import Auditor, Executed
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import AuditDepth, RouterConfig
from routesparse.engine.decide.ahead import Layer, ready
from routesparse.engine.decide.decision import LayerSettings, Pending
from routesparse.engine.decide.layer import attended, begin, is_whole, plan_of
from routesparse.engine.device.barriers import Barriers
from routesparse.engine.device.copies import Copies
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import CalibrationError, ConfigError, NumericsError
from routesparse.engine.method.attend import dense_attention, execute, head_density, joined, plain_attention
from routesparse.engine.method.latency import LAYERS, LatencyProfile
from routesparse.engine.method.predictor import PredictorTables
from routesparse.engine.method.segments import Segment, split
from routesparse.engine.profiles.shape import AttentionShape
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.record.passes import PendingPass, ProfileByName, RunSettings
from routesparse.engine.record.trace import Trace
from routesparse.engine.rows import Audited
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.current_prompt import CurrentPrompt
from routesparse.engine.runtime.tensor_parallel import Ranks, caught
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.compile_ahead import compiler_of

T = TypeVar("T")


class RoutingSession(AttentionRouter):
    """Decides, executes and records; see ``attend``."""

    def __init__(
        self,
        config: RouterConfig,
        calibration: Calibration | None = None,
        *,
        profile: LatencyProfile | ProfileByName,
        auditor: Auditor | None = None,
        salt: str = "",
        graphs: Graphs | None = None,
        progress: Progress = no_progress,
        tuned_price: str | None = None,
        prompts: type[CurrentPrompt] = CurrentPrompt,
    ) -> None:
        """calibration: checked against model and configuration by the caller; its lambda and alpha apply.

        profile: a ProfileByName is looked for when the first prompt that may be routed asks for its numbers.
        auditor: sees every decision after its layer ran; None audits nothing. salt: makes the random rows this prompt's
        own (its hash), so that an unlucky draw does not recur on every prompt of one length; later prompts of the
        session draw anew in any case. graphs: those of earlier sessions on this device, whose shapes need no capture
        again. progress: told how far compiling is, on a GPU that has not run such a prompt yet. tuned_price: for the
        record, the name of the quality target that set the configuration's price. prompts: tells prompts apart.
        Errors: ConfigError for beta > 0 without a calibration that has an error predictor, or a
        gate_threshold that contradicts the calibration.
        """
        predicts = calibration is not None and calibration.predictor is not None
        config.check_runnable(predicts)
        gate_threshold = config.effective_gate_threshold
        if calibration is not None:
            frozen = calibration.gate_threshold
            # Under the policy "priced" there is none: each unit has its own.
            if frozen is not None:
                if config.gate_threshold not in (None, frozen):
                    raise ConfigError(
                        f"gate_threshold {config.gate_threshold:g} contradicts calibration {calibration.name!r}, "
                        f"which froze {frozen:g}; pass one of the two"
                    )
                gate_threshold = frozen
            config = replace(config, alpha=calibration.alpha)
        self.config = config
        depth: AuditDepth = "none" if auditor is None else auditor.depth
        run = RunSettings(config, gate_threshold, calibration, profile, depth, salt, tuned_price)
        self.trace = Trace(run)
        self._auditor = auditor
        self._prompt = prompts(self.trace)
        self._lock = threading.Lock()  # a second thread that decodes waits; one that prefills is refused
        self._predictors: dict[torch.device, PredictorTables] = {}
        # A graph reads the predictor's tables by address, and they are this session's own.
        self.graphs: Graphs = Graphs() if graphs is None or predicts else graphs
        self._worth: dict[tuple[int, int, int], list[Segment] | None] = {}
        self._layers = LAYERS
        self._barriers = Barriers()
        self._progress = progress

    def prepare(self, blank: AttentionInputs, device: torch.device) -> None:
        """Compile what a layer launches on a GPU with inputs like these, so that compiling is not part of a prefill.

        blank: ahead.blank_inputs of a whole prompt. Nothing is compiled where the prompt would run dense.
        """
        if self.routes(blank):
            ready(compiler_of(device), self.layer_of(blank), self._progress)

    def layer_of(self, blank: AttentionInputs) -> Layer:
        """A layer with inputs like these, were it routed; for ``ahead``."""
        segments = split(blank.q.shape[2], blank.k.shape[2], self.config)
        settings = self._settings(blank)
        _, limits_us = self._limits(blank, segments, settings.profile)
        return Layer(blank, segments, settings, limits_us)

    def routes(self, inputs: AttentionInputs) -> bool:
        """Whether a call of these shapes, on this device, is long enough to be routed; no value is read."""
        return self._worth_routing(inputs, 0) is not None

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """One layer's causal attention: [B, H, n_q, D].

        n_q < n_k is a chunk of a longer prompt, bottom-right aligned. Decoding, prompts below break-even and
        layers with a sliding window (already linear in n) run dense and unprobed.
        Errors: ConfigError for a limit below the probe's cost; PromptError where two threads prefill at once;
        NumericsError where NaN or Inf would be routed. A GPU is not waited for: there ``finish`` raises it.
        """
        # A model's layers may lie on several GPUs, and kernels start on the current one.
        with self._lock, torch.cuda.device_of(inputs.q):
            return self._attend(inputs, layer, window)

    def _attend(self, inputs: AttentionInputs, layer: int, window: int | None) -> torch.Tensor:
        prompt = self._prompt.of_call(inputs, layer, windowed=window is not None)
        if prompt is None or inputs.q.shape[2] == 1:
            if inputs.q.shape[2] > 1:
                self.trace.continues_unknown = True
            # Decoding waits for its tokens anyway; a session without route() is not told when a forward ends.
            self.trace.settle()
            return dense_attention(inputs, window)
        segments = None if window is not None else self._worth_routing(inputs, layer)
        if segments is None:
            return dense_attention(inputs, window)
        self._prompt.routed_segments[layer] = segments[-1].index + 1
        try:
            with self._barriers.of_layer(inputs.q.device):
                out, pending_pass = self._route(inputs, segments, layer)
            prompt.add(pending_pass)
            if not inputs.q.is_cuda:
                prompt.read()
        except BaseException:
            self._prompt.forget()
            raise
        return out

    def untouched(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layer: int, scale: float | None
    ) -> torch.Tensor | None:
        """Dense attention of one layer of a whole prompt that a layer before it found not worth routing.

        None where this layer has to ask (``attend``).
        """
        shape = (q.shape[2], k.shape[2], 0)
        found_dense = shape[0] == shape[1] and shape in self._worth and self._worth[shape] is None
        if not found_dense or not self._prompt.join(layer):
            return None
        return plain_attention(q, k, v, scale)

    def serve(self, layers: int) -> None:
        self._layers = layers

    def start(self) -> None:
        self._prompt.start_forward()

    def finish(self) -> None:
        """Read what the forward pass left on the device: only now is a GPU asked for NaN and Inf.

        Errors: NumericsError; nothing is recorded of that prompt.
        """
        try:
            self.end_forward()
        finally:
            self.settle()

    def end_forward(self) -> None:
        """The first half of ``finish``, for a caller that does not wait for a GPU."""
        with self._lock:
            self._prompt.finish_forward()

    def settle(self, wait: bool = True) -> bool:
        """The second half; wait: else a GPU is not asked of what it is still at, and False where there is some."""
        with self._lock:
            self.trace.settle(wait)
            return not any(prompt.launched for prompt in self.trace.prompts[-1:])

    def _worth_routing(self, inputs: AttentionInputs, layer: int) -> list[Segment] | None:
        """The segments of this call, or None where dense attention is as fast; decided once for all layers."""
        shape = (inputs.q.shape[2], inputs.k.shape[2], self._prompt.routed_segments.get(layer, 0))
        if shape not in self._worth:
            segments = split(*shape[:2], self.config, shape[2])
            self._worth = {shape: segments if self._pays(inputs, segments) else None}
        return self._worth[shape]

    def _pays(self, inputs: AttentionInputs, segments: list[Segment]) -> bool:
        if any(s.body < self.config.least_body_rows for s in segments):
            return False
        if (least := self.config.break_even_tokens) is not None:
            # A chunk counts by its dense work: a short one behind many keys takes the probe's time for few rows.
            rows, keys = inputs.q.shape[2], inputs.k.shape[2]
            return rows * (2 * keys - rows) >= least**2
        return self._measured_profile(inputs).pays(segments, inputs.q.shape[1], self._layers)

    def _route(
        self, inputs: AttentionInputs, segments: list[Segment], layer: int
    ) -> tuple[torch.Tensor, PendingPass]:
        """The six steps for every segment of the call, one launch for all of them, and the audit."""
        settings = self._settings(inputs)
        limit_us, shares_us = self._limits(inputs, segments, settings.profile)
        if inputs.q.is_cuda:
            ready(compiler_of(inputs.q.device), Layer(inputs, segments, settings, shares_us), self._progress)
        alone = self._auditor is None and len(segments) == 1 and self.graphs.captures
        if alone and is_whole(inputs, self.config):
            out, pending, copies = attended(inputs, segments[0], layer, settings, shares_us[0], self.graphs)
            return out, PendingPass(layer, (_left(pending),), None, copies, limit_us, ())
        try:
            pendings = [
                begin(inputs, segment, layer, settings, share_us, self.graphs)
                for segment, share_us in zip(segments, shares_us, strict=True)
            ]
        except NumericsError as error:
            dtype = str(inputs.q.dtype).removeprefix("torch.")
            raise NumericsError.in_layer(layer, error, dtype) from None
        laps = Laps(inputs.q.device)
        plans = [plan_of(p, inputs) for p in pendings]
        plan = joined(plans)
        density = pendings[0].density if len(plans) == 1 else None
        # A GPU is not asked what its plan holds: there a dense head is rows of the one launch.
        if not inputs.q.is_cuda and bool(plan.dense_rows.all()):
            out = dense_attention(inputs, None)
            finite = torch.isfinite(out).all()
        else:
            out, finite = execute(inputs, plan, self.config.launch, [p.choice for p in pendings])
        laps.lap()
        audits: list[Audited] = []
        if self._auditor is not None:
            for pending, mine in zip(pendings, plans, strict=True):
                ran = Executed(out, mine.dense_rows)
                audits.append(self._auditor.audit(inputs, pending.read(), settings, ran))
        laps.lap()
        pending_pass = PendingPass(
            layer=layer,
            pendings=tuple(map(_left, pendings)),
            laps=laps,
            copies=Copies({"density": head_density(plan) if density is None else density, "finite": finite}),
            limit_us=limit_us,
            audits=tuple(audits),
        )
        return out, pending_pass

    def _limits(
        self, inputs: AttentionInputs, segments: list[Segment], profile: LatencyProfile
    ) -> tuple[float | None, list[float | None]]:
        """T_l, and the part of each segment: as its dense work is of the layer's."""
        if self.config.budget is None:
            return None, [None] * len(segments)
        units = inputs.q.shape[0] * inputs.q.shape[1]
        works_us = np.array([profile.dense_us(s) * units for s in segments])
        limit_us = self.config.budget.limit_us(float(works_us.sum()))
        return limit_us, [limit_us * float(share) for share in works_us / works_us.sum()]

    def _settings(self, inputs: AttentionInputs) -> LayerSettings:
        """What decides in every layer of the current prompt on the inputs' device."""
        run = self.trace.settings
        # The first prompt of a session without a salt draws by the configuration's own seed.
        own = not run.salt and self._prompt.number == 1
        return LayerSettings(
            config=self.config,
            gate_threshold=run.gate_threshold,
            profile=self._measured_profile(inputs),
            predictor=self._predictor_on(inputs.q.device),
            prompt_seed=None if own else stable_seed(self.config.seed, run.salt, self._prompt.number),
        )

    def _measured_profile(self, inputs: AttentionInputs) -> LatencyProfile:
        """The run's latency profile; the first call finds or measures the one that was asked for by name.

        Errors: ProfileError; CalibrationError where the calibration was made with other costs.
        """
        run = self.trace.settings
        if isinstance(run.profile, LatencyProfile):
            return run.profile
        profile = run.profile.on(AttentionShape.of(inputs), self.config)
        differs = None if run.calibration is None else run.calibration.cost_mismatch(profile)
        if differs is not None:
            raise CalibrationError(differs)
        self.trace.settings = replace(run, profile=profile)
        return profile

    def _predictor_on(self, device: torch.device) -> PredictorTables | None:
        calibration = self.trace.settings.calibration
        if calibration is None or calibration.predictor is None:
            return None
        # Kept for each device: graphs know a predictor by its identity and read its tables where they lie.
        if device not in self._predictors:
            self._predictors[device] = calibration.predictor.on(device)
        return self._predictors[device]


def _left(pending: Pending) -> Pending:
    """Without what the next layer needs the memory of."""
    return replace(pending, probe=None, indices={}, plan=None, density=None)


class RankSession(RoutingSession):
    """A routing session of one process's heads."""

    def __init__(self, *arguments: Any, ranks: Ranks, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ranks = ranks
        self._failed: Exception | None = None
        self._prefilled = False
        self.trace.share = ranks

    def start(self) -> None:
        self._failed, self._prefilled = None, False
        super().start()

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """As RoutingSession, but errors wait for the end of the forward pass."""
        self._prefilled |= inputs.q.shape[2] > 1

        def own() -> torch.Tensor:
            self._ranks.check_share(inputs.q.shape[1])
            return RoutingSession.attend(self, inputs, layer=layer, window=window)

        return self._unless_failed(inputs.q, own)

    def untouched(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layer: int, scale: float | None
    ) -> torch.Tensor | None:
        """As RoutingSession, but errors wait for the end of the forward pass."""
        own = partial(RoutingSession.untouched, self, q, k, v, layer=layer, scale=scale)
        return self._unless_failed(q, own)

    def finish(self) -> None:
        """Errors: as Ranks.agree; nothing is recorded of that prompt, in no process."""
        if self._failed is None:
            _, self._failed = caught(super().finish)
        if self._prefilled:
            try:
                self._ranks.agree(self._failed)
            except Exception:
                self._prompt.forget()
                raise
        elif self._failed is not None:
            # Decoding does not compare notes at every token: leaving the block ends the group.
            raise self._failed

    def _unless_failed(self, q: torch.Tensor, attend: Callable[[], T]) -> T | torch.Tensor:
        if self._failed is None:
            out, self._failed = caught(attend)
            if self._failed is None:
                return cast(T, out)
        return torch.zeros_like(q)

    def _settings(self, inputs: AttentionInputs) -> LayerSettings:
        ranks = self._ranks
        return replace(super()._settings(inputs), first_head=ranks.first_head, all_heads=ranks.heads)
