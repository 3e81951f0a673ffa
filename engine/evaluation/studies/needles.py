"""What sparsity costs on needles: routed answers against dense ones on the same prompts, and the controls.

    python -m routesparse.engine.evaluation.studies.needles --seed 1 --out data/results/needles.json
    python -m routesparse.engine.evaluation.studies.needles --seed 1 --processes 8 --out ...  # eight at a time on a GPU

Prompts of DEVELOPMENT_SEED led to changes of the router, so no result on them is reported; a reported study runs once,
on a seed whose prompts nobody looked at before. The file says which of the two it is.

Every prompt is answered greedily (decoding is dense, the prefill is what differs) by
  dense        the reference
  routed       RouteSparse at the default setting (below break-even too)
  fixed        vertical-slash at one density for all heads: the routed run's own mean density on this prompt
  window       sink and 1,024 local tokens in every row, decoding included: must lose needles in mid-context
and scored as RULER does (share of gold strings found). Paired: the interval is of the mean difference to dense, by
bootstrap over prompts within tasks; harmed and gained prompts are counted.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.baselines.fixed import FixedSession, WindowSession
from routesparse.engine.config import RouterConfig, certified_mass
from routesparse.engine.decide.decision import Computed
from routesparse.engine.demo_model.tasks import GENERATION_TOKENS, Sample, fit_sample, score_all
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.evaluation import study
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

TASKS = ("niah_single_2", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multiquery", "vt")
METHODS = ("dense", "routed", "fixed", "window")
WINDOW_TOKENS = 1_024
THREADS = 2
RESAMPLES = 10_000
SEED_OFFSET = 91_000  # evaluation seeds are disjoint from training's
# Of the prompts whose wrong digits led to a change of every plan (LOCAL_BLOCKS of method/policy.py).
DEVELOPMENT_SEED = 0


@dataclass(frozen=True)
class Answer:
    """One method's answer to one prompt. density: kept share of the causal area, mean over layers and heads."""

    text: str
    score: float
    density: float


def main(argv: list[str] | None = None) -> None:
    """Run the study and write its file."""
    parser = study.parser(__doc__)
    parser.set_defaults(seed=DEVELOPMENT_SEED)
    parser.add_argument("--tokens", type=int, default=8_192)
    parser.add_argument("--prompts", type=int, default=20, help="per task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--tau", type=float, default=None, help="of a layer")
    parser.add_argument("--fixed-pattern", default="vertical_slash")
    parser.add_argument(
        "--processes", type=int, default=1, help="prompts answered at a time; on a CPU two threads each"
    )
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model)
    config = RouterConfig(
        **certified_mass(RouterConfig.policy, arguments.tau), seed=arguments.seed, break_even_tokens=0
    )
    haystacks = [p.read_text() for p in sorted((Path(arguments.data) / "prose" / "test").glob("*.txt"))]
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "prompts": {
            "seed": arguments.seed,
            "development_seed": DEVELOPMENT_SEED,
            "reported": arguments.seed != DEVELOPMENT_SEED,
        },
        "processes": arguments.processes,
        "tokens": arguments.tokens,
        "prompts_per_task": arguments.prompts,
        "config": config.to_dict(),
        "window_tokens": WINDOW_TOKENS,
        "fixed_pattern": arguments.fixed_pattern,
        "tasks": {},
    }
    scores: dict[str, dict[str, list[float]]] = {}
    work = partial(answer_one, model=arguments.model, config=config, fixed_pattern=arguments.fixed_pattern)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(arguments.processes, context, _start, (context.Value("i", 0),))
    with pool:
        started = {
            task: pool.map(
                work,
                samples(loaded, task, arguments.tokens, arguments.prompts, haystacks, arguments.seed),
            )
            for task in arguments.tasks
        }
        for task, answered in started.items():
            answers = list(answered)
            collect(result, scores, task, answers, arguments.seed)
            study.save(arguments.out, result)
    study.note(str(result["paired"]))


def collect(
    result: dict[str, Any],
    scores: dict[str, dict[str, list[float]]],
    task: str,
    answers: list[dict[str, Answer]],
    seed: int,
) -> None:
    """Add one task's row to the result and renew the paired differences."""
    scores[task] = {m: [a[m].score for a in answers] for m in METHODS}
    result["tasks"][task] = row = {
        "n": len(answers),
        **{m: 100 * float(np.mean(scores[task][m])) for m in METHODS},
        "density": {m: float(np.mean([a[m].density for a in answers])) for m in METHODS},
        "identical_to_dense": {
            m: float(np.mean([a[m].text == a["dense"].text for a in answers])) for m in METHODS[1:]
        },
    }
    study.note(f"{task}: {row}")
    result["paired"] = {
        f"{m} - {base}": paired(scores, m, base, seed)
        for m, base in (("routed", "dense"), ("fixed", "dense"), ("window", "dense"), ("routed", "fixed"))
    }


