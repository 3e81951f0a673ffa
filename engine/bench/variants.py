"""Deciding and its kernels in variants, each behind a switch, in turn with the present code. For tuning on one GPU.

python -m routesparse.engine.bench.variants PART --out FILE
PART: check, kernels, sweep, profile, deciding, prefill, trace
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide import layer
from routesparse.engine.decide.ahead import compile_together, kernels_of
from routesparse.engine.decide.heatmap import draw as draw_pictures
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.decide.units import route_units
from routesparse.engine.device import graphs as graphs_module
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.timing import Stamps
from routesparse.engine.evaluation.studies.deciding import COSTS, draw
from routesparse.engine.method import families
from routesparse.engine.method.descriptors import describe
from routesparse.engine.method.families import build_unprobed
from routesparse.engine.method.families._block_ranking import ranked
from routesparse.engine.method.family import Context
from routesparse.engine.method.patterns import library
from routesparse.engine.method.probe import run_probe
from routesparse.engine.method.probe_rows import place_rows
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.row_plan import head_density, lower
from routesparse.engine.method.segments import split
from routesparse.engine.progress import no_progress
from routesparse.kernels import attention
from routesparse.kernels.compile_ahead import compiler_of
from routesparse.kernels.block_score import hopper_launch, launch, naive
from routesparse.kernels.geometry import SegmentGeometry

SHAPES = {
    "8b-131072": (131_072, (32, 8, 128)),
    "8b-65536": (65_536, (32, 8, 128)),
    "demo-65536": (65_536, (8, 4, 64)),
    "demo-131000": (131_000, (8, 4, 64)),
}
_can_run = hopper_launch.can_run
_plain_rows, _plain_descriptions = launch.scored_rows, launch.descriptions
_plain_compute, _plain_capture = layer.compute, graphs_module._capture
OLD = lambda *_: False  # noqa: E731


# ---------------------------------------------------------------- variants of a decision
@contextlib.contextmanager
def on_branch(device: torch.device, priority: int) -> Iterator[Callable[[], None]]:
    if not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    current, branch = torch.cuda.current_stream(device), torch.cuda.Stream(device, priority=priority)
    branch.wait_stream(current)
    with torch.cuda.stream(branch):
        yield lambda: current.wait_stream(branch)


def branched(rows_beside: bool, slash_beside: bool, pictures_beside: bool, rows_priority: int = 0) -> Callable[..., Any]:
    """``compute`` with branches: rows and descriptions beside the probe; vertical-slash beside the score; pictures."""

    def compute(inputs, segment, draws, settings, kernel_limit_us):
        device = inputs.q.device
        stamps = Stamps(device, laps=3)
        rows = place_rows(segment, settings.config, draws, inputs.first_keys())
        candidates = library(segment)
        geometry = segment.geometry(inputs.first_keys())
        short = segment.keys <= families.block_sparse_rules.LONG_KEYS
        count = families.block_sparse_rules.SCORE_ROWS if short else families.block_sparse_rules.LONG_SCORE_ROWS
        clusters = families.block_sparse_rules.SCORE_CLUSTERS if short else families.block_sparse_rules.LONG_SCORE_CLUSTERS
        with on_branch(device, rows_priority) as joined:
            unprobed = build_unprobed(inputs, segment, candidates)
            if rows_beside:
                chosen = _plain_rows(inputs.q, segment.first, geometry, count, inputs.table)
                described = _plain_descriptions(inputs.k, geometry, clusters, inputs.table)
        probe = run_probe(inputs, segment, rows, settings.config)
        stamps.lap()
        joined()
        context = Context(inputs, segment, candidates, probe)
        found = dict(unprobed)
        slash = families.find("vertical_slash")
        if rows_beside:
            launch.scored_rows, launch.descriptions = (lambda *_: chosen), (lambda *_: described)
        try:
            if slash_beside:
                with on_branch(device, -1) as joined2:
                    found["vertical_slash"] = slash.build(context, context.budgets("vertical_slash"))
                    _ = found["vertical_slash"].ranked_columns
                context.once(ranked)
                joined2()
            for family in families.registered():
                if family.name not in found:
                    found[family.name] = family.build(context, context.budgets(family.name))
        finally:
            launch.scored_rows, launch.descriptions = _plain_rows, _plain_descriptions
        indices = {name: found[name] for name in families.names()}
        joined3 = lambda: None  # noqa: E731
        if pictures_beside:
            with on_branch(device, 0) as joined3:
                drawing = draw_pictures(probe, segment, indices)
        masses = candidate_mass(inputs, segment, probe, indices, candidates)
        seen = describe(probe)
        stamps.lap()
        choice, packed = route_units(segment, candidates, probe, masses, seen, settings, kernel_limit_us, stamps)
        if not pictures_beside:
            drawing = draw_pictures(probe, segment, indices)
        plan = lower(inputs, segment, indices, candidates, choice)
        density = head_density(plan)
        joined3()
        return layer.Computed(candidates, choice, packed, probe, indices, drawing, plan, density)

    return compute


def high_capture(inputs, draws, function):
    """Captured on a stream of high priority, so that branches fill what it leaves."""
    graph = torch.cuda.CUDAGraph()
    current, side = torch.cuda.current_stream(), torch.cuda.Stream(priority=-1)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            result = function(inputs, draws)
        finally:
            graph.capture_end()
    current.wait_stream(side)
    return graph, result


VARIANTS: dict[str, tuple[str, Callable[..., Any] | None, bool]] = {
    # Hopper score, compute, output side by side?
    "now": ("", None, False),
    "layout": ("", None, True),
    "layout-slash": ("", branched(False, True, False), True),
    "layout-slash-pictures": ("", branched(False, True, True), True),
    "single": ("single", branched(False, True, True), True),
    "pair": ("pair", branched(False, True, True), True),
    "pair-no-pictures": ("pair", branched(False, True, False), True),
}
if os.environ.get("NO_HOPPER"):
    VARIANTS = {name: variant for name, variant in VARIANTS.items() if not variant[0]}


@contextlib.contextmanager
def variant_of(name: str) -> Iterator[None]:
    hopper, compute, layout = VARIANTS[name]
    hopper_launch.can_run = _can_run if hopper else OLD
    hopper_launch.WAY = hopper or "pair"
    layer.compute = compute or _plain_compute
    attention.SIDE_BY_SIDE = layout
    try:
        yield
    finally:
        hopper_launch.can_run, layer.compute, hopper_launch.WAY = _can_run, _plain_compute, "pair"
        attention.SIDE_BY_SIDE = True


# ---------------------------------------------------------------- timing
def sustained(run: Callable[[], object], seconds: float = 0.4) -> float:
    """Median microseconds of runs in a row, after a third of them."""
    run()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    runs = max(5, min(400, int(seconds * 1e3 / max(begin.elapsed_time(end), 1e-3))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(runs + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False)][runs // 3 :]
    return float(np.median(times)) * 1e3


def alone(run: Callable[[], object], repeats: int = 9) -> float:
    """Median microseconds of single runs with the host ahead and idle time between."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        time.sleep(0.02)
        torch.cuda._sleep(20_000_000)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return float(np.median(times))


