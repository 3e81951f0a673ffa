"""``routesparse evaluate``: a suite by several methods, in stages that go on where they were cut off."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.cli.checks import writable_folder
from routesparse.engine.cli.options import JsonFlag, ModelName, ProcessCount, RayAddress
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.config import RouterConfig
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import InputError

if TYPE_CHECKING:
    from routesparse.engine.lab.runner.job import Job


class Stage(StrEnum):
    """What is done."""

    all = "all"
    prepare = "prepare"
    estimate = "estimate"
    predict = "predict"
    time = "time"
    score = "score"
    keep = "keep"


def evaluate(
    suite: Annotated[str, typer.Argument(help="ruler, infinitebench, pg19, longbench or stories.")],
    tasks: Annotated[list[str] | None, typer.Option(help="TASK or TASK,TASK; default: all.")] = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME=VALUE,VALUE, given once or more; dense is always run; default: ours."
        ),
    ] = None,
    lengths: Annotated[
        list[str] | None, typer.Option(help="Tokens of prompt and answer, such as 8192,16384; default 8192.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="Prompts a task and length.")] = 25,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of random rows.")] = 0,
    model: ModelName = "demo",
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with prose/test/*.txt and benchmarks/<suite>/; default: <home>/data."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of prompts, predictions and scores; default: <home>/evaluations/SUITE."),
    ] = None,
    stage: Annotated[
        Stage,
        typer.Option(
            help="One stage alone, or all but time, which times prefills and wants the device to itself, and keep, "
            "which packs predictions and times for a repository; estimate predicts two prompts a length and says "
            "what the rest takes."
        ),
    ] = Stage.all,
    processes: ProcessCount = None,
    ray: RayAddress = None,
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", help="Start no prediction after so many seconds.")
    ] = None,
    no_extras: Annotated[
        bool, typer.Option("--no-extras", help="Rivals as published, without what all our plans read.")
    ] = False,
    screen: Annotated[
        int,
        typer.Option(
            help="Two steps: so many prompts a task by all methods and two controls (a window, random blocks) first; "
            "then up to --n on tasks that dense answers and both controls lose. 0: every task runs to --n."
        ),
    ] = 0,
    answers: Annotated[
        int | None,
        typer.Option(help="Decode so many answers a task; of the others the gold answer's likelihood alone."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts stand in the model's chat template.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Run a suite by several methods and compare each with dense, prompt by prompt.

    Exit code 1 where a prediction or time failed: the scores are of the others, and the same command tries it again.
    """
    report = Reporter()
    crew = Processes(processes, ray)
    from routesparse.engine.lab.runner.alone import alone_in
    from routesparse.engine.lab.runner.job import CONTROLS, Job
    from routesparse.engine.lab.suites.registry import find

    job = Job(
        suite=suite,
        tasks=tuple(_parts(tasks) or find(suite).tasks),
        lengths=tuple(map(_tokens, _parts(lengths) or ["8192"])),
        methods=tuple(
            dict.fromkeys(
                (*(methods or [f"routesparse={RouterConfig.price:g}"]), *(CONTROLS if screen else ()))
            )
        ),
        n=n,
        seed=seed,
        model=model,
        data=data or paths.texts(),
        out=writable_folder(out or paths.home() / "evaluations" / suite),
        extras=not no_extras,
        screen=screen,
        answers=answers,
        chat=chat,
    )
    with alone_in(job.out):
        job.save()
        lost = _measure(job, stage, crew, float("inf") if limit_s is None else limit_s, report)
        found = _kept_or_scored(job, stage, report)
    if found is not None and json_output:
        print_json(found)
    elif found is not None:
        _print(found)
    if lost:
        raise typer.Exit(1)


def _measure(job: Job, stage: Stage, crew: Processes, limit_s: float, report: Reporter) -> int:
    """The prompts, predictions and times that were asked for; returns how many failed."""
    lost = 0
    if stage in (Stage.all, Stage.prepare):
        from routesparse.engine.lab.runner.prepare import prepare

        with report.bars():
            made = prepare(job, report, crew)
        report.line(f"{made} prompts in {job.out}")
    if stage in (Stage.all, Stage.estimate, Stage.predict):
        from routesparse.engine.lab.runner.predict import predict
        from routesparse.engine.lab.studies.selection.measure import Bench

        lost = predict(job, Bench, crew, limit_s, estimate=stage is Stage.estimate)
    if stage is Stage.time:
        from routesparse.engine.lab.runner.timing import measure_times
        from routesparse.engine.lab.studies.selection.measure import Bench

        lost = measure_times(job, Bench, limit_s)
        report.line(f"times in {job.times}")
    return lost


def _kept_or_scored(job: Job, stage: Stage, report: Reporter) -> dict[str, Any] | None:
    """The scores, where they were asked for."""
    if stage is Stage.keep:
        from routesparse.engine.lab.runner.kept import keep

        predictions, times = keep(job)
        report.line(f"{job.kept} keeps {predictions} predictions, {job.kept_times.name} {times} times")
    if stage not in (Stage.all, Stage.score):
        return None
    from routesparse.engine.lab.runner.score import score

    found = score(job)
    report.line(f"scores in {job.scores}")
    return found


def _parts(given: list[str] | None) -> list[str]:
    return [part.strip() for text in given or [] for part in text.split(",") if part.strip()]


def _tokens(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"length {text!r} is no number of tokens; pass --lengths 8192,16384") from None


def _print(found: dict[str, Any]) -> None:
    console = out_console()
    table = Table(
        "tokens", "method", "n", "score", "less dense (95 %)", "harmed", "worst tenth, nats", "area"
    )
    for row in found["suite"]:
        name = f"{row['method']}={row['setting']:g}"
        mark = " of few clusters" if row.get("few_clusters") else ""
        if "difference" in row:
            change, worst = row["difference"], row["worst_decile"]
            shown = [
                f"{row['score']:.2f}",
                f"{change['value']:+.2f} [{change['low']:+.2f}, {change['high']:+.2f}]{mark}",
                f"{100 * row['harmed_share']:.1f} %",
                f"{worst['value']:+.3f}",
                f"{row['area']:.3f}",
            ]
        elif "measures" in row:
            ratio = row["word_perplexity_ratio"]
            shown = [
                f"{row['measures']['word_perplexity']:.3f}",
                f"x {ratio['value']:.4f} [{ratio['low']:.4f}, {ratio['high']:.4f}]{mark}",
                "",
                "",
                f"{row['area']:.3f}",
            ]
        else:
            shown = [""] * 5
        table.add_row(f"{row['length']:,}", name, str(row["n"]), *shown)
    console.print(table)
    tasks = Table("tokens", "task", "method", "n", "score", "area")
    for row in found["tasks"]:
        tasks.add_row(
            f"{row['length']:,}",
            row["task"],
            f"{row['method']}={row['setting']:g}",
            str(row["n"]),
            str(row["score"]),
            f"{row['area']:.3f}",
        )
    console.print(tasks)
