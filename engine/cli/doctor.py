"""``routesparse doctor``: one line per check, exit code 1 when one is a problem."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from routesparse.engine.cli.options import JsonFlag, ModelName
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.doctor.checks import checks

_STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


def doctor(
    model: ModelName = "demo",
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare a few layers of the model with exact attention here.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Say what this machine offers, and what is missing or broken."""
    Reporter().line("checking; loading the model takes a few seconds")
    found, console = [], out_console()
    for check in checks(model, deep):
        found.append(check)
        if not json_output:
            console.print(f"{check.status:<8}", style=_STYLES[check.status], end="")
            console.print(f"{check.name:<14}{check.detail}", soft_wrap=True)
    healthy = all(check.status != "problem" for check in found)
    if json_output:
        print_json({"ok": healthy, "checks": [dataclasses.asdict(check) for check in found]})
    if not healthy:
        raise typer.Exit(1)