# ---------------------------------------------------------------- parts
def problem(rows, keys, heads, kv_heads, dim, first_keys, seed, sinks=False):
    g = torch.Generator("cuda").manual_seed(seed)
    batch = len(first_keys)
    q = torch.randn(batch, rows + 7, heads, dim, generator=g, device="cuda").bfloat16().transpose(1, 2) * 2
    k = torch.randn(batch, keys + 9, kv_heads, dim, generator=g, device="cuda").bfloat16().transpose(1, 2)
    k += torch.randn(batch, kv_heads, 1, dim, generator=g, device="cuda").bfloat16()
    place = SegmentGeometry(
        keys - rows, rows, keys, rows // 128, 128, 64, 1, torch.tensor(first_keys, device="cuda")
    )
    sink = torch.randn(heads, generator=g, device="cuda") if sinks else None
    return (q, k, 7, place), {"rows": 16, "clusters": 1, "scale": dim**-0.5, "softcap": None, "sinks": sink}


CHECKS = {
    "aligned-128": (8_192, 8_192, 8, 2, 128, [0]),
    "aligned-64": (8_192, 8_192, 8, 4, 64, [0]),
    "ragged": (5_003, 5_003, 4, 2, 128, [0]),
    "chunk": (3_000, 40_111, 4, 2, 128, [0]),
    "padded": (20_000, 20_000, 4, 2, 128, [0, 7_777]),
    "padded-64": (20_000, 30_000, 4, 2, 64, [12_000, 5]),
    "short": (200, 200, 4, 2, 128, [0]),
    "mostly-padded": (1_000, 9_000, 4, 2, 128, [8_700]),
    "sinks": (6_000, 6_000, 4, 2, 128, [0], True),
    "long": (70_000, 70_000, 4, 2, 128, [0]),
}


