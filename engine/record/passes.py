"""What the layers of one prompt leave behind while a routed model runs; to_rows.py makes a bundle's records of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import AuditDepth, RouterConfig
from routesparse.engine.decide.decision import Decision, Pending
from routesparse.engine.decide.heatmap import Heatmap
from routesparse.engine.device.copies import Copies
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import NumericsError
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.rows import Audited, PromptRow


@dataclass(frozen=True)
class LayerPass:
    """What one call of one layer left behind (a prompt, or a chunk of it)."""

    layer: int
    decisions: tuple[Decision, ...]  # without their probe tensors
    heatmaps: tuple[tuple[Heatmap, ...], ...]  # per decision, per unit
    kernel_us: float
    densities: np.ndarray  # float64 [B, H] of the plan that ran, tail included
    limit_us: float | None
    audits: tuple[Audited, ...]  # one a segment
    audit_us: float

    @property
    def density(self) -> float:
        """Mean over prompts and heads."""
        return float(self.densities.mean())

    def sum_of(self, name: str) -> float:
        """Sum of a Decision's number over this pass's segments."""
        return float(sum(getattr(d, name) for d in self.decisions))

    @property
    def deciding_us(self) -> float:
        """Probe, indices and routing of all segments, as measured."""
        return sum(self.sum_of(name) for name in ("probe_us", "index_us", "route_us"))


@dataclass(frozen=True)
class PendingPass:
    """A LayerPass whose numbers may still be on the device."""

    layer: int
    pendings: tuple[Pending, ...]  # without what the next layer needs the memory of
    laps: Laps | None  # kernel, audit; None: the kernel's are among the copies, and nothing was audited
    copies: Copies  # density float64 [B, H] of the plan that ran, finite bool, perhaps kernel_us float64 [1]
    limit_us: float | None
    audits: tuple[Audited, ...]  # one a segment

    def check(self, dtype: str) -> None:
        """Wait for the device. dtype: of the prompt. Errors: NumericsError where it met NaN or Inf."""
        finite = self.copies.numpy()["finite"]
        scored = all(pending.readout.first("finite") for pending in self.pendings)
        if not (scored and finite):
            error = NumericsError(f"NaN or Inf in the attention {'output' if scored else 'scores'}")
            raise NumericsError.in_layer(self.layer, error, dtype)

    def read(self) -> LayerPass:
        """What a checked pass left behind."""
        values = self.copies.numpy()
        kernel_us, audit_us = self.laps.elapsed_us() if self.laps else (values["kernel_us"].item(), 0.0)
        return LayerPass(
            layer=self.layer,
            decisions=tuple(pending.read() for pending in self.pendings),
            heatmaps=tuple(pending.heatmaps.read() for pending in self.pendings),
            kernel_us=kernel_us,
            densities=values["density"],
            limit_us=self.limit_us,
            audits=self.audits,
            audit_us=audit_us,
        )


class CallPasses:
    """The layer passes of one call of the model: launched, then known to be finite, then read."""

    def __init__(self) -> None:
        self._launched: list[PendingPass] = []
        self._checked: list[PendingPass] = []
        self.done: list[LayerPass] = []
        # The model's thread reads while its next call computes, perhaps while its user does.
        self._reading = threading.RLock()

    @property
    def launched(self) -> bool:
        """Whether passes may still be running."""
        return bool(self._launched)

    @property
    def is_empty(self) -> bool:
        """Whether there is no pass, for which nothing is read."""
        return not (self._launched or self._checked or self.done)

    def add(self, layer_pass: PendingPass) -> None:
        """The next layer pass, perhaps still running."""
        self._launched.append(layer_pass)

    def settle(self, dtype: str, wait: bool = True) -> None:
        """Read of every pass no more than whether it is finite; wait: else of those that a GPU is done with.

        Errors: as PendingPass.check.
        """
        with self._reading:
            # What leaves the device last says that all of a pass has left.
            while self._launched and (wait or self._launched[0].copies.have_arrived):
                self._launched[0].check(dtype)
                self._checked.append(self._launched.pop(0))

    def read_checked(self) -> None:
        """Read what is known to be finite; this waits for nothing."""
        with self._reading:
            while self._checked:
                self.done.append(self._checked[0].read())
                del self._checked[0]


@dataclass
class PromptTrace:
    """One prompt: every routed layer pass, in order. No passes: dense ran untouched."""

    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    device: str
    dtype: str
    layers: set[int] = field(default_factory=set)
    # Shared by prompts that continue the same one, so that each call is read once.
    _calls: list[CallPasses] = field(default_factory=lambda: [CallPasses()])

    def copied(self) -> PromptTrace:
        """This prompt as it is now, for a chunk to continue. Errors: as settle."""
        self.settle()
        return replace(self, layers=set(self.layers), _calls=[*self._calls, CallPasses()])

    def add(self, layer_pass: PendingPass) -> None:
        """The next layer pass of the last call, perhaps still running."""
        self._calls[-1].add(layer_pass)

    @property
    def launched(self) -> bool:
        """Whether passes of the last call may still be running."""
        return self._calls[-1].launched

    @property
    def is_empty(self) -> bool:
        """Whether no layer was routed, for which nothing is read."""
        return all(call.is_empty for call in self._calls)

    def settle(self, wait: bool = True) -> None:
        """Read of every pass no more than whether it is finite; wait: else of those that a GPU is done with.

        A model's prefill ends with this; reading the pictures of 64 units takes milliseconds, in which a GPU would
        have nothing to do. Errors: NumericsError, again on every call.
        """
        for call in self._calls:
            call.settle(self.dtype, wait)

    def read_checked(self) -> None:
        """Read what is known to be finite; this waits for nothing."""
        for call in self._calls:
            call.read_checked()

    def read(self) -> None:
        """Read every pass: until then its numbers lie in memory that later copies could use. Errors: as settle."""
        self.settle()
        self.read_checked()

    @property
    def passes(self) -> list[LayerPass]:
        """Every layer pass, read. Errors: as settle."""
        self.read()
        return [layer_pass for call in self._calls for layer_pass in call.done]

    @property
    def audit_ms(self) -> float:
        """Time spent auditing inside the forward pass; it is not part of prefill."""
        return sum(p.audit_us for p in self.passes) / 1e3

    def timings(self) -> dict[str, float]:
        """Milliseconds in probe, index, route and kernel over the routed layers, and their sum as total."""
        return timings_of(self.passes)

    def decisions(self) -> Iterator[Decision]:
        """Every decision of the prompt, layer passes in order."""
        for layer_pass in self.passes:
            yield from layer_pass.decisions


class ProfileByName(Protocol):
    """A latency profile that is known by name only, until a prompt long enough to be routed asks for its numbers."""

    @property
    def name(self) -> str:
        """As records name it."""

    def on(self, shape: Any, config: RouterConfig) -> LatencyProfile:
        """Find or measure it (``profiles/measure.py``)."""


@dataclass(frozen=True)
class RunSettings:
    """What every prompt of a session is routed with."""

    config: RouterConfig
    gate_threshold: float  # lambda
    calibration: Calibration | None
    profile: LatencyProfile | ProfileByName
    audit_depth: AuditDepth
    salt: str = ""  # with config.seed it places the random rows
    tuned_price: str | None = None  # the quality target that set config.price, by its name


@dataclass(frozen=True)
class Served:
    """That a prompt was a request of a server, recorded as one of so many; the page Fleet shows these runs."""

    by: str  # the server's name, such as "vllm"
    one_in: int  # routed requests for each recorded one


@dataclass(frozen=True)
class RunInfo:
    """What a record says about a run besides its decisions."""

    model: str = "unnamed"
    model_revision: str = ""
    tokenizer_hash: str = ""
    prompt_name: str = "unnamed"
    prompt_sha256: str = ""
    domain: str | None = None
    prompt: PromptRow | None = None
    total_ms: float | None = None
    dense_ms: float | None = None
    top1_agreement: float | None = None
    logit_error: float | None = None
    kl_nats: float | None = None
    calibration_mismatch: str | None = None
    run_id: str | None = None  # None: a new one; a job's worker names its run before it starts
    rope: str | None = None  # the JSON of the RopeScaling that the model was loaded with
    served: Served | None = None  # None: somebody's analysis
    cached_tokens: int = 0  # its first ones, whose keys another request left: nothing was decided of them
    probe_bytes: int | None = None  # of heatmaps before compression; None: to_rows.PROBE_BYTES


def timings_of(passes: list[LayerPass]) -> dict[str, float]:
    """Milliseconds in probe, index, route and kernel over some layer passes, and their sum as total."""
    sums = {
        f"{part}_ms": sum(p.sum_of(f"{part}_us") for p in passes) / 1e3
        for part in ("probe", "index", "route")
    }
    sums["kernel_ms"] = sum(p.kernel_us for p in passes) / 1e3
    return {**sums, "total_ms": sum(sums.values())}
