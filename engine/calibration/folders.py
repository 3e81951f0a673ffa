"""Where calibrations lie and what they may be called: bundled ones, those of this machine, and those of one owner.

What the command line makes, and the one person of a dashboard without a login, lies in ``<home>/calibrations`` and is
everybody's. What somebody makes who has logged in lies in a folder of theirs there, and nobody else is offered it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from routesparse.engine import paths
from routesparse.engine.errors import CalibrationError, InputError, shortened
from routesparse.engine.files.plain_files import read_json

LEAST_TOKENS = 512  # of a calibration's prompt
Made = TypeVar("Made")
_MOST_FILE_BYTES = 1 << 23
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def own_folder(owner: str | None) -> Path:
    """The folder that an owner's calibrations go into; None is this machine's."""
    return paths.calibrations() if owner is None else paths.calibrations() / f"of-{owner}"


def folders(owner: str | None) -> tuple[Path, ...]:
    """The folders that a name is looked up in, first come first."""
    return tuple(dict.fromkeys((paths.DATA / "calibrations", own_folder(owner), paths.calibrations())))


def names(found: Sequence[Path]) -> list[str]:
    """What the folders hold by name."""
    return sorted({path.stem for folder in found for path in folder.glob("*.json")})


def read(
    what: str, again: str, name: str, found: Sequence[Path], parse: Callable[[Any], Made]
) -> Made | None:
    """What ``parse`` makes of the first file of this name in the folders, or of a path ending in .json.

    what: the file's kind, and again: how one makes another, both for messages. None where no such file is there.
    Errors: CalibrationError.
    """
    for path in [Path(name)] if name.endswith(".json") else [folder / f"{name}.json" for folder in found]:
        try:
            return parse(read_json(path, _MOST_FILE_BYTES))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CalibrationError(
                f"{what} {shortened(path)} can't be read ({error.strerror}); pass another"
            ) from None
        except ValueError as error:  # no UTF-8, no JSON, or a value that means nothing
            file = "" if str(path) == name else f" in {path}"
            raise CalibrationError(
                f"{what} {name!r} is corrupt{file}: {error}; restore the file or {again} again"
            ) from None
    return None


def check_name(name: str) -> None:
    """A calibration is named after its domain, and its file after it. Errors: InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(f"{name[:80]!r} is no name; use letters, digits, '-' and '_', at most 64 of them")


def check_not_bundled(name: str, otherwise: str = "") -> None:
    """A calibration may not hide a bundled one. otherwise: what else one could do. Errors: InputError."""
    if (paths.DATA / "calibrations" / f"{name}.json").exists():
        raise InputError(f"calibration {name!r} is bundled; choose another domain{otherwise}")


def length_buckets(least: int, most: int) -> list[tuple[int, int]]:
    """Buckets of prompt lengths, in tokens, each up to twice the one before. Errors: InputError."""
    if not LEAST_TOKENS <= least <= most:
        raise InputError(
            f"tokens {least} {most} is no range; pass LEAST MOST with {LEAST_TOKENS} <= LEAST <= MOST"
        )
    edges = [least]
    while edges[-1] < most:
        edges.append(min(2 * edges[-1], most))
    starts = [edges[0], *(edge + 1 for edge in edges[1:-1])]
    return list(zip(starts, edges[1:] or [most], strict=True))
