"""``routesparse bench kernel``: speed on a GPU against dense kernels in the same run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from routesparse.engine import paths
from routesparse.engine.cli.checks import writable_folder
from routesparse.engine.cli.options import JsonFlag
from routesparse.engine.cli.output import Reporter, print_json
from routesparse.engine.errors import InputError


class Benchmark(StrEnum):
    """What is timed."""

    kernel = "kernel"


def bench(
    what: Annotated[Benchmark, typer.Argument(help="kernel: attention alone.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer lengths.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of tensors and plans.")] = 0,
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    json_output: JsonFlag = False,
) -> None:
    """Time sparse attention against cuDNN, FlashAttention-2 and FlexAttention on this machine's GPU."""
    if out is not None:
        writable_folder(out.parent)
    import torch

    if not torch.cuda.is_available():
        raise InputError(
            "bench needs a CUDA GPU and this machine shows none; run it where `doctor` lists one"
        )
    from routesparse.engine.lab.bench import kernel

    result = kernel.run(quick, seed, Reporter().line)
    if out is not None:
        paths.write_json(out, result)
    if json_output:
        print_json(result)
