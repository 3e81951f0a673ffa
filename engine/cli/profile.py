"""``routesparse profile``: what plans and the probe cost on this machine."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from routesparse.engine import paths
from routesparse.engine.cli.checks import check_prompts, writable_folder
from routesparse.engine.cli.options import JsonFlag, ModelName
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.config import ProbeMode, RouterConfig
from routesparse.engine.errors import InputError

if TYPE_CHECKING:
    from routesparse.engine.models.load import ModelShape

_MOST_HEADS = 512
_HEAD_SIZES = range(4, 513)


def profile(
    model: ModelName = "demo",
    shape: Annotated[
        str | None,
        typer.Option(help="Query heads, KV heads and head size instead of a model, as in 32,8,128."),
    ] = None,
    probe: Annotated[ProbeMode, typer.Option(help="The probe mode that the profile is for.")] = "exact",
    quick: Annotated[bool, typer.Option("--quick", help="Two short lengths: seconds, less precise.")] = False,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder of texts, repeatable: fit on the plans that the router makes of them, for the model; half of "
            "the texts check the fit. Without: synthetic plans of that shape. Never texts that you evaluate on."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the profile; default: the home.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Measure what plans and the probe cost on this machine, for a model's head size, and keep it."""
    report = Reporter()
    if prompts and shape is not None:
        raise InputError("--prompts needs a model that reads them; pass --model instead of --shape")
    what = f"model {model}" if shape is None else f"shape {shape}"
    report.line(
        f"measuring plans for {what}: {'seconds' if quick else 'a minute or more on a CPU'}"
        + (", and minutes for the prompts" if prompts else "")
    )
    target = writable_folder(out or paths.profiles())
    check_prompts(prompts or ())
    wanted = _model_shape(model, shape)
    texts = None
    if prompts:
        from routesparse.engine.calibrate.prompt_plans import read_prompts
        from routesparse.engine.models.load import load_model

        loaded = load_model(model)
        texts = read_prompts(loaded, prompts, loaded.device.partition(":")[0], seed=0)
    with report.bars():
        from routesparse.engine.profiles.measure import measure_here

        measured = measure_here(wanted, RouterConfig(probe=probe), quick, texts, report)
    command = "routesparse profile"
    command += "" if shape is None else f" --shape {shape}"
    command += "".join(f" --prompts {'/'.join(path.parts[-2:])}" for path in prompts or ())
    measured = dataclasses.replace(measured, command=command)
    path = measured.save(target)
    names = ("name", "device", "backend", "dtype", "head_dim", "groups", "threads", "plans", "median_error")
    result = {name: getattr(measured, name) for name in (*names, "validation_error")}
    result["break_even_tokens"] = measured.break_even_tokens(wanted.heads, wanted.layers)
    result |= {"cells": list(measured.cells), "path": str(path)}
    if json_output:
        print_json(result)
        return
    table = Table("tokens", "mix", "median ms", "p20", "p80")
    for cell in measured.cells:
        times = (f"{cell[name] / 1e3:.2f}" for name in ("median_us", "p20_us", "p80_us"))
        table.add_row(f"{cell['n']:,}", str(cell["mix"]), *times)
    console = out_console()
    console.print(table)
    console.print(
        f"{measured.device}: median prediction error {measured.errors_text()}; routing pays from "
        f"{result['break_even_tokens']:,} tokens\n{path}",
        markup=False,
        soft_wrap=True,
    )


def _model_shape(model: str, shape: str | None) -> ModelShape:
    """The model's, or where given that of "32,8,128": query heads, KV heads, head size. Errors: InputError."""
    from routesparse.engine.method.latency import LAYERS
    from routesparse.engine.models.load import ModelShape, shape_of

    if shape is None:
        return shape_of(model)
    numbers = re.fullmatch(r"\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*,\s*([0-9]{1,4})\s*", shape)
    if numbers is not None:
        heads, kv_heads, head_dim = map(int, numbers.groups())
        if 1 <= kv_heads <= heads <= _MOST_HEADS and heads % kv_heads == 0 and head_dim in _HEAD_SIZES:
            return ModelShape(shape, heads, kv_heads, head_dim, LAYERS)
    raise InputError(
        f"shape {shape[:40]!r}: pass query heads (at most {_MOST_HEADS}), KV heads and head size ({_HEAD_SIZES[0]} to "
        f"{_HEAD_SIZES[-1]}), as in 32,8,128; KV heads divide query heads"
    )
