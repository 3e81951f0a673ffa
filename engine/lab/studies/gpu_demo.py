"""The demo model on a GPU through the worker's own analysis: timings and parts.

    python -m routesparse.engine.lab.studies.gpu_demo --out data/results/gpu_demo.json

Each length and segment size: one prompt of concatenated test documents, analysed ``--repeats`` times after a warm-up
run; every number comes from the run record, but for ``paired``: dense and routed prefill in turn, since in a record the
dense one always runs second; and for the rows: dense ones one after another, then routed ones.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Computed
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.analysis import WarmAnalysis
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.prefill import compare, in_rows
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.profiles.measure import prepare_profile
from routesparse.engine.prompts import decode_prompt

PARTS = ("probe_ms", "index_ms", "route_ms", "kernel_ms", "total_ms", "dense_ms")
COUNTS = ("units", "sparse_units", "expanded_units", "dense_fallback_units", "dense_router_units")


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32_768, 131_000])
    parser.add_argument("--segments", type=int, nargs="+", default=[16_384, 131_072])
    parser.add_argument("--break-even", type=int, help="tokens; default: from the latency profile")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=20, help="of dense and routed prefills in turn")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    texts = [p.read_text() for p in sorted((Path(arguments.data) / "prose" / "test").glob("*.txt"))]
    profile = prepare_profile("auto", loaded, RouterConfig())
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "profile": {
            name: getattr(profile, name) for name in ("name", "plans", "median_error", "validation_error")
        },
        "break_even_tokens": profile.break_even_tokens(loaded.heads, loaded.layers),
        "runs": [],
    }
    analyse = WarmAnalysis(analyze_prompt)
    for tokens in arguments.tokens:
        text = prompt_of(loaded, texts, tokens)
        for segment in arguments.segments:
            request = RunRequest(
                model=arguments.model,
                segment=segment,
                break_even=arguments.break_even,
                measure_dense=True,
                seed=arguments.seed,
            )
            config = RouterConfig(
                seed=arguments.seed, break_even_tokens=arguments.break_even, segment_tokens=segment
            )
            ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
            row = timed(analyse, request, text, arguments.repeats)
            shared: Graphs[Computed] = Graphs()
            paired = compare(loaded, ids, "paired", config, profile, arguments.pairs, shared)
            rows = in_rows(loaded, ids, config, profile, (arguments.pairs + 1) // 2, shared)
            result["runs"].append({**row, "pairs": arguments.pairs, "paired_ratio": paired["ratio"], **rows})
            study.note(str(result["runs"][-1]))
            study.save(arguments.out, result)


def prompt_of(loaded: LoadedModel, texts: list[str], tokens: int) -> str:
    """Whole documents one after another, cut at ``tokens`` tokens. Errors: ConfigError where they are too few."""
    ids: list[int] = []
    for text in texts:
        ids += loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) >= tokens:
            return loaded.tokenizer.decode(ids[: tokens - 1])
    raise ConfigError(f"the test documents hold {len(ids):,} tokens; ask for fewer than {tokens:,}")


def timed(analyse: WarmAnalysis, request: RunRequest, text: str, repeats: int) -> dict[str, Any]:
    """Medians over the repeats of what the run records say."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()  # of this length, not of a longer one before
    first, *records = [
        analyse(request, decode_prompt(text.encode(), "documents"), f"run-{number}", lambda *_: None)
        for number in range(repeats + 1)
    ]
    run = dataclasses.asdict(records[-1].run)
    layers = records[-1].layers
    measured = sum(p.probe_us + p.index_us + p.route_us + p.kernel_us for p in layers)
    medians = {
        name: float(np.median([getattr(r.run, name) for r in records if getattr(r.run, name) is not None]))
        for name in PARTS
    }
    return {
        "tokens": run["tokens"],
        "segment_tokens": request.segment,
        **medians,
        "first_total_ms": first.run.total_ms,  # of a new length: captures its graphs, compiles what is missing
        "speed_up": medians["dense_ms"] / medians["total_ms"],
        "planned_over_measured": sum(p.planned_us for p in layers) / measured if measured else None,
        "density": run["density"],
        "routed": run["routed"],
        **{name: run[name] for name in COUNTS},
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    }


if __name__ == "__main__":
    study.run(main)
