"""Hardware profiling (paper section 3.5): measure mixes of plans and the probe, fit the latency model.

A profile belongs to one device, thread count, dtype, head size and group size. ``profile_for("auto")`` takes a
shipped or cached one that fits, else measures a quick one (a few seconds on a CPU) and caches it.
"""

from __future__ import annotations

import datetime
import hashlib
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Computed
from routesparse.engine.decide.layer import begin, plan_of
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.names import device_name
from routesparse.engine.device.timing import Laps
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split
from routesparse.engine.models.load import LoadedModel
from routesparse.kernels.causal_blocks import forced_and_causal
from routesparse.kernels.interface import RowPlan, sparse_attention

Progress = Callable[[str, int, int], None]  # stage, done, total


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show none."""


QUICK_LENGTHS = (2_048, 6_144)
FULL_LENGTHS = (2_048, 4_096, 8_192, 16_384)
GPU_LENGTHS = (8_192, 12_288, 16_384, 32_768, 65_536, 131_072)
FULL_MIXES = ((0.05, 0), (0.05, 256), (0.15, 0), (0.15, 256), (0.4, 0), (0.4, 256))  # (density, columns)
QUICK_MIXES = ((0.05, 0), (0.05, 256), (0.35, 0))
QUICK: dict[str, Any] = {"lengths": QUICK_LENGTHS, "mixes": QUICK_MIXES}  # a first run: seconds
GPU_QUICK: dict[str, Any] = {
    "lengths": (8_192, 32_768),
    "mixes": QUICK_MIXES,
}  # shorter ones time the launch alone
REPEATS = 3
GPU_WARM_UP = 3  # compiles kernels, then captures graphs; a CPU needs one
PROBES_IN_A_ROW = 8  # on a GPU: layer after layer, as in a forward pass
BUSY_CYCLES = 2_000_000  # about a ms
FIT_ROUNDS = 12
SHORT_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def profile_for(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_dim: int,
    heads: int,
    kv_heads: int,
    config: RouterConfig,
    progress: Progress = no_progress,
) -> LatencyProfile:
    """The named profile, or with "auto" the one that fits this machine, measured quickly where none does.

    Errors: ProfileError for an unknown name, a corrupt file, or a profile of another device or head size.
    """
    wanted = _key(device, dtype, head_dim, heads // kv_heads, config)
    if name != "auto":
        path = Path(name) if name.endswith(".json") else _find(name)
        profile = LatencyProfile.load(path)
        if profile.name != wanted:
            raise ProfileError(
                f"profile {profile.name} was measured for {profile.device}, {profile.dtype}, head size "
                f"{profile.head_dim}, {profile.threads} threads; this run needs {wanted}; run `routesparse profile`"
            )
        return profile
    for folder in (paths.profiles(), paths.DATA / "profiles"):
        path = folder / f"{wanted}.json"
        if path.exists():
            return LatencyProfile.load(path)
    # A tile costs a head what it costs, however many heads share its keys.
    for path in sorted((paths.DATA / "profiles").glob(re.sub(r"-g\d+-", "-g*-", wanted) + ".json")):
        return LatencyProfile.load(path)
    profile = measure(
        device,
        dtype,
        head_dim=head_dim,
        heads=heads,
        kv_heads=kv_heads,
        config=config,
        **quick(device),
        progress=progress,
    )
    profile.save(paths.profiles())
    return profile


def quick(device: torch.device) -> dict[str, Any]:
    """Arguments of ``measure`` for a first run of seconds."""
    return GPU_QUICK if device.type == "cuda" else QUICK


def measure(
    device: torch.device,
    dtype: torch.dtype,
    *,
    head_dim: int,
    heads: int,
    kv_heads: int,
    config: RouterConfig,
    lengths: tuple[int, ...] | None = None,
    mixes: tuple[tuple[float, int], ...] = FULL_MIXES,
    seed: int = 0,
    progress: Progress = no_progress,
) -> LatencyProfile:
    """Time sparse plans, dense attention and the probe on random inputs, and fit the latency model.

    The fit takes the best of the repeats (the others carry other processes' work) and minimises the sum of absolute
    relative errors; all coefficients are >= 0.
    mixes: (density, columns) of random plans. lengths: None for the device's own.
    """
    cells: list[dict[str, Any]] = []
    setups: list[float] = []
    sparse_rows, sparse_us, dense_rows, dense_us, probe_rows, probe_us = [], [], [], [], [], []
    if lengths is None:
        lengths = GPU_LENGTHS if device.type == "cuda" else FULL_LENGTHS
    generator = torch.Generator(device).manual_seed(seed)
    total = len(lengths) * (len(mixes) + 2)

    def record(n: int, mix: str, timed: dict[str, float], work: tuple[int, int] | None = None) -> float:
        """work: KV tiles and (query block, column) pairs of all heads; the probe has neither."""
        cell: dict[str, Any] = {"n": n, "mix": mix, "repeats": REPEATS, **timed}
        cells.append(cell if work is None else {**cell, "tiles": work[0], "columns": work[1]})
        progress("profile", len(cells), total)
        return timed["best_us"]

    progress("profile", 0, total)
    free = free_profile(config)
    for n in lengths:
        inputs = _random_inputs(n, head_dim, heads, kv_heads, device, dtype, generator)
        segment = split(n, n, replace(config, segment_tokens=n // config.block_q * config.block_q))[-1]
        tail = segment.causal_tiles(body_only=False) - segment.causal_tiles()
        timed = _time_us(lambda inputs=inputs: dense_attention(inputs, None), device)
        all_tiles = heads * segment.causal_tiles(body_only=False)
        dense_rows.append([heads, all_tiles])
        dense_us.append(record(n, "dense", timed, (all_tiles, 0)))
        for density, columns in mixes:
            plan, tiles, singles = _random_plan(inputs, segment, density, columns, generator)
            timed = _time_us(
                lambda inputs=inputs, plan=plan: sparse_attention(
                    inputs.q, inputs.k, inputs.v, plan, inputs.scale
                ),
                device,
            )
            sparse_rows.append([heads * segment.body_blocks, tiles, singles, heads * tail])
            work = (tiles + heads * tail, singles)
            sparse_us.append(record(n, f"density {density:g}, {columns} columns", timed, work))
        graphs: Graphs[Computed] = Graphs()
        timed = _time_us(
            lambda inputs=inputs, segment=segment, graphs=graphs: _probe_once(
                inputs, segment, config, free, graphs
            ),
            device,
            in_a_row=PROBES_IN_A_ROW,
        )
        if device.type == "cuda":
            setups.append(_setup_us(lambda kept: _probe_once(inputs, segment, config, free, kept), timed))  # noqa: B023
        probe_rows.append([1.0, heads * segment.keys])
        probe_us.append(record(n, "probe, builders, router, certificate", timed))

    dense = _fit(np.array(dense_rows, float), np.array(dense_us))
    sparse_design, sparse_target = np.array(sparse_rows, float), np.array(sparse_us)
    sparse = _fit(sparse_design[:, :3], sparse_target - dense[1] * sparse_design[:, 3])
    probe = _fit(np.array(probe_rows, float), np.array(probe_us))
    predicted = sparse_design[:, :3] @ sparse + dense[1] * sparse_design[:, 3]
    return LatencyProfile(
        name=_key(device, dtype, head_dim, heads // kv_heads, config),
        device=device_name(device),
        backend="triton" if device.type == "cuda" else "torch",
        dtype=SHORT_NAMES[dtype],
        head_dim=head_dim,
        groups=heads // kv_heads,
        threads=torch.get_num_threads(),
        block_q=config.block_q,
        block_k=config.block_k,
        row_us=float(sparse[0]),
        tile_us=float(sparse[1]),
        column_us=float(sparse[2]),
        dense_row_us=float(dense[0]),
        dense_tile_us=float(dense[1]),
        probe_base_us=float(probe[0]),
        probe_head_us=0.0,
        probe_key_us=float(probe[1]),
        setup_us=statistics.median(setups) if setups else 0.0,
        median_error=float(np.median(np.abs(predicted - sparse_target) / sparse_target)),
        cells=tuple(cells),
        versions={"torch": torch.__version__, "python": platform.python_version()},
        created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command="routesparse profile",
    )


def _key(device: torch.device, dtype: torch.dtype, head_dim: int, groups: int, config: RouterConfig) -> str:
    if dtype not in SHORT_NAMES:
        raise ProfileError(f"dtype {dtype} has no kernel; use float32, bfloat16 or float16")
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    digest = hashlib.sha256(device_name(device).encode()).hexdigest()[:8]
    return (
        f"{device.type}-{digest}-t{threads}-{SHORT_NAMES[dtype]}-d{head_dim}-g{groups}"
        f"-b{config.block_q}x{config.block_k}-{config.probe}"
    )


def _find(name: str) -> Path:
    for folder in (paths.profiles(), paths.DATA / "profiles"):
        if (folder / f"{name}.json").exists():
            return folder / f"{name}.json"
    raise ProfileError(f"no latency profile is called {name!r}; pass auto, or run `routesparse profile`")


def _random_inputs(n, head_dim, heads, kv_heads, device, dtype, generator):
    def draw(count: int) -> torch.Tensor:
        return torch.randn(1, count, n, head_dim, generator=generator, device=device).to(dtype)

    return AttentionInputs(draw(heads), draw(kv_heads), draw(kv_heads), head_dim**-0.5)


def _random_plan(inputs, segment, density, columns, generator):
    """A plan of random blocks (sink and diagonal kept) and columns, with its tile and column counts."""
    forced, causal = forced_and_causal(segment.geometry(inputs.first_keys()))
    heads = inputs.q.shape[1]
    device = forced.device
    shape = (1, heads, segment.query_blocks, segment.key_blocks)
    draws = torch.rand(shape, generator=generator, device=device)
    mask = ((draws < density) & causal) | forced
    chosen = torch.stack(
        [
            torch.randperm(segment.keys, generator=generator, device=device)[:columns]
            for _ in range(heads if columns else 0)
        ]
        or [torch.zeros(0, dtype=torch.int64, device=device)]
    )
    dense = torch.arange(segment.query_blocks, device=forced.device) >= segment.body_blocks
    plan = RowPlan.from_block_mask(
        mask,
        n_q=segment.rows,
        n_k=segment.keys,
        block_q=segment.block_q,
        block_k=segment.block_k,
        columns=chosen.unsqueeze(0) if columns else None,
        column_count=torch.full((1, heads), columns, device=forced.device) if columns else None,
        dense_rows=dense.expand(1, heads, -1),
    )
    body = slice(0, segment.body_blocks)
    tiles = int(mask[:, :, body].sum())
    singles = int(plan.column_count[:, :, body].sum()) if columns else 0
    return plan, tiles, singles


def _probe_once(
    inputs, segment, config: RouterConfig, free: LatencyProfile, graphs: Graphs[Computed]
) -> None:
    """Everything that a routing decision costs besides the kernel."""
    policy = replace(config, policy="certified", budget=None, gate=0.5, tau=0.4)
    settings = LayerSettings(policy, policy.gate_threshold, free)
    plan_of(begin(inputs, segment, 0, settings, graphs=graphs), inputs)


def free_profile(config: RouterConfig) -> LatencyProfile:
    """Costs of the right order, for a router that is only timed."""
    return LatencyProfile(
        "", "", "", "", 0, 0, 0, config.block_q, config.block_k, 0, 1, 0.1, 0, 1.5, 0, 0, 0, 0
    )


def _time_us(call, device: torch.device, in_a_row: int = 1) -> dict[str, float]:
    """One call's time on the device. With several in a row on a GPU, the host's time where that is longer."""
    samples = []
    if device.type != "cuda":
        in_a_row = 1
    # A GPU's times are short enough for more of them.
    warm_up, repeats = (GPU_WARM_UP, 3 * REPEATS) if device.type == "cuda" else (1, REPEATS)
    for repeat in range(warm_up + repeats):
        if device.type == "cuda" and in_a_row == 1:
            # What is queued while the device is busy starts without the host's launch time.
            torch.cuda._sleep(BUSY_CYCLES)
        laps = Laps(device)
        for _ in range(in_a_row):
            call()
        laps.lap()
        if repeat >= warm_up:
            samples += [time / in_a_row for time in laps.elapsed_us()]
    ordered = sorted(samples)
    return {
        "best_us": ordered[0],
        "median_us": statistics.median(ordered),
        "p20_us": float(np.quantile(ordered, 0.2)),
        "p80_us": float(np.quantile(ordered, 0.8)),
        "p95_us": float(np.quantile(ordered, 0.95)),
    }


def _setup_us(probe: Callable[[Graphs[Computed]], None], steady: dict[str, float]) -> float:
    """What the first two decisions of a shape take beyond two later ones, by the host's clock: kernels are compiled."""
    graphs: Graphs[Computed] = Graphs()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(2):
        probe(graphs)
    torch.cuda.synchronize()
    return max(0.0, (time.perf_counter() - started) * 1e6 - 2 * steady["median_us"])


def _fit(design: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Non-negative coefficients x that minimise the sum of |design x / target - 1|.

    Least absolute errors, by reweighted least squares: a cell measured while another process had the cores is an
    outlier, and squares would follow it.
    """
    from scipy.optimize import nnls

    safe = np.maximum(target, 1e-3)
    relative = design / safe[:, None]
    scale = np.maximum(relative.max(0), 1e-30)
    weight = np.ones(len(safe))
    for _ in range(FIT_ROUNDS):
        fitted = nnls(relative / scale * weight[:, None], weight)[0] / scale
        weight = 1.0 / np.sqrt(np.maximum(np.abs(relative @ fitted - 1.0), 1e-3))
    return fitted


def prepare_profile(
    name: str, loaded: LoadedModel, config: RouterConfig, progress: Progress = no_progress
) -> LatencyProfile:
    """``profile_for`` a loaded model, before its first prompt, so that measuring is not part of a prefill."""
    parameter = next(loaded.model.parameters())
    return profile_for(
        name,
        parameter.device,
        parameter.dtype,
        head_dim=loaded.head_dim,
        heads=loaded.heads,
        kv_heads=loaded.kv_heads,
        config=config,
        progress=progress,
    )
