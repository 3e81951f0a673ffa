"""What commands check before they begin to work."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from routesparse.engine.cli.output import Reporter
from routesparse.engine.errors import InputError, shortened
from routesparse.engine.models.token_count import chat
from routesparse.engine.prompts.jsonl import read_one
from routesparse.engine.prompts.text import PromptText


def read_prompt_for(model: str, file: Path, number: int | None, report: Reporter) -> PromptText:
    """The prompt of a text file, or the one of a .jsonl file with this number, as New run reads it.

    Errors: PromptError, ModelError.
    """
    text, told = read_one(file, number, functools.partial(chat, model))
    for line in told:
        report.line(line)
    return text


def check_prompts(prompts: Sequence[Path]) -> None:
    """Errors: InputError for a path that is not there."""
    for path in prompts:
        if not path.exists():
            raise InputError(f"prompt {str(path)!r} does not exist; pass text files or folders")


def json_target(file: Path) -> Path:
    """The file itself, if it can be written. Errors: InputError."""
    if file.suffix != ".json" or file.is_dir():
        raise InputError(f"{file} is {'a folder' if file.is_dir() else 'no .json file'}; pass a .json file")
    return writable_folder(file.parent) / file.name


def writable_folder(folder: Path) -> Path:
    """The folder itself, if files can be written there; what was missing of it is made and removed again.

    Errors: InputError.
    """
    made: list[Path] = []
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise InputError(f"{existing} is a file; pass a folder")
        made = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
            file.flush()
    except OSError as error:
        raise InputError(
            f"{shortened(folder)} is not writable ({error.strerror or error}); pass another"
        ) from error
    finally:
        for path in made:
            # Where another process has begun to use it, it stays.
            if path.is_dir() and not os.listdir(path):
                path.rmdir()
    return folder
