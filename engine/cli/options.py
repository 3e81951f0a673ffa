"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
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
CertifiedMass = Annotated[
    float | None,
    typer.Option(
        "--tau", help="Certified mass, 0 to 1: of a layer where policy is priced, else of each head."
    ),
]
Segment = Annotated[
    int | None, typer.Option("--segment", help="Tokens of a routing segment; default 16384, on a GPU 131072.")
]
ProfileName = Annotated[
    str, typer.Option("--profile", help="Latency profile: auto, a name, or a .json file.")
]
BundleFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder for the bundle; default: the spool.")
]
Replace = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
_MODEL = "demo, a GGUF file or a folder, its name on the page Models, or a hub id (org/name)."
ModelName = Annotated[str, typer.Option("--model", help=_MODEL)]
ModelArgument = Annotated[str, typer.Argument(help=_MODEL)]
PromptNumber = Annotated[
    int | None,
    typer.Option(
        "--number", help="Which prompt of a .jsonl file, counted from 1; default: the first.", min=1
    ),
]