def check(result: dict[str, Any]) -> None:
    """The Hopper score against the Triton kernel and, where small, the naive twin."""
    for case, (rows, keys, heads, kv_heads, dim, first_keys, *sinks), kind in (
        (case, what, kind) for case, what in CHECKS.items() for kind in ((16, 1), (32, 2))
    ):
        name = f"{case} {kind[0]} rows {kind[1]} clusters"
        args, options = problem(rows, keys, heads, kv_heads, dim, first_keys, 1, bool(sinks))
        options |= {"rows": kind[0], "clusters": kind[1]}
        hopper_launch.can_run = OLD
        old = launch.block_score(*args, **options)
        hopper_launch.can_run = _can_run
        assert _can_run(args[0], args[1].shape[1], *kind, None)
        new = launch.block_score(*args, **options)
        torch.cuda.synchronize()
        again = launch.block_score(*args, **options)
        tabled = new
        if case == "aligned-128":
            table = torch.tensor([args[0].data_ptr(), args[1].data_ptr()], device="cuda")
            tabled = launch.block_score(*args, **options, table=table)
        torch.cuda.synchronize()
        row = {
            "max_difference": float((new.float() - old.float()).abs().max()),
            "share_of_other_bits": float((new != old).float().mean()),
            "same_twice": bool((new == again).all()),
            "same_by_table": bool((new == tabled).all()),
            "finite": bool(torch.isfinite(new).all()),
        }
        if rows * keys <= 70_000_000:
            twin = naive.block_score(*args, **options)
            row["old_to_twin"] = float((old.float() - twin.float()).abs().max())
            row["new_to_twin"] = float((new.float() - twin.float()).abs().max())
        result[name] = row
        print(name, row, flush=True)
        if not row["finite"] or row["max_difference"] > 0.05:
            result["failed"] = name


