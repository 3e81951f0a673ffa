"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ModelName = Annotated[str, typer.Option("--model", help="demo, a local folder, or a hub id (org/name).")]
