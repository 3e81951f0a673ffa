"""Hardware profiling (paper section 3.5): measure plans and the probe, fit the latency model.

A profile belongs to one device, thread count, dtype, head size and group size. ``profile_for("auto")`` takes a
shipped or cached one that fits, else measures a quick one (a few seconds on a CPU) and caches it.
"""

from __future__ import annotations

import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import begin, plan_of
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.names import device_name
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import Segment, split
from routesparse.engine.profiles.files import fitting, load_profile
from routesparse.engine.profiles.plans import PlanCase, PromptPlans, Work, random_inputs, synthetic, work_of
from routesparse.engine.profiles.shape import SHORT_NAMES, AttentionShape
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.provenance import now
from routesparse.kernels.interface import sparse_attention

if TYPE_CHECKING:
    from routesparse.engine.models.load import LoadedModel, ModelShape

FULL_LENGTHS = (2_048, 4_096, 8_192, 16_384)
GPU_LENGTHS = (8_192, 12_288, 16_384, 32_768, 65_536, 131_072)
FULL_PLANS, QUICK_PLANS = 6, 3  # synthetic plans a length: all of plans.MIXES, or the first three
QUICK: dict[str, Any] = {"lengths": (2_048, 6_144), "plans": QUICK_PLANS}  # a first run: seconds
# Shorter ones time the launch alone.
GPU_QUICK: dict[str, Any] = {"lengths": (8_192, 32_768), "plans": QUICK_PLANS}
CHECKED_PLANS = 2  # a length, drawn anew, in no fit
REPEATS = 3
GPU_WARM_UP = 3  # compiles kernels, then captures graphs; a CPU needs one
PROBES_IN_A_ROW = 8  # on a GPU: layer after layer, as in a forward pass
BUSY_CYCLES = 2_000_000  # about a ms
FIT_ROUNDS = 12
SYNTHETIC, RECORDED, PROBE = "synthetic", "recorded", "probe, builders, router, certificate"
COSTS = ("row_us", "tile_us", "column_us", "dense_row_us", "dense_tile_us")


def profile_for(
    name: str, shape: AttentionShape, config: RouterConfig, progress: Progress = no_progress
) -> LatencyProfile:
    """The named profile, or with "auto" the one that fits this machine, measured quickly where none does.

    Errors: ProfileError for an unknown name, a corrupt file, or a profile of another device or head size.
    """
    wanted = shape.profile_name(config)
    if name != "auto":
        profile = load_profile(name)
        if profile.name != wanted:
            raise ProfileError(
                f"profile {profile.name} was measured for {profile.device}, {profile.dtype}, head size "
                f"{profile.head_dim}, {profile.threads} threads; this run needs {wanted}; run `routesparse profile`"
            )
        return profile
    if (found := stored(shape, config)) is not None:
        return found
    profile = measure(shape, config, **quick(shape.device), progress=progress)
    profile.save(paths.profiles())
    return profile


def stored(shape: AttentionShape, config: RouterConfig) -> LatencyProfile | None:
    """The one that fits this machine, of those measured here or shipped. Errors: ProfileError."""
    wanted, shipped = shape.profile_name(config), paths.DATA / "profiles"
    # A tile costs a head what it costs, however many heads share its keys.
    others = sorted(shipped.glob(re.sub(r"-g\d+-", "-g*-", wanted) + ".json"))
    places = (paths.profiles() / f"{wanted}.json", shipped / f"{wanted}.json", *others)
    return next((found for path in places if (found := fitting(path)) is not None), None)


@dataclass(frozen=True)
class NamedProfile:
    """A profile that is known by name only; ``on`` finds it, or with "auto" measures one, when it is asked for."""

    name: str = "auto"

    def on(self, shape: AttentionShape, config: RouterConfig) -> LatencyProfile:
        """See ``profile_for``."""
        return profile_for(self.name, shape, config)

    def known(self, shape: AttentionShape, config: RouterConfig) -> LatencyProfile | None:
        """As ``on``, but nothing is measured: None where that would be needed. Errors: ProfileError."""
        return stored(shape, config) if self.name == "auto" else self.on(shape, config)


