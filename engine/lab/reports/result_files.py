"""The result files and the pages written from them: data/results/*.json in, data/results/*.md out."""

from __future__ import annotations

import json
from typing import Any

from routesparse.engine import paths

RESULTS = paths.DATA / "results"
COMMAND = "python -m routesparse.engine.lab.reports.report --write"


def read(name: str) -> dict[str, Any]:
    """One study's result. Errors: FileNotFoundError where the study has not been run."""
    return json.loads((RESULTS / name).read_text())


def there(name: str) -> bool:
    """Whether a study has been run."""
    return (RESULTS / name).exists()


def write_page(name: str, title: str, lines: list[str]) -> None:
    """Replace data/results/<name> by a page of these lines."""
    page = [
        f"# {title}",
        f"Written by `{COMMAND}` from the JSON files in this folder; do not edit by hand.",
        "",
    ]
    (RESULTS / name).write_text("\n".join([*page, *lines]).rstrip() + "\n")


def source(result: dict[str, Any]) -> str:
    """Device, versions, seed and command behind a result, in one line."""
    return (
        f"{result['device']}, {result['threads']} thread{'s' if result['threads'] > 1 else ''}, {result['dtype']}, "
        f"torch {result['versions']['torch']}, seed {result['seed']}, commit {result['git_commit'][:7]}; "
        f"`{result['command']}`"
    )
