"""What the router decided on 40 prompts, to the last bit, so that two versions of this project can be compared.

python -m routesparse.engine.evaluation.studies.decisions record NEW.json --like data/results/decisions.json
python -m routesparse.engine.evaluation.studies.decisions compare data/results/decisions.json NEW.json

A recording holds its own problems (token ids, configuration, salt), so ``--like`` asks another version the same
questions; ``--texts FOLDER`` makes new ones from FOLDER/{prose,code,dialog}/calibration/*.txt and generated needles.
32 problems run on the CPU path with the demo model, 8 small ones on the fused path in Triton's interpreter. One
thread, float32, a fixed latency profile: on one machine with the same libraries, two recordings of one version are
equal. In most problems every layer reads what the layers before it give with *dense* attention, so a changed
decision in one layer changes nothing in the next, and ``compare`` shows exactly the layers that a change touches.

Only the public contract is used (``route``, ``RouterConfig``, ``trace.record``), but for what stands under
"Adapter": it knows the names that differ between versions.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib
import json
import os
import platform
import random
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
# The first name that a version's record has is taken; None where a version has none of them.
UNIT_FIELDS = {
    "batch_index": ("batch_index",),
    "layer": ("layer",),
    "head": ("head",),
    "segment": ("segment",),
    "pattern": ("pattern",),
    "budget": ("budget",),
    "candidate": ("candidate",),
    "fallback": ("fallback",),
    "tests": ("tests",),
    "unmet": ("unmet",),
    "mass": ("mass",),
    "recent_mass": ("recent_mass",),
    "gate_statistic": ("gate_statistic", "gate"),
    "disagreement": ("disagreement",),
    "risk": ("risk",),
    "lower_mass": ("lower_mass",),
    "row_lower_mass": ("row_lower_mass",),
    "density": ("density",),
    "kernel_us": ("kernel_us",),
    "entropy": ("entropy",),
    "local_band": ("local_band",),
    "agreement": ("agreement",),
}
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
SMALL = {"block_q": 32, "block_k": 16, "segment_tokens": 2_048, "tail_tokens": 32, "recent_rows": 24}
SMALL |= {"routing_rows": 16, "certificate_rows": 32, "boundary_rows": 8}


def profile_class() -> Any:
    """LatencyProfile, wherever this version keeps it."""
    return _first("LatencyProfile", "engine.latency", "engine.method.latency", "engine.profiles.latency")


@contextmanager
def fused_path() -> Iterator[str]:
    """Tensors on the CPU take the Triton kernels inside the block; yields how that was done.

    In a process with TRITON_INTERPRET=1, which is all that newer versions ask for. Older ones decided by a function,
    device_path.fused, that tests replaced.
    """
    for name in ("engine.device_path", "engine.device.device_path"):
        try:
            device_path: Any = importlib.import_module(f"routesparse.{name}")
        except ModuleNotFoundError:
            continue
        before = device_path.fused
        device_path.fused = lambda _: True
        try:
            yield f"{name}.fused"
        finally:
            device_path.fused = before
        return
    import torch

    if not _first("runs_triton", "kernels.common")(torch.zeros(1)):
        raise RuntimeError("the fused path is off: TRITON_INTERPRET=1 was not enough; mend the adapter")
    yield "TRITON_INTERPRET"


def config_of(values: dict[str, Any]) -> Any:
    """A RouterConfig from plain values; lambda is called gate_threshold here and may be called gate there."""
    from routesparse.engine import RouterConfig

    known = {field.name for field in dataclasses.fields(RouterConfig)}
    values = dict(values)
    if "gate_threshold" in values and "gate_threshold" not in known:
        values["gate"] = values.pop("gate_threshold")
    return RouterConfig.from_dict(values)


def _first(name: str, *modules: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(f"routesparse.{module}"), name)
        except (ModuleNotFoundError, AttributeError):
            continue
    raise ImportError(
        f"{name} is in none of {', '.join(modules)}; add its new home to the adapter of {__file__}"
    )


def new_problems(texts: Path) -> list[dict[str, Any]]:
    """The 40 problems, their tokens from the texts. Errors: FileNotFoundError, ValueError for a short text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(_checkout() / "data" / "models" / "demo")
    rng = random.Random(SEED)

    def ids(domain: str, tokens: int) -> list[int]:
        if domain == "needles":
            text = _needles(rng, 4 * tokens)
        else:
            files = sorted((texts / domain / "calibration").glob("*.txt"))
            if not files:
                raise FileNotFoundError(f"no {domain}/calibration/*.txt in {texts}")
            content = rng.choice(files).read_text("utf-8")
            begin = rng.randrange(max(1, len(content) - 8 * tokens))
            text = content[begin : begin + 8 * tokens]
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(found) < tokens - 1:
            raise ValueError(f"a {domain} text has {len(found)} tokens; {tokens} are needed")
        # The question of a needle prompt stands at its end.
        kept = found[1 - tokens :] if domain == "needles" else found[: tokens - 1]
        return [tokenizer.bos_token_id, *kept]

    problems: list[dict[str, Any]] = []
    domains = ("prose", "code", "dialog", "needles")
    certified: dict[str, Any] = {"policy": "certified"}
    kinds: list[tuple[int, dict[str, Any], dict[str, Any]]] = [
        (1_024, certified, {}),
        (2_048, certified, {}),
        (4_096, {**certified, "tau": 0.95, "alpha": 0.3}, {}),
        (1_500, {**certified, "probe": "pooled"}, {}),
        (2_048, {"policy": "budgeted", "budget": "0.2"}, {}),
        (3_000, {"policy": "strict", "budget": "0.3", "probe": "pooled"}, {}),
        (2_700, {"policy": "strict", "budget": "0.35", "segment_tokens": 1_024}, {}),
        (1_536, {**certified, "max_tests": 5, "bound": "bernstein", "gate_threshold": 0.92}, {}),
    ]
    for tokens, config, extra in kinds:
        problems += [
            {"name": f"{domain}-{tokens}-{config['policy']}", "ids": [ids(domain, tokens)], "config": config}
            | extra
            for domain in domains
        ]
    # Routed upstream, as in use: a batch padded on the left, a prompt in chunks, several segments, the ablations.
    whole = {"dense_upstream": False}
    problems[3] |= whole
    problems[6] |= whole
    problems[9] |= {
        **whole,
        "ids": [ids("code", 2_048), ids("prose", 1_600)],
        "name": "padded-2048-certified",
    }
    problems[14] |= {
        **whole,
        "ids": [ids("dialog", 1_500), ids("needles", 1_200)],
        "name": "padded-1500-pooled",
    }
    problems[8] |= {**whole, "chunks": [2_304, 1_792], "name": "prose-4096-chunks"}
    problems[18] |= {**whole, "chunks": [1_024, 1_024], "name": "dialog-2048-chunks-budgeted"}
    problems[25] |= whole
    problems[30] |= {**whole, "config": {**certified, "fallback": False}, "name": "dialog-1536-no-fallback"}
    for problem in problems:
        problem |= {"part": "cpu", "model": "demo"}
    small: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
        ("demo", 333, certified, {}),
        ("demo", 410, certified, {"chunks": [260, 150]}),
        ("demo", 300, {**certified, "probe": "pooled"}, {}),
        ("demo", 300, {"policy": "budgeted", "budget": "0.5"}, {}),
        ("demo", 300, {**certified, "recent_rows": 100, "tail_tokens": 128, "max_tests": 5}, {}),
        ("demo", 250, certified, {"padded": 173}),
        ("softcap", 290, certified, {}),
        ("sinks", 290, certified, {}),
    ]
    for place, (model, tokens, config, extra) in enumerate(small):
        domain = domains[place % len(domains)]
        prompts = [ids(domain, tokens)]
        if "padded" in extra:
            prompts.append(ids(domain, extra["padded"]))
        problems.append(
            {"name": f"fused-{model}-{tokens}-{place}", "part": "fused", "model": model, "ids": prompts}
            | {"config": {**SMALL, "tau": 0.7 if place % 2 else 0.92, **config}}
            | {name: value for name, value in extra.items() if name == "chunks"}
        )
    for problem in problems:
        problem["config"] = {**problem["config"], "break_even_tokens": 0, "seed": SEED}
        problem.setdefault("dense_upstream", len(problem["ids"]) == 1 and "chunks" not in problem)
    return problems


