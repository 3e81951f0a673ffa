"""``routesparse fit``: what a model loses at each price on your kinds of text, and what a replay says of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.folders import check_name
from routesparse.engine.cli.checks import json_target
from routesparse.engine.cli.options import JsonFlag, ModelArgument, ProcessCount, RayAddress, RopeJson
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.cli.tune import Loading, command_of, measure, numbers
from routesparse.engine.config import HeadFloors
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import InputError
from routesparse.engine.models.rope import RopeScaling

if TYPE_CHECKING:
    from routesparse.engine.calibrate.tuning_windows import Drawn
    from routesparse.engine.calibration.fitted import Fitted


def fit(
    context: typer.Context,
    model: ModelArgument,
    prompts: Annotated[
        list[Path],
        typer.Option(help="Folder of text files, a kind of text each, repeatable; its name is the kind's."),
    ],
    windows: Annotated[
        int, typer.Option(help="Windows of each kind; a bound at .95 wants 19 documents.")
    ] = 24,
    tokens: Annotated[int, typer.Option(help="Of a window; half where a document is shorter.")] = 16_384,
    prices: Annotated[str, typer.Option(help="Prices to measure.")] = ",".join(map(str, fitted.PRICES)),
    name: Annotated[str | None, typer.Option(help="Of the result; default: the model's.")] = None,
    out: Annotated[Path | None, typer.Option(help="File; default: <home>/fits/NAME.json.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the windows.")] = 0,
    processes: ProcessCount = None,
    ray: RayAddress = None,
    rope: RopeJson = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure a model's loss by price and kind of text: a latency profile, predicted losses with bounds, targets.

    Goes on where it was cut off. A window costs a dense prefill and a routed one for each price: minutes on a GPU,
    hours on a CPU.
    """
    report = Reporter()
    if tokens < (least := fitted.LEAST_TOKENS):
        raise InputError(f"tokens {tokens}: shorter windows are not replayed; use at least {least:,}")
    kinds = [path.name for path in prompts]
    for path, kind in zip(prompts, kinds, strict=True):
        if not path.is_dir() or kinds.count(kind) > 1 or kind == fitted.MIXED:
            raise InputError(
                f"{path} is no folder of one kind of text with a name of its own; pass one folder for each kind"
            )
    from routesparse.engine.calibrate import fitting
    from routesparse.engine.calibrate.tuning_rows import WINDOW, read_measured
    from routesparse.engine.models.load import load_model

    called = name or fitted.name_for(model)
    check_name(called)
    path = json_target(out or fitted.own_folder() / f"{called}.json")
    file = path.with_suffix(".jsonl")
    scaling = None if rope is None else RopeScaling.parse(rope)
    load = Loading(model, scaling, Processes(processes, ray))
    command = command_of(context, "fit", "model")
    heads: list[fitting.Heads] = []

    def weighed(drawn: Sequence[Drawn]) -> HeadFloors | None:
        fitting.check_replayed(drawn)
        report.line("weighing the heads")
        loaded = load_model(model, rope=scaling)
        heads.append(fitting.heads_of(loaded, drawn, "calibration", seed, path.with_suffix(".heads")))
        return heads[0].head_floors

    drawn, _ = measure(
        report, prompts, fitted.MIXED, file, load, windows, tokens, numbers(prices), seed, command, weighed
    )
    rows, headers = read_measured([file], report.warn)
    keys = {one.key for one in drawn}
    mine = [row for row in rows if tuple(row.get(part) for part in WINDOW) in keys]
    made = fitting.fitted_from(mine, headers, heads[0], name=path.stem, command=command)
    made.save(path)
    if json_output:
        print_json({**dataclasses.asdict(made), "path": str(path)})
    else:
        _print(made, path)


def _print(made: Fitted, path: Path) -> None:
    table = Table("kind", "documents", *(f"KL at {price:g}" for price in made.prices), "factor", "bound")
    for row in made.summary():
        told = "too few" if row["bound"] is None else f"{row['bound']:.2f}"
        losses = (f"{one:.4f}" for one in row["kl"].values())
        table.add_row(row["kind"], str(row["documents"]), *losses, f"{row['factor']:.2f}", told)
    out_console().print(table)
    out_console().print(f"factor and bound at .95: of a replay's nats\n{path}", soft_wrap=True)
