"""What the first routed prompt on a new GPU machine waits for, with and without compiling ahead.

    python -m routesparse.engine.evaluation.studies.first_prompt --out X.json

Every way runs in a process of its own with an empty cache of Triton's. The model is the bundled one, the tokens
are random; a dense prefill comes first, so that loading libraries counts for nobody. "one by one" compiles a kernel
when it is launched, "prompt" in parallel before the first layer, "worker" as a worker does when it starts. Of every
length the first prefill and a later one are timed; binaries counts what Triton's cache gained.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from routesparse.engine.analyze import compile_for_prompts, prefill
from routesparse.engine.config import default_config
from routesparse.engine.device.names import device_name
from routesparse.engine.models.files import DEMO
from routesparse.engine.models.load import load_model
from routesparse.engine.profiles.measure import free_profile
from routesparse.engine.provenance import git_commit, versions
from routesparse.engine.runtime import session
from routesparse.engine.runtime.transformers import routed_by

WAYS = ("one by one", "prompt", "worker")
LENGTHS = (65_536, 131_072, 16_384, 100_003, 50_001)


def main(argv: list[str] | None = None) -> None:
    """Run every way in a process of its own and write what they measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--way", choices=WAYS, help="Run this one here, in TRITON_CACHE_DIR.")
    arguments = parser.parse_args(argv)
    if not torch.cuda.is_available():
        sys.exit("the study needs a GPU; this machine has none that torch can use")
    if arguments.way is not None:
        found: Any = run(arguments.way, arguments.lengths)
    else:
        found = {
            "device": device_name(torch.device("cuda")),
            "cores": len(os.sched_getaffinity(0)),
            "versions": versions(),
            "git_commit": git_commit(),
            "ways": {way: _apart(way, arguments.lengths) for way in WAYS},
        }
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")


def run(way: str, lengths: list[int]) -> dict[str, Any]:
    """Prefill every length twice: seconds and compiled binaries of each."""
    if way == "one by one":
        session.ready = lambda *_: None  # type: ignore[assignment]
    device = torch.device("cuda")
    torch.manual_seed(0)
    model = load_model(DEMO).model
    config = default_config(True, break_even_tokens=1)
    prompts = {n: torch.randint(0, model.config.vocab_size, (1, n), device=device) for n in lengths}
    for ids in prompts.values():
        prefill(model, ids)
    result: dict[str, Any] = {"start_s": None, "start_binaries": None, "rows": []}
    if way == "worker":
        started = time.perf_counter()
        compile_for_prompts(DEMO)
        result |= {"start_s": time.perf_counter() - started, "start_binaries": _binaries()}
    for tokens, ids in prompts.items():
        before = _binaries()
        router = session.RoutingSession(config, profile=free_profile(config))
        with routed_by(model, router):
            seconds = [prefill(model, ids).total_ms / 1e3 for _ in range(3)]
        result["rows"].append(
            {"tokens": tokens, "first_s": seconds[0], "later_s": seconds[2], "binaries": _binaries() - before}
        )
    return result


def _apart(way: str, lengths: list[int]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [sys.executable, "-m", "routesparse.engine.evaluation.studies.first_prompt", "--way", way]
        command += ["--out", str(out), "--lengths", *map(str, lengths)]
        cache = {"TRITON_CACHE_DIR": str(Path(folder) / "triton")}
        subprocess.run(command, env={**os.environ, **cache}, check=True)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def _binaries() -> int:
    """Kernels in Triton's cache on the disk."""
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))


if __name__ == "__main__":
    main()
