"""KV-cache compression after a routed and after a dense prefill: what is left of RULER's needles.

    python -m routesparse.engine.evaluation.studies.presses --seed 31 --processes 7 --out data/results/presses_h200.json

The same prompts are answered greedily after both prefills (the routed one at the default price, below break-even too)
with no press and with each of kvpress's at each share of the cache that it throws away (runtime/kvpress.py), and scored
as RULER does: the share of the gold strings in the answer, which may be SLACK tokens longer than the gold one. Decoding
attends to all keys that are left. Paired: routed less dense on the same prompt with the same press; the interval is of
the mean, by bootstrap over prompts. Draw --seed after the code stands: prompts of a seed are the same at every press.
Where time runs out (--limit-s), the cells hold the prompts that were answered by everything. Another run with the same
seed goes on behind them with --first, into a file of its own; the page puts both together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from routesparse.engine.config import RouterConfig, default_config
from routesparse.engine.decide.decision import Computed
from routesparse.engine.demo_model.tasks import Sample, score_all
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies import rounds
from routesparse.engine.evaluation.studies.needles import THREADS, count_of, drawn, paired
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.kvpress import PRESSES, press_of, pressed
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

TASKS = ("niah_single_2", "niah_multikey_1", "niah_multivalue")
PREFILLS = ("dense", "routed")


@dataclass(frozen=True)
class Job(rounds.Prompt):
    """A prompt in every case: a press and the share of the cache that it throws away."""

    cases: tuple[tuple[str | None, float], ...]


@dataclass(frozen=True)
class Answer:
    """kept: keys of a layer after prefill; density: kept share of the causal area, 1 after a dense prefill."""

    text: str
    score: float
    kept: int
    density: float


Answers = dict[tuple[str | None, float], dict[str, Answer]]


def main(argv: list[str] | None = None) -> None:
    """Run the study; its file is renewed after every prompt."""
    parser = study.parser(__doc__)
    rounds.add_arguments(parser, lengths=(16_384, 32_768), prompts=25, tasks=TASKS)
    parser.add_argument("--presses", nargs="*", choices=PRESSES, default=list(PRESSES))
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.5, 0.75], help="thrown away")
    parser.add_argument(
        "--without", nargs="*", default=[], metavar="PRESS=RATIO", help="of these, not asked for"
    )
    arguments = parser.parse_args(argv)
    if unknown := set(arguments.without) - {_named(case) for case in _every(arguments)}:
        parser.error(
            f"--without {' '.join(sorted(unknown))}: pass some of {' '.join(map(_named, _every(arguments)))}"
        )
    haystacks = rounds.texts(parser, arguments)
    loaded = load_model(arguments.model)
    config = default_config(loaded.on_gpu, break_even_tokens=0, seed=arguments.seed)
    press_of(PRESSES[0], 0.5)  # a missing kvpress ends the run before any prompt
    result = {
        **study.header(loaded, arguments),
        "processes": arguments.processes,
        "first_prompt": arguments.first,
        "prompts_per_cell": arguments.prompts,
        "slack_tokens": rounds.SLACK,
        "config": config.to_dict(),
        "cells": [],
    }
    jobs = list(_jobs(arguments, config, haystacks))
    del loaded
    found: dict[tuple[str, int], dict[int, Answers]] = {}
    for job, answers in rounds.as_answered(jobs, answer_all, arguments.processes):
        found.setdefault((job.task, job.tokens), {})[job.index] = answers
        study.note(f"{job.task}, {job.tokens:,} tokens, prompt {job.index}: {_line(answers)}")
        result["cells"] = cells(found, arguments.seed)
        study.save(arguments.out, result)
    study.note(f"{sum(map(len, found.values()))} of {len(jobs)} prompts answered")


def _every(arguments: argparse.Namespace) -> list[tuple[str, float]]:
    return list(product(arguments.presses, arguments.ratios))


def _named(case: tuple[str, float]) -> str:
    return f"{case[0]}={case[1]:g}"


def _jobs(arguments: argparse.Namespace, config: RouterConfig, haystacks: list[str]) -> Iterator[Job]:
    cases = ((None, 0.0), *(case for case in _every(arguments) if _named(case) not in arguments.without))
    for prompt in rounds.in_rounds(arguments, config, haystacks):
        yield Job(**vars(prompt), cases=cases)


@cache
def _loaded(model: str) -> tuple[LoadedModel, Graphs[Computed]]:
    """The process's model, and what its GPU captured for earlier prompts."""
    torch.set_num_threads(THREADS)
    return load_model(model), Graphs()


