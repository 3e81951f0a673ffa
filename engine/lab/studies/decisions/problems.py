"""The 40 problems of a recording: token ids and settings, drawn from texts and generated needles.

32 are for the CPU path with the demo model, 8 small ones for the fused path in Triton's interpreter. In most of them
every layer reads what the layers before it give with *dense* attention (``dense_upstream``).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from routesparse.engine.lab.studies.decisions.recording import SEED, checkout

SMALL = {"block_q": 32, "block_k": 16, "segment_tokens": 2_048, "tail_tokens": 32, "recent_rows": 24}
SMALL |= {"routing_rows": 16, "certificate_rows": 32, "boundary_rows": 8}


def new_problems(texts: Path) -> list[dict[str, Any]]:
    """The 40 problems, their tokens from the texts. Errors: FileNotFoundError, ValueError for a short text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkout() / "data" / "models" / "demo")
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
