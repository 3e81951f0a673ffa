"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
RopeJson = Annotated[
    str | None,
    typer.Option(
        "--rope",
        help='Rescale rotary positions for prompts beyond the model\'s context: {"rope_type": "yarn", "factor": 4.0}, '
        "or linear (Position Interpolation) or longrope.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        help="Work on a Ray cluster (make ray): local starts one here for this command, auto joins the one that runs "
        "here, HOST:PORT one whose node this machine is. Default: processes of this machine.",
    ),
]
ProcessCount = Annotated[
    int | None,
    typer.Option(
        "--processes",
        help="Processes that share the prompts, GPUs in turn; default: one, on a cluster one a GPU or node.",
    ),
]
ModelName = Annotated[str, typer.Option("--model", help="demo, a local folder, or a hub id (org/name).")]
PromptNumber = Annotated[
    int | None,
    typer.Option(
        "--number", help="Which prompt of a .jsonl file, counted from 1; default: the first.", min=1
    ),
]
