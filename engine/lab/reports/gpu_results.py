"""What was measured on a GPU, as the pages read it: single figures out of the result files of several studies."""

from __future__ import annotations

from typing import Any

from routesparse.engine import paths
from routesparse.engine.lab.reports.result_files import read
from routesparse.engine.method.latency import LatencyProfile

PROFILES = paths.DATA / "profiles"
LLAMA = "cuda-*-d128-g4-*.json"
LLAMA_HEADS, LLAMA_LAYERS = 32, 32  # of Llama-3.1-8B


def routed_runs() -> list[dict[str, Any]]:
    """Of the bundled model, where it was long enough for the router to choose sparse plans."""
    return [run for run in read("gpu_demo.json")["runs"] if run["routed"]]


def sustained_ms() -> float:
    """One layer's deciding, called again and again until the GPU has the clock of a long run."""
    (row,) = (
        row
        for row in read("layer_h200.json")["rows"]
        if (row["what"], row["n_tokens"], row.get("segment_tokens")) == ("deciding", 131_072, 131_072)
    )
    return row["ms"]


def within_prefill_ms(percent: int) -> float:
    """What deciding adds to one layer of a whole prefill: with it minus without it, at 131,072 tokens, compiled."""
    ends = compiled_ends()
    with_it, without = (ends[131_072, f"{what} {percent}%"]["seconds"] for what in ("sparse", "kernel"))
    return (with_it - without) / LLAMA_LAYERS * 1e3


def llama_profile() -> LatencyProfile:
    """The shipped latency profile of that model's shape."""
    return LatencyProfile.load(next(PROFILES.glob(LLAMA)))


def deciding_at(tokens: int, segment: int) -> dict[str, Any]:
    """What one layer's deciding took at this length, in segments of so many tokens."""
    rows = read("deciding_h200.json")["rows"]
    return next(row for row in rows if (row["tokens"], row["segment_tokens"]) == (tokens, segment))


def compiled_ends() -> dict[tuple[int, str], dict[str, Any]]:
    """(tokens, what) -> a whole prefill at the 8B shape, with compiled layers."""
    return {
        (row["n_tokens"], row["what"]): row for row in read("end_to_end_h200.json")["rows"] if row["compiled"]
    }


def rows_of(name: str) -> dict[tuple[int, str], dict[str, Any]]:
    """(tokens, what) -> row of a result file."""
    return {(row["n_tokens"], row["what"]): row for row in read(name)["rows"]}
