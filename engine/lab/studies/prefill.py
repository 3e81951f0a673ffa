"""Routed against dense prefill, paired in one run: time, its parts, and peak memory.

    python -m routesparse.engine.lab.studies.prefill --out data/results/prefill_cpu.json

Per domain: test windows; each is prefilled dense and routed in turn, ``--repeats`` times, and the median ratio over
windows is reported. Lengths below break-even run dense untouched: their ratio shows the cost of having asked.
planned_over_measured is what the latency profile predicted for the attention layers over what they took, deciding
included; kernel_planned_over_measured leaves deciding out.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from routesparse.engine.analyze import prefill
from routesparse.engine.calibrate.prompts import cut, read_documents
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Computed
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.lab import study
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.profiles.measure import prepare_profile
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

SETTLING = 3  # prefills of a row
DOMAINS = ("prose", "code", "dialog", "docs")


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file."""
    parser = study.parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_024, 16_384])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    config = RouterConfig(seed=arguments.seed)
    profile = prepare_profile("auto", loaded, config)
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "break_even_tokens": profile.break_even_tokens(loaded.heads, loaded.layers),
        "profile": {
            name: getattr(profile, name) for name in ("name", "plans", "median_error", "validation_error")
        },
        "config": config.to_dict(),
        "rows": [],
    }
    documents = {
        domain: read_documents(arguments.data / domain / "test", domain, loaded.tokenizer)
        for domain in arguments.domains
    }
    for tokens in arguments.tokens:
        for domain, texts in documents.items():
            rows = [
                compare(loaded, window.token_ids, window.sha256, config, profile, arguments.repeats)
                for window in cut(texts, arguments.windows, tokens, tokens, loaded.tokenizer, arguments.seed)
            ]
            summary: dict[str, Any] = {"tokens": tokens, "domain": domain, "windows": len(rows)}
            for name in rows[0]:
                values = [value for r in rows if (value := r[name]) is not None]
                summary[name] = float(np.median(values)) if values else None
            result["rows"].append(summary)
            study.note(str(summary))
    # ru_maxrss is in kilobytes on Linux and in bytes on a Mac.
    unit = 1 if sys.platform == "darwin" else 1024
    result["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    study.save(arguments.out, result)


def compare(
    loaded: LoadedModel,
    token_ids: Sequence[int],
    salt: str,
    config: RouterConfig,
    profile: LatencyProfile,
    repeats: int,
    graphs: Graphs[Computed] | None = None,
) -> dict[str, float | None]:
    """Dense and routed prefill in turn, each first in every other repeat; medians, ratio is dense over routed."""
    ids = torch.tensor([token_ids], device=loaded.model.device)
    dense, routed, parts, planned, kernels = [], [], [], [], []
    for repeat in range(repeats):
        if repeat % 2 == 0:
            dense.append(prefill(loaded.model, ids).total_ms)
        session = RoutingSession(config, profile=profile, salt=salt, graphs=graphs)
        routed.append(routed_ms(loaded, ids, session))
        if repeat % 2 == 1:
            dense.append(prefill(loaded.model, ids).total_ms)
        timings = session.trace.timings
        parts.append(timings["probe_ms"] + timings["index_ms"] + timings["route_ms"])
        decisions = list(session.trace.prompts[-1].decisions())
        if decisions:
            planned.append(sum(d.planned_us for d in decisions) / 1e3 / timings["total_ms"])
            kernels.append(sum(d.planned_kernel_us for d in decisions) / 1e3 / timings["kernel_ms"])
    run = session.trace.record().run
    return {
        "dense_ms": float(np.median(dense)),
        "routed_ms": float(np.median(routed)),
        "ratio": float(np.median(np.array(dense) / np.array(routed))),
        "deciding_share": float(np.median(np.array(parts) / np.array(routed))),
        "density": run.density,
        "planned_over_measured": float(np.median(planned)) if planned else None,
        "kernel_planned_over_measured": float(np.median(kernels)) if kernels else None,
    }


def in_rows(
    loaded: LoadedModel,
    token_ids: Sequence[int],
    config: RouterConfig,
    profile: LatencyProfile,
    runs: int,
    graphs: Graphs[Computed],
) -> dict[str, float]:
    """Medians of dense prefills one after another and of routed ones one after another, ``runs`` each, twice in turn.

    Of each row the first SETTLING are left out: under dense attention an H200 drew over 600 W and its clock fell from
    1,980 MHz to 1,680 to 1,900, and a routed prefill right behind a dense one pays for that.
    """
    ids = torch.tensor([token_ids], device=loaded.model.device)
    found: dict[str, list[float]] = {"dense": [], "routed": []}
    for _ in range(2):
        found["dense"] += [prefill(loaded.model, ids).total_ms for _ in range(SETTLING + runs)][SETTLING:]
        # No session outlives its prefill, so that the next one takes over its pinned memory.
        found["routed"] += [
            routed_ms(loaded, ids, RoutingSession(config, profile=profile, salt="rows", graphs=graphs))
            for _ in range(SETTLING + runs)
        ][SETTLING:]
    dense, routed = (float(np.median(found[name])) for name in ("dense", "routed"))
    return {"dense_row_ms": dense, "routed_row_ms": routed, "row_ratio": dense / routed}


def routed_ms(loaded: LoadedModel, ids: torch.Tensor, session: RoutingSession) -> float:
    """Milliseconds of a routed prefill of ids int64 [1, n]."""
    with routed_by(loaded.model, session):
        return prefill(loaded.model, ids).total_ms


if __name__ == "__main__":
    study.run(main)
