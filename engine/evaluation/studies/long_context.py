"""Which rescaling of rotary positions keeps retrieval beyond the trained context, after dense and routed prefills.

    python -m routesparse.engine.evaluation.studies.long_context --seed 1 --out data/results/long_context.json

The same RULER prompts are answered by the model as it is and under each scaling (models/rope.py), each with both
prefills and dense decoding, and scored as RULER does. A scaling's factor is the longest length over the original
context, at every length. The default lengths lie beyond the 65,536 tokens that the bundled model was trained on, so
neither shows what a scaling costs where it is not needed; a shorter one in --lengths does.
  none       the model as it is; beyond its context its angles are ones that it never saw
  linear     Position Interpolation
  yarn       YaRN with its default ramp and attention factor
  longrope   LongRoPE's form with factors s^(2i/(d-2)) for the pairs i (NTK-aware interpolation), the seed of that
             paper's search. Prompts within the original context take its short list, here all 1.0, which leaves
             positions unscaled
Two more where they are named in --scalings:
  yarn_trained  YaRN stretching the --trained tokens that the model was really trained on, which its file may overstate
  searched      LongRoPE's form with the factors that rope_search.py found for this model, from its file --searched
A low score of both prefills is the scaling's; one of the routed prefill alone is routing's. Greedy answers may be SLACK
tokens longer than the gold one. For needle tasks the depth of every asked needle is kept, and whether it was found.
Prompts are shared by --processes, on one GPU; where time runs out (--limit-s), rows hold what was answered.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from routesparse.engine.config import default_config
from routesparse.engine.decide.decision import Computed
from routesparse.engine.demo_model.niah import NIAH
from routesparse.engine.demo_model.tasks import Sample
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies import rope_search, rounds
from routesparse.engine.evaluation.studies.needles import (
    THREADS,
    Answer,
    answer,
    count_of,
    drawn,
    paired,
)
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.profiles.measure import NamedProfile
from routesparse.engine.runtime.session import RoutingSession

SCALINGS = ("none", "linear", "yarn", "longrope")
MORE_SCALINGS = ("yarn_trained", "searched")
TASKS = ("niah_single_2", "niah_multivalue", "vt")
METHODS = ("dense", "routed")


@dataclass(frozen=True)
class Job(rounds.Prompt):
    """A prompt under every scaling, by name."""

    ropes: tuple[tuple[str, RopeScaling | None], ...]


@dataclass(frozen=True)
class Outcome:
    """One prompt's answers by scaling and prefill.

    depths: of the asked needles, as shares of the prompt's characters, in the order of ``gold``; empty for other tasks.
    """

    answers: dict[str, dict[str, Answer]]
    gold: tuple[str, ...]
    depths: tuple[float, ...]


def main(argv: list[str] | None = None) -> None:
    """Run the study; its file is renewed after every prompt."""
    parser = study.parser(__doc__)
    rounds.add_arguments(parser, lengths=(131_072, 262_144), prompts=10, tasks=TASKS)
    parser.add_argument("--scalings", nargs="+", choices=(*SCALINGS, *MORE_SCALINGS), default=list(SCALINGS))
    parser.add_argument("--original", type=int, help="tokens of the original context; default: the model's")
    parser.add_argument("--trained", type=int, help="tokens of training, for yarn_trained")
    parser.add_argument("--searched", type=Path, help="file of rope_search.py, for searched")
    arguments = parser.parse_args(argv)
    for name, needed in (("yarn_trained", "trained"), ("searched", "searched")):
        if name in arguments.scalings and not getattr(arguments, needed):
            parser.error(f"--scalings {name} needs --{needed}")
    plain = load_model(arguments.model)
    config = default_config(plain.on_gpu, break_even_tokens=0, seed=arguments.seed)
    haystacks = rounds.texts(parser, arguments)
    original = arguments.original or plain.max_tokens
    ropes = tuple((name, _rope(plain, arguments, name, original)) for name in arguments.scalings)
    result = {
        **study.header(plain, arguments),
        "original": original,
        "processes": arguments.processes,
        "first_prompt": arguments.first,
        "prompts_per_cell": arguments.prompts,
        "slack_tokens": rounds.SLACK,
        "config": config.to_dict(),
        "rows": [],
    }
    jobs = [Job(**vars(prompt), ropes=ropes) for prompt in rounds.in_rounds(arguments, config, haystacks)]
    models = {name: _as_run(arguments.model, rope) for name, rope in ropes}
    found: dict[tuple[str, int], dict[int, Outcome]] = {}
    for job, outcome in rounds.as_answered(jobs, answered, arguments.processes):
        found.setdefault((job.task, job.tokens), {})[job.index] = outcome
        study.note(f"{job.task}, {job.tokens:,} tokens, prompt {job.index}: {_line(outcome)}")
        result["rows"] = rows(found, models)
        study.save(arguments.out, result)
    study.note(f"{sum(map(len, found.values()))} of {len(jobs)} prompts answered")


def _rope(plain: LoadedModel, arguments: argparse.Namespace, name: str, original: int) -> RopeScaling | None:
    """The request of that name, stretched to the longest prompt. Errors: ConfigError, InputError."""
    longest = max(arguments.lengths)
    if name == "searched":
        return rope_search.read_scaling(arguments.searched)
    if name == "yarn_trained":
        return scaling("yarn", longest / arguments.trained, arguments.trained, 0)
    own = getattr(plain.model.config, "rope_parameters", None) or {}
    pairs = int(plain.head_dim * (own.get("partial_rotary_factor") or 1.0)) // 2
    return scaling(name, longest / original, original, pairs)


def _as_run(model: str, rope: RopeScaling | None) -> dict[str, str | None]:
    """What a row says of its model."""
    loaded = load_model(model, device="cpu", rope=rope)
    return {"rope": loaded.rope, "revision": loaded.revision}


def scaling(name: str, factor: float, original: int, pairs: int) -> RopeScaling | None:
    """The request of that name; pairs: rotary pairs of a head. Errors: ConfigError for a factor below 1."""
    if name == "none":
        return None
    values = {"rope_type": name, "factor": factor, "original_max_position_embeddings": original}
    if name == "longrope":
        values["short_factor"] = [1.0] * pairs
        values["long_factor"] = [float(f) for f in factor ** (np.arange(pairs) / (pairs - 1))]
    return RopeScaling.of(values)


@cache
def _loaded(model: str, rope: RopeScaling | None) -> tuple[LoadedModel, Graphs[Computed]]:
    """A process's model under one scaling, and what its GPU captured for earlier prompts."""
    torch.set_num_threads(THREADS)
    return load_model(model, rope=rope), Graphs()