def kernels(result: dict[str, Any]) -> None:
    """Scores alone, old and new in turn, and with other stages and registers."""
    for name, (tokens, shape) in SHAPES.items():
        inputs = draw(tokens, shape, torch.device("cuda"), 0)
        segment = split(tokens, tokens, RouterConfig(segment_tokens=131_072))[0]
        geometry = segment.geometry(inputs.first_keys())
        clusters, rows = (1, 16) if tokens > 65_536 else (2, 32)
        chosen = _plain_rows(inputs.q, 0, geometry, rows, None)
        described = _plain_descriptions(inputs.k, geometry, clusters, None)
        launch.scored_rows, launch.descriptions = (lambda *_: chosen), (lambda *_: described)  # noqa: B023
        options = {"rows": rows, "clusters": clusters, "scale": inputs.scale, "softcap": None}
        found: dict[str, Any] = defaultdict(list)
        plain_settings = hopper_launch.settings
        try:
            for _ in range(2):
                for way in ("old", "single", "pair", "pair-240-24", "pair-stages-1"):
                    if way == "single" and clusters == 2:
                        continue
                    hopper_launch.can_run = OLD if way == "old" else _can_run
                    hopper_launch.WAY = "single" if way == "single" else "pair"

                    def settings(head_size, way=way):
                        base = plain_settings(head_size)
                        if way == "pair-240-24":
                            base |= {"CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24}
                        if way.endswith("stages-1"):
                            base["STAGES"] = max(1, base["STAGES"] - 1)
                        return base

                    hopper_launch.settings = settings
                    run = lambda: launch.block_score(inputs.q, inputs.k, 0, geometry, **options)  # noqa: B023, E731
                    try:
                        found[way].append(sustained(run, 0.3))
                    except Exception as error:  # noqa: BLE001
                        found[way].append(repr(error)[:200])
        finally:
            launch.scored_rows, launch.descriptions = _plain_rows, _plain_descriptions
            hopper_launch.settings, hopper_launch.can_run = plain_settings, _can_run
            hopper_launch.WAY = "pair"
        result[name] = dict(found)
        print(name, dict(found), flush=True)


def sweep(result: dict[str, Any]) -> None:
    """Launch options of other kernels: microseconds of each operation alone."""
    from routesparse.kernels.block_lse import launch as lse_launch
    from routesparse.kernels.recent_marginals import launch as recent_launch

    for name, (tokens, shape) in SHAPES.items():
        inputs = draw(tokens, shape, torch.device("cuda"), 0)
        segment = split(tokens, tokens, RouterConfig(segment_tokens=131_072))[0]
        geometry = segment.geometry(inputs.first_keys())
        settings = LayerSettings(RouterConfig(segment_tokens=131_072), 0.94, COSTS)
        draws = layer.draw_shares(1, shape[0], settings.config, 0).to("cuda")
        rows = place_rows(segment, settings.config, draws, inputs.first_keys())
        found: dict[str, Any] = {}

        def timed(key: str, run: Callable[[], object], found=found) -> None:
            try:
                found[key] = sustained(run, 0.12)
            except Exception as error:  # noqa: BLE001
                found[key] = repr(error)[:120]
            print(name, key, found[key], flush=True)

        from routesparse.engine.method.probe import _exact_block_lse

        plain = lse_launch.LAUNCH
        for option in (plain, (64, 128, 4, 3), (64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 4, 2), (128, 64, 4, 3), (64, 128, 8, 3)):
            lse_launch.LAUNCH = option
            timed(f"block_lse {option}", lambda: _exact_block_lse(inputs, segment, rows.rows))
        lse_launch.LAUNCH = plain
        for warps, piece in ((2, 64), (1, 64), (4, 64), (2, 32), (2, 128), (4, 128), (8, 128)):
            launch.ROW_WARPS, launch.ROW_PIECE = warps, piece
            timed(f"scored_rows warps {warps} piece {piece}", lambda: _plain_rows(inputs.q, 0, geometry, 16, None))
        launch.ROW_WARPS, launch.ROW_PIECE = 2, 64
        clusters = 1 if tokens > 65_536 else 2
        for warps in (1, 2, 4):
            launch.FEATURE_WARPS = launch.SMALL_FEATURE_WARPS = warps
            timed(f"descriptions warps {warps}", lambda: _plain_descriptions(inputs.k, geometry, clusters, None))
        launch.FEATURE_WARPS, launch.SMALL_FEATURE_WARPS = 2, 1
        options = {"rows": 16 if clusters == 1 else 32, "clusters": clusters, "scale": inputs.scale, "softcap": None}
        hopper_launch.can_run = OLD
        plain, small = launch.LAUNCH, launch.SMALL_HEAD_WARPS
        for option in (plain, (128, 64, 4, 2), (128, 64, 8, 2), (128, 64, 8, 3), (64, 64, 4, 3), (256, 64, 8, 2), (128, 32, 4, 4)):
            launch.LAUNCH, launch.SMALL_HEAD_WARPS = option, option[2] if option is not plain else small
            timed(f"block_score {option}", lambda: launch.block_score(inputs.q, inputs.k, 0, geometry, **options))
        launch.LAUNCH, launch.SMALL_HEAD_WARPS = plain, small
        hopper_launch.can_run = _can_run
        probe = run_probe(inputs, segment, rows, settings.config)
        recent = slice(0, rows.sizes[0])
        plain = recent_launch.RECENT_LAUNCH
        for option in (plain, (64, 2, 4, 2), (64, 1, 4, 3), (128, 1, 4, 2), (64, 2, 4, 4)):
            recent_launch.RECENT_LAUNCH = option
            timed(
                f"recent {option}",
                lambda: recent_launch.recent_marginals(
                    inputs.q, inputs.k, probe.lse[:, :, recent], inputs.first_keys(),
                    first_row=segment.first + segment.rows - rows.sizes[0], keys=segment.keys,
                    local_offsets=100, phase=segment.phase, block_q=128, block_k=64,
                    scale=inputs.scale, softcap=None,
                ),
            )
        recent_launch.RECENT_LAUNCH = plain
        column = probe.column_mass
        timed("topk", lambda: column.topk(min(4_096, column.shape[-1] // 16), dim=-1))
        candidates = library(segment)
        context = Context(inputs, segment, candidates, probe)
        slash = families.find("vertical_slash")
        timed("vertical_slash index", lambda: slash.build(context, context.budgets("vertical_slash")).ranked_columns)
        result[name] = found


def attend(result: dict[str, Any]) -> None:
    """The attention kernel at the demo model's shape with other stages, slots and registers; output layouts."""
    from routesparse.engine.bench.problems import Shape, random_plan
    from routesparse.kernels.attention import hopper_launch as attention_launch
    from routesparse.kernels.interface import sparse_attention

    plain = attention_launch.settings
    for tokens, shape in ((65_536, (8, 4, 64)), (131_072, (8, 4, 64)), (131_072, (32, 8, 128))):
        inputs = draw(tokens, shape, torch.device("cuda"), 0)
        plan = random_plan(Shape(tokens, *shape), 0.1, 0)
        found: dict[str, Any] = defaultdict(list)
        d = shape[2]
        options = {
            "now": {}, "contiguous": {}, "stages+1": {"STAGES": 256 // d + 1}, "stages-1": {"STAGES": 256 // d - 1},
            "slots-3": {"Q_SLOTS": 3}, "240-24": {"CONSUMER_REGISTERS": 240, "PRODUCER_REGISTERS": 24},
            "232-40": {"CONSUMER_REGISTERS": 232, "PRODUCER_REGISTERS": 40}, "stages+2": {"STAGES": 256 // d + 2},
        }  # fmt: skip
        for _ in range(2):
            for way, changed in options.items():
                attention_launch.settings = lambda size, changed=changed: plain(size) | changed
                attention.SIDE_BY_SIDE = way != "contiguous"
                try:
                    found[way].append(
                        sustained(lambda: sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale), 0.2)
                    )
                except Exception as error:  # noqa: BLE001
                    found[way].append(repr(error)[:120])
        attention_launch.settings, attention.SIDE_BY_SIDE = plain, True
        result[f"{tokens} {shape}"] = dict(found)
        print(tokens, shape, dict(found), flush=True)


def by_kernel(run: Callable[[], object], runs: int) -> dict[str, Any]:
    """Device microseconds and launches of each kernel in a run, by the profiler; the span of one run."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(runs):
            run()
        torch.cuda.synchronize()
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    spans = []
    for event in seen.events():
        if str(event.device_type).endswith("CUDA"):
            took = event.time_range.end - event.time_range.start
            total[event.name[:90]][0] += took / runs
            total[event.name[:90]][1] += 1 / runs
            spans.append((event.time_range.start, event.time_range.end))
    spans.sort()
    busy, reach = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    table = sorted(([name, *map(float, value)] for name, value in total.items()), key=lambda x: -x[1])
    whole = (max(e for _, e in spans) - spans[0][0]) / runs if spans else None
    return {"kernels": table, "busy_us": busy / runs, "span_us": whole}


def decider(name: str) -> tuple[Any, Any, Any]:
    tokens, shape = SHAPES[name]
    inputs = draw(tokens, shape, torch.device("cuda"), 0)
    config = RouterConfig(segment_tokens=131_072)
    settings = LayerSettings(config, config.effective_gate_threshold, COSTS)
    segment = split(tokens, tokens, config)[0]
    try:
        wanted = kernels_of(inputs, [segment], settings, [None])
        compile_together(compiler_of(torch.device("cuda")), wanted, no_progress)
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    return inputs, segment, settings


def profile_part(result: dict[str, Any]) -> None:
    """Each shape's decision kernel by kernel, replayed as a graph and launched."""
    for name in SHAPES:
        inputs, segment, settings = decider(name)
        for variant in ("now", "pair") if "pair" in VARIANTS else ("now",):
            with variant_of(variant):
                kept: Graphs[Any] = Graphs()
                for way, graphs in (("graph", kept), ("launched", None)):
                    row = by_kernel(lambda: layer.begin(inputs, segment, 0, settings, graphs=graphs), 10)
                    result[f"{name} {variant} {way}"] = row
                    print(name, variant, way, row["busy_us"], row["span_us"], flush=True)
                    for line in row["kernels"][:45]:
                        print("   ", [line[0][:60], round(line[1], 1), round(line[2], 1)], flush=True)
                del kept
        del inputs
        torch.cuda.empty_cache()


def plan_summary(pending: Any) -> dict[str, torch.Tensor]:
    plan = pending.plan
    listed = torch.arange(plan.blocks.shape[-1], device="cuda") < plan.block_count.unsqueeze(-1)
    return {
        "choice": pending.choice.clone(),
        "count": plan.block_count.clone(),
        "dense": plan.dense_rows.clone(),
        "blocks": torch.where(listed, plan.blocks, -1).clone(),
    }


def deciding(result: dict[str, Any]) -> None:
    """Each variant: alone, in a row, and whether the plan is the present code's."""
    for name in SHAPES:
        inputs, segment, settings = decider(name)
        runs = {}
        kept: dict[str, Graphs[Any]] = {}
        base = None
        for variant in VARIANTS:
            try:
                with variant_of(variant):
                    kept[variant] = Graphs()
                    for _ in range(3):
                        pending = layer.begin(inputs, segment, 0, settings, graphs=kept[variant])
                    torch.cuda.synchronize()
                    plan = plan_summary(pending)
                if base is None:
                    base = plan
                runs[variant] = {
                    "choice_equal": float((plan["choice"] == base["choice"]).float().mean()),
                    "rows_equal": float(
                        ((plan["blocks"] == base["blocks"]).all(-1) & (plan["dense"] == base["dense"])).float().mean()
                    ),
                    "blocks_ratio": float(plan["count"].sum() / base["count"].sum()),
                    "alone": [],
                    "row": [],
                }
            except Exception as error:  # noqa: BLE001
                traceback.print_exc()
                result[f"{name} {variant}"] = repr(error)[:300]
                kept.pop(variant, None)
        for _ in range(2):
            for variant, graphs in kept.items():
                if variant not in runs:
                    continue
                with variant_of(variant):
                    run = lambda: layer.begin(inputs, segment, 0, settings, graphs=graphs)  # noqa: B023, E731
                    runs[variant]["alone"].append(alone(run, 5))
                    runs[variant]["row"].append(sustained(run, 0.4))
        for variant, row in runs.items():
            result[f"{name} {variant}"] = row
            print(name, variant, row, flush=True)
        del kept, inputs
        torch.cuda.empty_cache()


def demo(tokens: int, data: str) -> tuple[Any, torch.Tensor]:
    from routesparse.engine.models.load import load_model

    loaded = load_model("demo")
    texts = [p.read_text() for p in sorted(Path(data).glob("prose/test/*.txt"))]
    ids: list[int] = []
    for text in texts:
        ids += loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            break
    if len(ids) < tokens:
        raise SystemExit(f"{len(ids)} tokens of prose in {data}; {tokens} wanted")
    return loaded, torch.tensor([ids[: tokens - 1]], device="cuda")


def prefill_part(result: dict[str, Any], data: str) -> None:
    """The demo model's routed prefill in each variant, in turn with dense and with the present code."""
    from routesparse.engine.analyze import prefill
    from routesparse.engine.profiles.measure import prepare_profile
    from routesparse.engine.runtime.session import RoutingSession
    from routesparse.engine.runtime.transformers import routed_by

    for tokens in (65_536, 131_000):
        loaded, ids = demo(tokens, data)
        profile = prepare_profile("auto", loaded, RouterConfig())
        config = RouterConfig(seed=0, segment_tokens=131_072)
        kept = {variant: Graphs() for variant in VARIANTS}
        times: dict[str, list[float]] = defaultdict(list)
        parts: dict[str, list[Any]] = defaultdict(list)
        for repeat in range(18):
            names = list(VARIANTS)
            names = names[repeat % len(names) :] + names[: repeat % len(names)]
            times["dense"].append(prefill(loaded.model, ids).total_ms)
            for variant in names:
                if variant not in kept:
                    continue
                try:
                    with variant_of(variant):
                        session = RoutingSession(config, profile=profile, salt="paired", graphs=kept[variant])
                        with routed_by(loaded.model, session):
                            times[variant].append(prefill(loaded.model, ids).total_ms)
                    timings = session.trace.timings
                    parts[variant].append(
                        {key: timings[key] for key in ("probe_ms", "index_ms", "route_ms", "kernel_ms")}
                    )
                except Exception as error:  # noqa: BLE001
                    traceback.print_exc()
                    times[variant].append(float("nan"))
                    result[f"{tokens} {variant} error"] = repr(error)[:300]
                    kept.pop(variant)
        rows = {
            variant: {
                "ms": float(np.median(values[4:])),
                "dense_over": float(np.median(np.array(times["dense"][4:]) / np.array(values[4:])))
                if len(values) == len(times["dense"])
                else None,
                **(
                    {key: float(np.median([p[key] for p in parts[variant][4:]])) for key in parts[variant][0]}
                    if len(parts[variant]) > 4
                    else {}
                ),
            }
            for variant, values in times.items()
        }
        result[str(tokens)] = rows
        for variant, row in rows.items():
            print(tokens, variant, row, flush=True)


def trace_part(result: dict[str, Any], data: str) -> None:
    """Kernel by kernel: the demo model's dense and routed prefills, and how long the device idles."""
    from routesparse.engine.analyze import prefill
    from routesparse.engine.profiles.measure import prepare_profile
    from routesparse.engine.runtime.session import RoutingSession
    from routesparse.engine.runtime.transformers import routed_by

    for tokens in (65_536, 131_000):
        loaded, ids = demo(tokens, data)
        profile = prepare_profile("auto", loaded, RouterConfig())
        kept: Graphs[Any] = Graphs()

        def routed(loaded=loaded, ids=ids, profile=profile, kept=kept) -> None:
            session = RoutingSession(
                RouterConfig(seed=0, segment_tokens=131_072), profile=profile, salt="x", graphs=kept
            )
            with routed_by(loaded.model, session):
                prefill(loaded.model, ids)

        with variant_of("now"):
            for way, run in (("dense", lambda: prefill(loaded.model, ids)), ("routed", routed)):  # noqa: B023
                row = by_kernel(run, 4)
                result[f"{tokens} {way}"] = row
                print(tokens, way, row["busy_us"], row["span_us"], flush=True)
                for line in row["kernels"][:60]:
                    print("   ", [line[0][:70], round(line[1], 1), round(line[2], 1)], flush=True)


def main() -> None:
    from routesparse.kernels import rules

    families.block_sparse_rules = rules  # type: ignore[attr-defined]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default="shared/data")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    parts: dict[str, Callable[[], None]] = {
        "check": lambda: check(result),
        "kernels": lambda: kernels(result),
        "sweep": lambda: sweep(result),
        "attend": lambda: attend(result),
        "profile": lambda: profile_part(result),
        "deciding": lambda: deciding(result),
        "prefill": lambda: prefill_part(result, arguments.data),
        "trace": lambda: trace_part(result, arguments.data),
    }
    started = time.time()
    try:
        with torch.no_grad():
            parts[arguments.part]()
    finally:
        result["seconds"] = time.time() - started
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1, default=str))
    if "failed" in result:
        raise SystemExit(f"{result['failed']} failed")


if __name__ == "__main__":
    main()
