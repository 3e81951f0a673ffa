"""``routesparse score``: the official score of a file of predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from routesparse.engine.cli.options import JsonFlag
from routesparse.engine.cli.output import out_console, print_json


def score(
    suite: Annotated[str, typer.Argument(help="ruler, infinitebench, pg19, longbench or stories.")],
    task: Annotated[str, typer.Argument(help="A task of the suite, such as niah_multikey_1.")],
    predictions: Annotated[
        Path, typer.Argument(help="JSON Lines in the suite's own format, with gold answers.")
    ],
    json_output: JsonFlag = False,
) -> None:
    """Score predictions as the suite's official script does, to the digits that it prints."""
    from routesparse.engine.lab.suites.registry import find
    from routesparse.engine.lab.suites.suite import MOST_PREDICTION_BYTES, read_rows, refuse_twice

    judge, rows = find(suite), read_rows(predictions, MOST_PREDICTION_BYTES)
    refuse_twice(rows)
    found = judge.score(task, rows)
    if json_output:
        print_json(
            {"suite": suite, "task": task, "n": len(found.values), "score": found.score, **found.parts}
        )
        return
    console = out_console()
    console.print(f"{suite} {task}: {found.score} (n {len(found.values)})")
    for name, value in found.parts.items():
        console.print(f"  {name}: {value}")