def _needles(rng: random.Random, characters: int) -> str:
    """Lines of noise with four numbers hidden in them, and the question for one."""
    noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    lines = [noise] * (characters // len(noise) + 1)
    keys = [
        f"{rng.choice(('amber', 'quiet', 'round'))}-{rng.choice(('harbor', 'lantern', 'meadow'))}{i}"
        for i in range(4)
    ]
    for key in keys:
        place = rng.randrange(len(lines) // 2, len(lines))
        lines.insert(
            place, f"One of the special magic numbers for {key} is: {rng.randint(10**6, 10**7 - 1)}."
        )
    question = f"What is the special magic number for {keys[0]} mentioned in the provided text?"
    return "\n".join(
        [*lines, question, f"The special magic number for {keys[0]} mentioned in the provided text is"]
    )


def _checkout() -> Path:
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
            _checkout() / "data" / "models" / "demo", dtype=torch.float32, **fewer
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
        asked.write_text(json.dumps(problems))
        command = [sys.executable, "-P", "-W", "ignore", __file__, "fused", str(asked), str(answered)]
        subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
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

    from routesparse.engine import route

    config = config_of(problem["config"])
    shape: dict[str, Any] = {
        "block_q": config.block_q,
        "block_k": config.block_k,
        "head_dim": 0,
        "groups": 0,
        "threads": 1,
    }
    names = {"name": "fixed", "device": "none", "backend": "torch", "dtype": "float32"}
    profile = profile_class()(**names, **shape, **COSTS)
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
    units = [
        {name: _exact(_get(row, *names)) for name, names in UNIT_FIELDS.items()} for row in record.choices
    ]
    layers = [{name: _exact(_get(row, name)) for name in LAYER_FIELDS} for row in record.layers]
    columns: dict[str, list[Any]] = {}
    for row in record.candidates:
        for name in CANDIDATE_FIELDS:
            key = f"layer {row.layer}, candidates of {row.pattern}, {name}"
            columns.setdefault(key, []).append(_exact(_get(row, name)))
    candidates = {key: _digest(values)[:16] for key, values in columns.items()}
    return {"units": units, "layers": layers, "candidates": candidates}


def _get(row: Any, *names: str) -> Any:
    return next((getattr(row, name) for name in names if hasattr(row, name)), None)


def _exact(value: Any) -> Any:
    """A float as the hexadecimal text of its 64 bits, everything else as it is."""
    return value.hex() if isinstance(value, float) else value


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _git_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    found = subprocess.run(command, cwd=_checkout(), capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def compare(first: dict[str, Any], second: dict[str, Any]) -> int:
    """Print what differs, by prompt and by field; returns the number of prompts that differ."""
    for name in ("machine", "versions", "salt", "seed", "costs"):
        if first[name] != second[name]:
            print(f"{name} differs: {first[name]} and {second[name]}")
    asked, again = ({p["name"]: p for p in recording["problems"]} for recording in (first, second))
    common = [name for name in asked if name in again]
    if not common or any(asked[name] != again[name] for name in common):
        raise SystemExit(
            "the two recordings hold different problems; record the second one with --like the first"
        )
    if len(common) < len(asked):
        print(f"only {len(common)} of {len(asked)} prompts are in both recordings")
    totals: Counter[str] = Counter()
    prompts: Counter[str] = Counter()
    changed = 0
    for name in common:
        one, other = first["results"][name], second["results"][name]
        differing = _differences(one, other)
        if not differing:
            continue
        changed += 1
        found = Counter(field for field, _ in differing)
        totals += found
        prompts.update(found.keys())
        layers = sorted({layer for _, layer in differing if layer is not None})
        upstream = "dense" if asked[name]["dense_upstream"] else "routed"
        listed = ", ".join(f"{field} {count}" for field, count in found.most_common())
        print(f"{name} ({upstream} upstream), layers {layers}: {listed}")
    print(f"{len(common) - changed} of {len(common)} prompts are equal bit by bit")
    for field, count in totals.most_common():
        print(f"  {field}: {count} values in {prompts[field]} prompts")
    return changed


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, int | None]]:
    """(field, layer) of every value that differs."""
    found: list[tuple[str, int | None]] = []
    for kind in ("units", "layers"):
        if len(one[kind]) != len(other[kind]):
            found.append((f"number of {kind}", None))
        for a, b in zip(one[kind], other[kind], strict=False):
            found += [(f"{kind}: {key}", a["layer"]) for key in a if a[key] != b.get(key)]
    keys = {**one["candidates"], **other["candidates"]}
    for key in keys:
        if one["candidates"].get(key) != other["candidates"].get(key):
            layer, _, rest = key.partition(", ")
            found.append((rest, int(layer.removeprefix("layer "))))
    if one["logits"] != other["logits"]:
        found.append(("logits", None))
    return found


def main(argv: list[str] | None = None) -> None:
    """Exit code 1 where two recordings differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the 40 problems and write what was decided")
    recording.add_argument("out", type=Path)
    source = recording.add_mutually_exclusive_group(required=True)
    source.add_argument("--like", type=Path, help="a recording whose problems are asked again")
    source.add_argument("--texts", type=Path, help="folder of texts to make new problems from")
    recording.add_argument(
        "--only", default="", help="only the problems whose names contain this, such as fused"
    )
    comparing = commands.add_parser("compare", help="what differs between two recordings")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    fused = commands.add_parser("fused", help="used by record: the fused problems, with TRITON_INTERPRET=1")
    fused.add_argument("asked", type=Path)
    fused.add_argument("answered", type=Path)
    arguments = parser.parse_args(argv)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    if arguments.command == "record":
        if arguments.like is not None:
            problems = json.loads(arguments.like.read_text())["problems"]
        else:
            problems = new_problems(arguments.texts)
        chosen = [problem for problem in problems if arguments.only in problem["name"]]
        if not chosen:
            parser.error(f"no problem's name contains {arguments.only!r}")
        record(arguments.out, chosen)
    elif arguments.command == "fused":
        with fused_path() as how:
            print(f"fused path by {how}")
            arguments.answered.write_text(json.dumps(_run(json.loads(arguments.asked.read_text()))))
    elif compare(*(json.loads(path.read_text()) for path in (arguments.first, arguments.second))):
        sys.exit(1)


if __name__ == "__main__":
    main()
