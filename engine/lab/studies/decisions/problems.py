"""The problems of a recording: token ids and settings, drawn from texts and generated needles.

Most are for the CPU path with the demo model, eight small ones for the fused path in Triton's interpreter. In most of
them every layer reads what the layers before it give with *dense* attention (``dense_upstream``).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from routesparse.engine.lab.generators.needles import make_niah
from routesparse.engine.lab.studies.decisions.recording import SEED, checkout

DOMAINS = ("prose", "code", "dialog", "needles")
CERTIFIED = {"policy": "certified"}
POOLED = {**CERTIFIED, "probe": "pooled"}
SMALL = {"block_q": 32, "block_k": 16, "segment_tokens": 2_048, "tail_tokens": 32, "recent_rows": 24}
SMALL |= {"routing_rows": 16, "certificate_rows": 32, "boundary_rows": 8}
# Tokens and configuration, of each domain.
ALONE: tuple[tuple[int, dict[str, Any]], ...] = (
    (1_024, CERTIFIED),
    (2_048, CERTIFIED),
    (4_096, {**CERTIFIED, "tau": 0.95, "alpha": 0.3}),
    (1_500, POOLED),
    (2_048, {"policy": "budgeted", "budget": "0.2"}),
    (3_000, {"policy": "strict", "budget": "0.3", "probe": "pooled"}),
    (2_700, {"policy": "strict", "budget": "0.35", "segment_tokens": 1_024}),
    (1_536, {**CERTIFIED, "max_tests": 5, "bound": "bernstein", "gate_threshold": 0.92}),
)
# Tokens of each prompt, configuration, chunks. Routed upstream, as in use: batches padded on the left, prompts in
# chunks, several segments, an ablation.
IN_USE: tuple[tuple[dict[str, int], dict[str, Any], list[int]], ...] = (
    ({"needles": 1_024}, CERTIFIED, []),
    ({"dialog": 2_048}, CERTIFIED, []),
    ({"code": 2_048, "prose": 1_600}, CERTIFIED, []),
    ({"dialog": 1_500, "needles": 1_200}, POOLED, []),
    ({"prose": 4_096}, ALONE[2][1], [2_304, 1_792]),
    ({"dialog": 2_048}, ALONE[4][1], [1_024, 1_024]),
    ({"code": 2_700}, ALONE[6][1], []),
    ({"dialog": 1_536}, {**CERTIFIED, "fallback": False}, []),
)
# Model, tokens of each prompt, configuration, chunks.
FUSED: tuple[tuple[str, dict[str, int], dict[str, Any], list[int]], ...] = (
    ("demo", {"prose": 333}, CERTIFIED, []),
    ("demo", {"code": 410}, CERTIFIED, [260, 150]),
    ("demo", {"dialog": 300}, POOLED, []),
    ("demo", {"needles": 300}, {"policy": "budgeted", "budget": "0.5"}, []),
    ("demo", {"prose": 300}, {**CERTIFIED, "recent_rows": 100, "tail_tokens": 128, "max_tests": 5}, []),
    ("demo", {"code": 250, "dialog": 173}, CERTIFIED, []),
    ("softcap", {"dialog": 290}, CERTIFIED, []),
    ("sinks", {"needles": 290}, CERTIFIED, []),
)


def new_problems(texts: Path) -> list[dict[str, Any]]:
    """All problems, their tokens from the texts. Errors: FileNotFoundError, ValueError for a short text."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkout() / "data" / "models" / "demo")
    rng = random.Random(SEED)

    def ids(domain: str, tokens: int) -> list[int]:
        if domain == "needles":
            sample = make_niah("niah_multikey_2", rng, tokens // 10, "")
            text = sample.prompt + sample.answer_prefix
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

    asked: list[tuple[Any, ...]] = [
        ("cpu", "demo", {d: n}, config, [], True) for n, config in ALONE for d in DOMAINS
    ]
    asked += [("cpu", "demo", *one, False) for one in IN_USE]
    asked += [("fused", *one, len(one[1]) == 1 and not one[3]) for one in FUSED]
    problems = []
    for number, (part, model, prompts, config, chunks, upstream) in enumerate(asked):
        small = {**SMALL, "tau": 0.7 if number % 2 else 0.92} if part == "fused" else {}
        lengths = "-".join(f"{domain}-{tokens}" for domain, tokens in prompts.items())
        problem: dict[str, Any] = {
            "name": f"{part}-{number}-{model}-{lengths}-{config['policy']}",
            "part": part,
            "model": model,
            "ids": [ids(*prompt) for prompt in prompts.items()],
            "config": {**small, **config, "break_even_tokens": 0, "seed": SEED},
            "dense_upstream": upstream,
        }
        problems.append(problem | ({"chunks": chunks} if chunks else {}))
    return problems
