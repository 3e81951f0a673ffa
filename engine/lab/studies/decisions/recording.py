"""Route the problems of a recording with some version of this project, and take down what was decided.

    python -P engine/lab/studies/decisions/recording.py AFTER.json --like BEFORE.json

By its path, this file records whatever version ``import routesparse`` finds, such as an older one whose checkout is
the working directory; so it imports nothing of this folder, and only the public contract is used (``route``,
``RouterConfig``, ``LatencyProfile``, ``trace.record``) as it is from commit b6dfeee2 on. A recording holds its own
problems (token ids, configuration, salt), so ``--like`` asks the same questions.

One thread, float32, a fixed latency profile: on one machine with the same libraries, two recordings of one version are
equal. Where a problem says ``dense_upstream``, every layer reads what the layers before it give with *dense*
attention, so a changed decision in one layer changes nothing in the next, and comparing shows exactly the layers that
a change touches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

SALT, SEED = "decisions", 11
# A field that a version has not is None.
UNIT_FIELDS = (
    *(
        "batch_index",
        "layer",
        "head",
        "segment",
        "pattern",
        "budget",
        "candidate",
        "fallback",
        "tests",
        "unmet",
    ),
    *("mass", "recent_mass", "gate_statistic", "disagreement", "risk", "lower_mass", "row_lower_mass"),
    *("density", "kernel_us", "entropy", "local_band", "agreement"),
)
CANDIDATE_FIELDS = (
    "budget",
    "admissible",
    "mass",
    "recent_mass",
    "disagreement",
    "risk",
    "density",
    "kernel_us",
)
LAYER_FIELDS = ("layer", "limit_us", "planned_us", "dense_us", "density", "over_budget")
# Plausible and round, so that a new latency profile changes nothing here: microseconds.
COSTS = {
    "row_us": 5.0,
    "tile_us": 10.0,
    "column_us": 0.05,
    "dense_row_us": 20.0,
    "dense_tile_us": 10.5,
    "probe_base_us": 50.0,
    "probe_head_us": 1.0,
    "probe_key_us": 0.001,
    "median_error": 0.0,
}


def checkout() -> Path:
    """The folder of the version that is asked, which need not be the one that this file stands in."""
    import routesparse.engine

    return Path(routesparse.engine.__file__).parents[1]


def _model(name: str, part: str) -> Any:
    """The demo model (its first layer where Triton interprets, which is slow), or a tiny random one with an option."""
    import torch
    import transformers

    if name == "demo":
        fewer = {"num_hidden_layers": 1} if part == "fused" else {}
        return transformers.AutoModelForCausalLM.from_pretrained(
            checkout() / "data" / "models" / "demo", dtype=torch.float32, **fewer
        ).eval()
    shape: dict[str, Any] = {
        "vocab_size": 4_096,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "initializer_range": 0.2,
        "sliding_window": 4_096,
    }
    torch.manual_seed(SEED)
    if name == "softcap":
        options: dict[str, Any] = {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 16}
        return transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**shape, **options)).eval()
    options = {"num_local_experts": 2, "num_experts_per_tok": 1}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**shape, **options)).eval()


def problems_of(recording: Path) -> list[dict[str, Any]]:
    """The problems that a recording holds."""
    problems: list[dict[str, Any]] = json.loads(recording.read_text())["problems"]
    return problems


def record(out: Path, problems: list[dict[str, Any]]) -> None:
    """Run every problem and write the recording; the fused ones in a process of their own, where Triton interprets."""
    results = _run([p for p in problems if p["part"] == "cpu"])
    fused = [p for p in problems if p["part"] == "fused"]
    if fused:
        results |= _run_interpreted(fused)
    names = ("torch", "transformers", "triton", "numpy")
    header = {
        "machine": platform.processor() or platform.machine(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "git_commit": _git_commit(),
        "salt": SALT,
        "seed": SEED,
        "costs": COSTS,
    }
    out.write_text(json.dumps({**header, "problems": problems, "results": results}) + "\n")
    together = hashlib.sha256("".join(results[p["name"]]["sha256"] for p in problems).encode()).hexdigest()
    print(f"{len(results)} prompts written to {out}, sha256 of all decisions {together[:16]}")


def _run_interpreted(problems: list[dict[str, Any]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "asked.json"), Path(folder, "answered.json")
        asked.write_text(json.dumps({"problems": problems}))
        command = [sys.executable, "-P", "-W", "ignore", __file__, str(answered), "--like", str(asked)]
        subprocess.run([*command, "--fused"], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
        found: dict[str, Any] = json.loads(answered.read_text())
    return found


def _run(problems: list[dict[str, Any]]) -> dict[str, Any]:
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    models: dict[str, Any] = {}
    results = {}
    for problem in problems:
        name, part = problem["model"], problem["part"]
        if name not in models:
            models[name] = _model(name, part)
        with torch.no_grad():
            results[problem["name"]] = found = _answer(models[name], problem)
        kinds = Counter(unit["pattern"] for unit in found["units"])
        print(f"{problem['name']:<32} {found['sha256'][:16]} {dict(kinds)}", flush=True)
    return results


def _answer(model: Any, problem: dict[str, Any]) -> dict[str, Any]:
    """Route one problem and take down what was decided."""
    import torch

    from routesparse.engine import RouterConfig, route
    from routesparse.engine.method.latency import LatencyProfile

    config = RouterConfig.from_dict(problem["config"])
    about: Any = {"name": "fixed", "device": "none", "backend": "torch", "dtype": "float32"}
    about |= {"block_q": config.block_q, "block_k": config.block_k, "head_dim": 0, "groups": 0, "threads": 1}
    profile = LatencyProfile(**{**about, **COSTS})
    longest = max(len(row) for row in problem["ids"])
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in problem["ids"]])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in problem["ids"]])
    padding = {"attention_mask": mask} if len(problem["ids"]) > 1 else {}
    with (
        route(model, config, profile=profile, salt=SALT) as trace,
        _dense_upstream(model, problem["dense_upstream"]),
    ):
        if "chunks" in problem:
            out, past = None, None
            for piece in ids.split(problem["chunks"], dim=1):
                out = model(piece, past_key_values=past, use_cache=True, logits_to_keep=1)
                past = out.past_key_values
        else:
            out = model(ids, use_cache=False, logits_to_keep=1, **padding)
    assert out is not None
    found = _decisions(trace.record())
    found["logits"] = hashlib.sha256(out.logits.contiguous().numpy().tobytes()).hexdigest()
    found["sha256"] = _digest(found)
    return found


@contextmanager
def _dense_upstream(model: Any, on: bool) -> Iterator[None]:
    """Inside the block every attention layer is asked as usual, and hands on what dense attention gives."""

    def dense(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], routed: Any) -> Any:
        before = module.config._attn_implementation
        # SDPA knows neither soft caps nor sinks; eager attention takes the causal mask from outside.
        plain = module.config.model_type == "llama"
        module.config._attn_implementation = "sdpa" if plain else "eager"
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        mask = None if plain else _causal(hidden)
        try:
            return module.forward(*args, **{**kwargs, "attention_mask": mask})
        finally:
            module.config._attn_implementation = before

    layers = [m for m in model.modules() if hasattr(m, "layer_idx") and hasattr(m, "num_key_value_groups")]
    hooks = [m.register_forward_hook(dense, with_kwargs=True) for m in layers] if on else []
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _causal(hidden: Any) -> Any:
    """The additive causal mask that eager attention takes: [1, 1, n, n]."""
    import torch

    tokens = hidden.shape[1]
    return torch.full((tokens, tokens), torch.finfo(hidden.dtype).min).triu(1)[None, None]


def _decisions(record: Any) -> dict[str, Any]:
    """Every chosen unit and layer in full; of the candidates, a hash for each layer, family and field."""
    units = [{name: _exact(getattr(row, name, None)) for name in UNIT_FIELDS} for row in record.choices]
    layers = [{name: _exact(getattr(row, name, None)) for name in LAYER_FIELDS} for row in record.layers]
    columns: dict[str, list[Any]] = {}
    for row in record.candidates:
        for name in CANDIDATE_FIELDS:
            key = f"layer {row.layer}, candidates of {row.pattern}, {name}"
            columns.setdefault(key, []).append(_exact(getattr(row, name, None)))
    candidates = {key: _digest(values)[:16] for key, values in columns.items()}
    return {"units": units, "layers": layers, "candidates": candidates}


def _exact(value: Any) -> Any:
    """A float as the hexadecimal text of its 64 bits, everything else as it is."""
    return value.hex() if isinstance(value, float) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _git_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=checkout(), capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def use_one_thread() -> None:
    """In this process, if torch is not loaded yet, and in those that it starts: sums then have one order."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def main(argv: list[str] | None = None) -> None:
    """Ask the problems of ``--like`` again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, required=True, help="a recording whose problems are asked again")
    parser.add_argument(
        "--fused", action="store_true", help="used by record: answers alone, TRITON_INTERPRET=1"
    )
    arguments = parser.parse_args(argv)
    use_one_thread()
    if arguments.fused:
        arguments.out.write_text(json.dumps(_run(problems_of(arguments.like))))
    else:
        record(arguments.out, problems_of(arguments.like))


if __name__ == "__main__":
    main()