def answer_all(job: Job) -> Answers | None:
    """One prompt after both prefills in every case; None where the time is up."""
    loaded, graphs = _loaded(job.model)
    if time.time() > job.deadline:
        return None

    sample = drawn(loaded, job.task, job.tokens, job.index, job.haystack, job.config.seed)
    limit = count_of(loaded, sample.answer) + rounds.SLACK
    answers: Answers = {}
    for case in job.cases:
        answers[case] = {}
        for prefill in PREFILLS:
            session = None
            if prefill == "routed":
                salt = sample.prompt[:4_096]
                session = RoutingSession(job.config, profile=NamedProfile(), salt=salt, graphs=graphs)
            answers[case][prefill] = answer(loaded, sample, limit, session, *case)
    return answers


@torch.no_grad()
def answer(
    loaded: LoadedModel,
    sample: Sample,
    limit: int,
    session: RoutingSession | None,
    press: str | None,
    ratio: float,
) -> Answer:
    """Greedy decoding of at most ``limit`` tokens after one prefill, its cache compressed by the press."""
    text = sample.prompt + sample.answer_prefix
    bos = [] if loaded.tokenizer.bos_token_id is None else [loaded.tokenizer.bos_token_id]
    ids = bos + loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    prompt = torch.tensor([ids], device=loaded.model.device)
    with ExitStack() as stack:
        if session is not None:
            stack.enter_context(routed_by(loaded.model, session))
        if press is not None:
            stack.enter_context(pressed(loaded.model, press_of(press, ratio)))
        lengths = stack.enter_context(_cache_lengths(loaded.model))
        out = loaded.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=limit,
            do_sample=False,
            pad_token_id=0,
        )
    prediction = loaded.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True)
    density = 1.0 if session is None else float(session.trace.record().run.density or 1.0)
    return Answer(prediction, score_all(prediction, sample.gold), lengths[0], density)


@contextmanager
def _cache_lengths(model: Any) -> Iterator[list[int]]:
    """Inside the block every forward pass appends how many keys the first layer holds afterwards."""
    lengths: list[int] = []

    def after(module: Any, arguments: Any, named: Any, output: Any) -> None:
        lengths.append(output.past_key_values.layers[0].keys.shape[2])

    handle = model.register_forward_hook(after, with_kwargs=True)
    try:
        yield lengths
    finally:
        handle.remove()


def cells(found: dict[tuple[str, int], dict[int, Answers]], seed: int) -> list[dict[str, Any]]:
    """One row for each task, length and case, and one with ``task`` None for all tasks of a length and case."""
    rows = []
    for tokens in sorted({tokens for _, tokens in found}):
        tasks = sorted(task for task, length in found if length == tokens)
        cases = next(iter(found[tasks[0], tokens].values()))
        for press, ratio in cases:
            scores: dict[str, dict[str, list[float]]] = {}
            for task in tasks:
                prompts = [one[press, ratio] for _, one in sorted(found[task, tokens].items())]
                scores[task] = {name: [one[name].score for one in prompts] for name in PREFILLS}
                rows.append(
                    {
                        **_cell(task, tokens, press, ratio, {task: scores[task]}, seed),
                        "kept": float(np.mean([one["dense"].kept for one in prompts])),
                        "density": float(np.mean([one["routed"].density for one in prompts])),
                        "identical": float(
                            np.mean([one["dense"].text == one["routed"].text for one in prompts])
                        ),
                        "scores": scores[task],
                    }
                )
            rows.append(_cell(None, tokens, press, ratio, scores, seed))
    return rows


def _cell(
    task: str | None,
    tokens: int,
    press: str | None,
    ratio: float,
    scores: dict[str, dict[str, list[float]]],
    seed: int,
) -> dict[str, Any]:
    means = {name: 100 * float(np.mean([np.mean(one[name]) for one in scores.values()])) for name in PREFILLS}
    named = {"task": task, "tokens": tokens, "press": press, "ratio": ratio}
    return {**named, **means, "routed - dense": paired(scores, "routed", "dense", seed)}


def _line(answers: Answers) -> str:
    return ", ".join(
        f"{press or 'none'} {ratio:g} " + "/".join(f"{100 * by[name].score:.0f}" for name in PREFILLS)
        for (press, ratio), by in answers.items()
    )


if __name__ == "__main__":
    study.run(main)