def quick(device: torch.device) -> dict[str, Any]:
    """Arguments of ``measure`` for a first run of seconds."""
    return GPU_QUICK if device.type == "cuda" else QUICK


def measure(
    shape: AttentionShape,
    config: RouterConfig,
    *,
    lengths: tuple[int, ...] | None = None,
    plans: int = FULL_PLANS,
    prompts: PromptPlans | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> LatencyProfile:
    """Time plans, dense attention and the probe, and fit the latency model (``plans.py`` says on which plans).

    The fit takes the best of the repeats (the others carry other processes' work) and minimises the sum of absolute
    relative errors; all coefficients are >= 0. It is checked on plans that are in no fit: with prompts on other
    prompts, routed by the fitted profile; else on plans drawn anew.
    lengths: None for the device's own. plans: synthetic ones a length. prompts: fit on what the router makes of them,
    but for what a single column costs.
    """
    device, heads = shape.device, shape.heads
    if lengths is None:
        lengths = GPU_LENGTHS if device.type == "cuda" else FULL_LENGTHS
    generator = torch.Generator(device).manual_seed(seed)
    layers = 0 if prompts is None else prompts.passes
    clock = _Clock(device, progress, len(lengths) * (plans + CHECKED_PLANS + 2) + layers)
    setups: list[float] = []
    for n in lengths:
        inputs = random_inputs(n, shape, generator)
        segment = split(n, n, replace(config, segment_tokens=n // config.block_q * config.block_q))[-1]
        clock.dense(inputs, segment)
        decided = begin(inputs, segment, 0, free_settings(config))
        cases = synthetic(inputs, decided, plans + CHECKED_PLANS, seed)
        for number, case in enumerate(cases):
            clock.plan(case, f"{SYNTHETIC} {number + 1}", SYNTHETIC, number < plans)
        graphs: Graphs = Graphs()
        probe = partial(_probe_once, inputs, segment, config)
        timed = clock.probe(partial(probe, graphs), segment.keys, heads)
        if device.type == "cuda":
            setups.append(_setup_us(probe, timed))
    costs = clock.fit(SYNTHETIC)
    # A key that is read by itself takes no less than its share of a block; on a CPU a fit may find nothing.
    costs["column_us"] = max(costs["column_us"], costs["tile_us"] / config.block_k)
    profile = LatencyProfile(
        name=shape.profile_name(config),
        device=device_name(device),
        backend="triton" if device.type == "cuda" else "torch",
        dtype=SHORT_NAMES[shape.dtype],
        head_dim=shape.head_dim,
        groups=heads // shape.kv_heads,
        threads=torch.get_num_threads(),
        block_q=config.block_q,
        block_k=config.block_k,
        **costs,
        probe_head_us=0.0,
        setup_us=statistics.median(setups) if setups else 0.0,
        median_error=0.0,
        versions={"torch": torch.__version__, "python": platform.python_version()},
        created_at=now(),
        command="routesparse profile",
    )
    source = SYNTHETIC
    if prompts is not None:
        source = RECORDED
        for fitted in (True, False):
            seen = partial(clock.plan, mix=RECORDED, source=RECORDED, fitted=fitted)
            prompts.run(fitted, config, profile, seen)
            if fitted:
                profile = replace(profile, **clock.fit(RECORDED, profile.column_us))
    return replace(profile, **clock.errors(source, profile), plans=source, cells=tuple(clock.cells))


class _Clock:
    """Times plans, dense attention and the probe, keeps a cell of each, and fits the costs to the cells."""

    def __init__(self, device: torch.device, progress: Progress, total: int) -> None:
        self.cells: list[dict[str, Any]] = []
        self._device, self._progress, self._total = device, progress, total
        progress("profile", 0, total)

    def dense(self, inputs: AttentionInputs, segment: Segment) -> None:
        """Dense attention of every head by the device's fastest kernel."""
        heads = inputs.q.shape[1]
        timed = _time_us(lambda: dense_attention(inputs, None), self._device)
        tiles = heads * segment.causal_tiles(body_only=False)
        self._keep(segment.keys, "dense", timed, Work(0, 0, 0, heads, tiles))

    def plan(self, case: PlanCase, mix: str, source: str, fitted: bool) -> None:
        """A plan of one of the two sources, for the fit or for its check."""
        x = case.inputs
        timed = _time_us(lambda: sparse_attention(x.q, x.k, x.v, case.plan, x.scale), self._device)
        self._keep(case.segment.keys, mix, timed, work_of(case), source=source, fitted=fitted)

    def probe(self, call: Callable[[], None], keys: int, heads: int) -> dict[str, float]:
        """Everything that deciding costs, ``heads`` heads over so many keys."""
        timed = _time_us(call, self._device, in_a_row=PROBES_IN_A_ROW)
        self._keep(keys, PROBE, timed, heads=heads)
        return timed

    def _keep(self, n: int, mix: str, timed: dict[str, float], work: Work | None = None, **more: Any) -> None:
        cell = {"n": n, "mix": mix, "repeats": REPEATS, **timed, **more}
        if work is not None:
            # The KV tiles that are read, dense ones too, beside the counts of the model.
            cell |= {**vars(work), "sparse_tiles": work.tiles, "tiles": work.tiles + work.dense_tiles}
        self.cells.append(cell)
        self._progress("profile", len(self.cells), self._total)

    def fit(self, source: str, column_us: float | None = None) -> dict[str, Any]:
        """Costs by name, from dense attention, the probe and the source's fitted plans.

        column_us: a single column's, where it is known: the router's plans may have too few to tell.
        """
        plans = [c for c in self.cells if c["mix"] == "dense" or (c.get("source") == source and c["fitted"])]
        counts, target = np.array([_counts(c) for c in plans]), np.array([c["best_us"] for c in plans])
        known = np.array([(column_us or 0.0) if name == "column_us" else 0.0 for name in COSTS])
        free = np.array([name != "column_us" or column_us is None for name in COSTS])
        costs = known + _fit(counts * free, target, counts @ known)
        probes = [c for c in self.cells if c["mix"] == PROBE]
        design = np.array([[1.0, c["heads"] * c["n"]] for c in probes])
        base, key = _fit(design, np.array([c["best_us"] for c in probes]))
        named = dict(zip(COSTS, map(float, costs), strict=True))
        return {**named, "probe_base_us": float(base), "probe_key_us": float(key)}

    def errors(self, source: str, profile: LatencyProfile) -> dict[str, Any]:
        """|predicted - measured| / measured, medians over the source's plans: in the fit, and in its check."""
        costs = np.array([getattr(profile, name) for name in COSTS])
        errors: dict[bool, list[float]] = {True: [], False: []}  # by whether the plan was fitted on
        for cell in self.cells:
            if cell.get("source") == source:
                cell["predicted_us"] = float(_counts(cell) @ costs)
                errors[cell["fitted"]].append(abs(cell["predicted_us"] / cell["best_us"] - 1.0))
        return {
            "median_error": float(np.median(errors[True])),
            "validation_error": float(np.median(errors[False])),
        }


def _counts(cell: dict[str, Any]) -> np.ndarray:
    """A plan's cell as a row of the fit's design, in the order of COSTS."""
    names = ("rows", "sparse_tiles", "columns", "dense_heads", "dense_tiles")
    return np.array([cell[name] for name in names], float)


def _probe_once(inputs, segment, config: RouterConfig, graphs: Graphs) -> None:
    """Everything that a routing decision costs besides the kernel."""
    policy = replace(config, policy="priced", budget=None)
    plan_of(begin(inputs, segment, 0, free_settings(policy), graphs=graphs), inputs)


def free_settings(config: RouterConfig) -> LayerSettings:
    """What a router that is only timed decides with."""
    return LayerSettings(config, config.effective_gate_threshold, free_profile(config))


def free_profile(config: RouterConfig) -> LatencyProfile:
    """Costs of the right order, for a router that is only timed."""
    costs = (0, 1, 0.1, 0, 1.5, 0, 0, 0, 0)
    return LatencyProfile("", "", "", "", 0, 0, 0, config.block_q, config.block_k, *costs)


def _time_us(call: Callable[[], object], device: torch.device, in_a_row: int = 1) -> dict[str, float]:
    """One call's time on the device. With several in a row on a GPU, the host's time where that is longer."""
    samples, cuda = [], device.type == "cuda"
    in_a_row = in_a_row if cuda else 1
    # A GPU's times are short enough for more of them.
    warm_up, repeats = (GPU_WARM_UP, 3 * REPEATS) if cuda else (1, REPEATS)
    for repeat in range(warm_up + repeats):
        if cuda and in_a_row == 1:
            # What is queued while the device is busy starts without the host's launch time.
            torch.cuda._sleep(BUSY_CYCLES)
        laps = Laps(device)
        for _ in range(in_a_row):
            call()
        laps.lap()
        if repeat >= warm_up:
            samples += [time / in_a_row for time in laps.elapsed_us()]
    ordered = sorted(samples)
    shares = {"median_us": 0.5, "p20_us": 0.2, "p80_us": 0.8, "p95_us": 0.95}
    return {"best_us": ordered[0]} | {name: float(np.quantile(ordered, q)) for name, q in shares.items()}


def _setup_us(probe: Callable[[Graphs], None], steady: dict[str, float]) -> float:
    """What the first two decisions of a shape take beyond two later ones, by the host's clock: kernels are compiled."""
    graphs: Graphs = Graphs()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(2):
        probe(graphs)
    torch.cuda.synchronize()
    return max(0.0, (time.perf_counter() - started) * 1e6 - 2 * steady["median_us"])


def _fit(design: np.ndarray, target: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Non-negative coefficients x that minimise the sum of |(known + design x) / target - 1|.

    Least absolute errors, by reweighted least squares: a cell measured while another process had the cores is an
    outlier, and squares would follow it.
    """
    from scipy.optimize import nnls

    safe = np.maximum(target, 1e-3)
    relative = design / safe[:, None]
    scale = np.maximum(relative.max(0), 1e-30)
    rest = 1.0 - known / safe
    weight = np.ones(len(safe))
    for _ in range(FIT_ROUNDS):
        fitted = nnls(relative / scale * weight[:, None], weight * rest)[0] / scale
        weight = 1.0 / np.sqrt(np.maximum(np.abs(relative @ fitted - rest), 1e-3))
    return fitted


def prepare_profile(
    name: str, loaded: LoadedModel, config: RouterConfig, progress: Progress = no_progress
) -> LatencyProfile:
    """``profile_for`` a loaded model, before its first prompt, so that measuring is not part of a prefill."""
    weight = next(loaded.model.parameters())
    shape = AttentionShape(weight.device, weight.dtype, loaded.head_dim, loaded.heads, loaded.kv_heads)
    return profile_for(name, shape, config, progress)


def measure_here(
    model: ModelShape,
    config: RouterConfig,
    is_quick: bool,
    prompts: PromptPlans | None = None,
    progress: Progress = no_progress,
) -> LatencyProfile:
    """A profile of this machine's first GPU, else of its CPU. Errors: ProfileError."""
    shape = AttentionShape.here(model)
    fewer = quick(shape.device) if is_quick else {}
    return measure(shape, config, **fewer, prompts=prompts, progress=progress)