def answered(job: Job) -> Outcome | None:
    """One prompt under every scaling after both prefills; None where the time is up."""
    if time.time() > job.deadline:
        return None
    first = _loaded(job.model, job.ropes[0][1])[0]
    sample = drawn(first, job.task, job.tokens, job.index, job.haystack, job.config.seed)
    limit = count_of(first, sample.answer) + rounds.SLACK
    answers = {name: _both(job, sample, limit, rope) for name, rope in job.ropes}
    depths: tuple[float, ...] = ()
    if job.task in NIAH and len(sample.needle_spans) == len(sample.gold):
        depths = tuple(start / len(sample.prompt) for start, _ in sample.needle_spans)
    return Outcome(answers, sample.gold, depths)


def _both(job: Job, sample: Sample, limit: int, rope: RopeScaling | None) -> dict[str, Answer]:
    loaded, graphs = _loaded(job.model, rope)
    session = RoutingSession(job.config, profile=NamedProfile(), salt=sample.prompt[:4_096], graphs=graphs)
    return {
        "dense": answer(loaded, sample, None, lambda: 1.0, limit),
        "routed": answer(
            loaded, sample, session, lambda: float(session.trace.record().run.density or 1.0), limit
        ),
    }


def rows(
    found: dict[tuple[str, int], dict[int, Outcome]], models: dict[str, dict[str, str | None]]
) -> list[dict[str, Any]]:
    """One a scaling, task and length: scores in percent by prefill, how often both answer alike, what routing read.

    needles: [depth, found after the dense prefill, found after the routed one] of every asked needle.
    """
    made = []
    for name, model in models.items():
        for (task, tokens), outcomes in sorted(found.items()):
            prompts = [outcomes[index] for index in sorted(outcomes)]
            answers = [one.answers[name] for one in prompts]
            scores = {method: [one[method].score for one in answers] for method in METHODS}
            made.append(
                {
                    "scaling": name,
                    "task": task,
                    "tokens": tokens,
                    **model,
                    "n": len(answers),
                    **{method: 100 * float(np.mean(scores[method])) for method in METHODS},
                    "routed - dense": paired({task: scores}, "routed", "dense", 0),
                    "identical": float(np.mean([one["dense"].text == one["routed"].text for one in answers])),
                    "density": float(np.mean([one["routed"].density for one in answers])),
                    "scores": scores,
                    "needles": [needle for one in prompts for needle in _needles(one, name)],
                }
            )
    return made


def _needles(one: Outcome, name: str) -> list[list[float]]:
    by = one.answers[name]
    return [
        [round(depth, 3), *(float(gold in by[method].text) for method in METHODS)]
        for gold, depth in zip(one.gold, one.depths, strict=False)
    ]


def _line(outcome: Outcome) -> str:
    return ", ".join(
        f"{name} " + "/".join(f"{100 * by[method].score:.0f}" for method in METHODS)
        for name, by in outcome.answers.items()
    )


if __name__ == "__main__":
    study.run(main)
