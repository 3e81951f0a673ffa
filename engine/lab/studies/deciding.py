"""What deciding costs beside attention, per layer: probe, builders, router, certificate and row plan.

    python -m routesparse.engine.lab.studies.deciding --out data/results/gpu_deciding.json

Random queries and keys with a slow drift, a sink and heavy keys, laid out as a model hands them over. Per length and
segment size: the median time of a decision for all heads on the device (on a GPU replayed from a graph, and launched
one by one), the host's time for it, and its parts by the device's own clock.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings, Pending
from routesparse.engine.decide.layer import begin, plan_of
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.device.names import device_name
from routesparse.engine.device.timing import Laps
from routesparse.engine.lab import study
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split
from routesparse.engine.provenance import git_commit, versions

# Costs of the right order; what is timed does not depend on them.
COSTS = LatencyProfile("", "", "", "", 0, 0, 0, 128, 64, 0.1, 0.05, 0.002, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0)
BUSY_CYCLES = 20_000_000  # some 10 ms
WARM_UP = 3  # kernels are compiled, then the graph is captured
DRIFT_TOKENS = 3_000


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8_192, 16_384, 32_768, 131_072])
    parser.add_argument("--segments", type=int, nargs="+", default=[16_384, 131_072])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {
        "command": "python -m routesparse.engine.lab.studies.deciding "
        + shlex.join(sys.argv[1:] if argv is None else argv),
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "git_commit": git_commit(),
        "seed": arguments.seed,
        "heads": arguments.heads,
        "kv_heads": arguments.kv_heads,
        "head_dim": arguments.head_dim,
        "rows": [],
    }
    shape = (arguments.heads, arguments.kv_heads, arguments.head_dim)
    for tokens in arguments.tokens:
        inputs = draw(tokens, shape, device, arguments.seed)
        for size in sorted({min(size, -(-tokens // 128) * 128) for size in arguments.segments}):
            row = measure(inputs, RouterConfig(segment_tokens=size), arguments.repeats)
            result["rows"].append({"tokens": tokens, "segment_tokens": size, **row})
            study.note(str(result["rows"][-1]))
            study.save(arguments.out, result)


def draw(tokens: int, shape: tuple[int, int, int], device: torch.device, seed: int) -> AttentionInputs:
    """Inputs [B, n, H, D] transposed, as transformers hands them over; bfloat16 on a GPU."""
    heads, kv_heads, head_dim = shape
    generator = torch.Generator(device).manual_seed(seed)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(1, tokens, count, head_dim, generator=generator, device=device).transpose(1, 2)

    q, k, v = normal(heads), normal(kv_heads), normal(kv_heads)
    angle = torch.arange(tokens, device=device) / DRIFT_TOKENS
    drift = 6.0 * torch.stack([angle.cos(), angle.sin()], -1)
    q[..., :2] += drift
    k[..., :2] += drift
    q[..., 2] += 1.5
    k[:, :, 0, 2] += 20.0
    k[:, :, torch.randint(0, tokens, (200,), generator=generator, device=device), 2] += 12.0
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return AttentionInputs(q.to(dtype), k.to(dtype), v.to(dtype), head_dim**-0.5)


def measure(inputs: AttentionInputs, config: RouterConfig, repeats: int) -> dict[str, Any]:
    """Milliseconds a layer: decided_ms (medians), launched_ms without graphs, host_ms; parts in microseconds.

    On a GPU also peak_mib, the most memory that one decision takes beside its inputs.
    """
    segments = split(inputs.q.shape[2], inputs.k.shape[2], config)
    device = inputs.q.device
    settings = LayerSettings(config, config.effective_gate_threshold, COSTS)
    graphs: Graphs = Graphs()

    def decide(kept: Graphs | None) -> list[Pending]:
        pendings = [begin(inputs, s, 0, settings, graphs=kept) for s in segments]
        for pending in pendings:
            plan_of(pending, inputs)
        return pendings

    timed = {
        "decided_ms": _median_ms(lambda: decide(graphs), device, repeats),
        "launched_ms": _median_ms(lambda: decide(None), device, repeats),
    }
    started = time.perf_counter()
    pendings = decide(graphs)
    host_ms = (time.perf_counter() - started) * 1e3
    decisions = [pending.read() for pending in pendings]
    parts = {name: sum(getattr(d, name) for d in decisions) for name in ("probe_us", "index_us", "route_us")}
    if device.type == "cuda":
        del pendings, decisions
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        decide(None)
        parts["peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {**timed, "host_ms": host_ms, **parts}


def _median_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for repeat in range(WARM_UP + repeats):
        if device.type == "cuda":
            # As in a forward pass, where the host is ahead: the launches are queued while the device is busy.
            torch.cuda._sleep(BUSY_CYCLES)
        laps = Laps(device)
        call()
        laps.lap()
        if repeat >= WARM_UP:
            times += laps.elapsed_us()
    return float(np.median(times)) / 1e3


if __name__ == "__main__":
    study.run(main)