def samples(
    loaded: LoadedModel, task: str, tokens: int, count: int, haystacks: list[str], seed: int
) -> list[Sample]:
    """Evaluation samples: other seeds, key words and documents than training.

    A sample's draws are those of (seed, task, length, index): two seeds share no prompt.
    """
    return [
        drawn(loaded, task, tokens, index, haystacks[index % len(haystacks)], seed) for index in range(count)
    ]


def drawn(loaded: LoadedModel, task: str, tokens: int, index: int, haystack: str, seed: int) -> Sample:
    """One of ``samples``."""
    return fit_sample(
        task,
        tokens,
        count_tokens=lambda text: count_of(loaded, text),
        haystack=haystack,
        seed=seed + SEED_OFFSET,
        index=index,
    )


def count_of(loaded: LoadedModel, text: str) -> int:
    """Tokens of a text, without special ones."""
    return len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])


def _start(started: Any) -> None:
    """Before a process's first prompt: its share of the threads, and the next GPU in turn where there are several."""
    torch.set_num_threads(THREADS)
    with started.get_lock():
        place, started.value = started.value, started.value + 1
    if torch.cuda.is_available():
        torch.cuda.set_device(place % torch.cuda.device_count())


@cache
def _loaded(model: str) -> tuple[LoadedModel, Graphs[Computed]]:
    """The process's model, and what its GPU captured for earlier prompts: theirs are of a few lengths."""
    device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    return load_model(model, device=device), Graphs()


def answer_one(sample: Sample, model: str, config: RouterConfig, fixed_pattern: Any) -> dict[str, Answer]:
    """``answer_all`` in a process of its own, which loads the model once."""
    return answer_all(*_loaded(model), sample, config, fixed_pattern)


def answer_all(
    loaded: LoadedModel, graphs: Graphs[Computed], sample: Sample, config: RouterConfig, fixed_pattern: Any
) -> dict[str, Answer]:
    """The prompt answered by every method; the fixed plan gets the density that routing spent on it."""
    routed = RoutingSession(config, profile=NamedProfile(), salt=sample.prompt[:4_096], graphs=graphs)
    answers = {
        "dense": answer(loaded, sample, None, lambda: 1.0),
        "routed": answer(loaded, sample, routed, lambda: float(routed.trace.record().run.density or 1.0)),
    }
    spent = min(1.0, max(0.01, answers["routed"].density))
    controls = {
        "fixed": FixedSession(config, fixed_pattern, spent),
        "window": WindowSession(config, WINDOW_TOKENS),
    }
    for name, session in controls.items():
        answers[name] = answer(loaded, sample, session, lambda s=session: float(np.mean(s.densities)))
    return answers


@torch.no_grad()
def answer(
    loaded: LoadedModel,
    sample: Sample,
    router: AttentionRouter | None,
    density: Any,
    limit: int | None = None,
) -> Answer:
    """Greedy decoding after a prefill by ``router`` (None: the model's own dense attention).

    limit: most tokens of the answer; None: RULER's.
    """
    text = sample.prompt + sample.answer_prefix
    bos = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    ids = bos + loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt = torch.tensor([ids], device=loaded.model.device)
    with nullcontext() if router is None else routed_by(loaded.model, router):
        out = loaded.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=limit or GENERATION_TOKENS[sample.task],
            do_sample=False,
            pad_token_id=0,
        )
    prediction = loaded.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
    return Answer(prediction, score_all(prediction, sample.gold), density())


def paired(scores: dict[str, dict[str, list[float]]], method: str, base: str, seed: int) -> dict[str, Any]:
    """Mean difference in points with a 95 % interval, stratified by task, and harmed and gained prompts."""
    rng = np.random.default_rng(seed)
    differences = [np.array(s[method]) - np.array(s[base]) for s in scores.values()]
    means = np.mean(
        [d[rng.integers(0, len(d), size=(RESAMPLES, len(d)))].mean(1) for d in differences], axis=0
    )
    flat = np.concatenate(differences)
    low, high = np.quantile(means, [0.025, 0.975])
    return {
        "n": len(flat),
        "mean_points": 100 * float(np.mean([d.mean() for d in differences])),
        "interval_points": [100 * float(low), 100 * float(high)],
        "harmed": int((flat < 0).sum()),
        "gained": int((flat > 0).sum()),
    }


if __name__ == "__main__":
    study.run(main)
