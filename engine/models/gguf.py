"""A model in one GGUF file: what it holds, and the folder that is made of it, once.

The file is a stranger's. Another process reads it within bounds (gguf_server.py), what its header says must fit the
file and a family on the list, and the folder that comes out is checked as any other one (files.py). The folder is
``<home>/unpacked/<sha256 of the file, 16 digits>/<name of the file>/``: the same weights are unpacked once, under
whatever path they lie, and a changed file is another one. Beside the folder stands which file it was made of, by what
changes with its content (inode, size, times), so that a list of models hashes no gigabytes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from routesparse.engine import paths
from routesparse.engine.errors import ModelError, first_line, shortened
from routesparse.engine.files.bounded_process import BoundedProcess, NoAnswerError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.models.refusals import check_family_name
from routesparse.engine.models.sizes import check_config

SUFFIX = ".gguf"
_FILE_NAME = re.compile(rf"[A-Za-z0-9][\w.+-]{{0,120}}{re.escape(SUFFIX)}", re.ASCII)
# Measured (SmolLM2, Qwen2.5 0.5B and 1.5B): a header .3 GB and 8 s, an unpacking 1.5 GB + 4 bytes and 60 ns a weight.
_HEADER_S, _HEADER_BYTES = 60.0, 2 << 30
_UNPACK_S, _S_PER_WEIGHT, _UNPACK_BYTES, _BYTES_PER_WEIGHT = 300.0, 1e-6, 4 << 30, 12
_LEAST_FREE = 1 << 28
_TICK_NS = 2_000_000_000  # a file may change twice within its clock's tick, which is 2 s on FAT
_MOST_MADE_OF_BYTES = 1 << 12

_State = tuple[int, ...]

_process = BoundedProcess("routesparse.engine.models.gguf_server", ModelError)


@dataclass(frozen=True)
class Described:
    """What the header of a GGUF file says, checked."""

    config: dict[str, Any]  # as transformers would write it to config.json
    tensors: int
    numbers: int  # weights
    stored: str  # how most of them are stored, such as "Q4_K"
    licence: str  # as the file names it; "" where it does not
    has_tokenizer: bool

    @property
    def unpacked_bytes(self) -> int:
        """What its folder takes."""
        return 2 * self.numbers


def file_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder without a config.json; None where there is none. Errors: ModelError for several."""
    found = [] if (folder / "config.json").exists() else sorted(folder.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        raise ModelError(
            f"{folder.name!r} holds {len(found)} GGUF files; pass one of them, such as {found[0].name}"
        )
    return found[0] if found else None


def describe(file: Path) -> Described:
    """Errors: ModelError for what can't be read, UnsupportedModelError for a family off the list."""
    return _described(file, _state(file))


def keep(name: str, content: IO[bytes]) -> str:
    """Write an upload into the models folder if it is a GGUF file that can be unpacked; its name there.

    Errors: ModelError for a name or a file that can't be used, and where something of that name is there; then nothing
    is kept.
    """
    if not _FILE_NAME.fullmatch(name):
        raise ModelError(
            f"{shortened(name)!r} can't be a model's name; call the file by letters, digits and .-_+, and {SUFFIX}"
        )
    target, waits = paths.models() / name, paths.models() / f".{name}.partial"
    if target.exists() or target.with_suffix("").exists():
        raise ModelError(f"models/{target.stem} is there already; choose it in the list, or rename the file")
    try:
        waits.mkdir(parents=True, exist_ok=True)
        with (waits / name).open("wb") as handle:
            shutil.copyfileobj(content, handle, 1 << 20)
        describe(waits / name)
        (waits / name).rename(target)
    except OSError as error:
        raise ModelError(f"models/{name} can't be written ({error.strerror}); make room for it") from error
    finally:
        shutil.rmtree(waits, ignore_errors=True)
    return target.stem


def unpacked(file: Path) -> Path | None:
    """The folder that was made of it, if it was: hashed only where one of its name is of another file, or of an
    earlier state. Errors: ModelError.
    """
    state = _state(file)
    places = (place / _stem(file) for place in (paths.home() / "unpacked").glob("*"))
    made = [folder for folder in places if (folder / "config.json").is_file()]
    for folder in made:
        if _made_of(folder) == state:
            return folder
    if made and (folder := _folder(file, state)) in made:
        _note(folder, file, state)
        return folder
    return None


def unpack(file: Path) -> Path:
    """The folder of a GGUF file, made where it is not there yet. Errors: ModelError, UnsupportedModelError."""
    made = unpacked(file)
    if made is not None:
        return made
    state = _state(file)
    described, folder = describe(file), _folder(file, state)
    if not described.has_tokenizer:
        raise ModelError(f"{file.name} holds no tokenizer; use a file that does, or the model's folder")
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if (free := shutil.disk_usage(partial).free) < described.unpacked_bytes + _LEAST_FREE:
            raise ModelError(
                f"{file.name} unpacks to {described.unpacked_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; "
                "free some, or set ROUTESPARSE_HOME to where there is room"
            )
        print(f"unpacking {file.name}, once: {described.numbers / 1e6:,.0f} M weights …", file=sys.stderr)
        _ask(
            file,
            "unpack",
            str(partial),
            described.config.get("rope_parameters"),
            seconds=_UNPACK_S + _S_PER_WEIGHT * described.numbers,
            memory_bytes=_UNPACK_BYTES + _BYTES_PER_WEIGHT * described.numbers,
        )
        if _state(file) != state:
            raise ModelError(f"{file.name} changed while it was unpacked; unpack it again")
        partial.rename(folder)
        _note(folder, file, state)
    except OSError as error:
        if (folder / "config.json").is_file():  # another process was faster
            return folder
        raise ModelError(
            f"{file.name} can't be unpacked into {folder.parent} ({error.strerror}); free it"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def sha256(file: Path) -> str:
    """Of the whole file, hexadecimal, as long as it does not change. Errors: ModelError."""
    return _sha256(file, _state(file))[0]


def _stem(file: Path) -> str:
    return file.name.removesuffix(SUFFIX)


def _folder(file: Path, state: _State) -> Path:
    """Where it is unpacked. Errors: ModelError."""
    return paths.home() / "unpacked" / _sha256(file, state)[0][:16] / _stem(file)


def _made_of(folder: Path) -> _State | None:
    """The state of the file that it was made of, where that was noted."""
    try:
        return tuple(read_json(_beside(folder), _MOST_MADE_OF_BYTES)["file"])
    except (OSError, ValueError, TypeError, KeyError):  # an older one has no note: its file is hashed
        return None


def _note(folder: Path, file: Path, state: _State) -> None:
    """Write beside the folder which file it was made of."""
    if _sha256(file, state)[1]:
        with contextlib.suppress(OSError):  # a home that is read only: its files are hashed once a process
            paths.write_json(_beside(folder), {"file": state})


def _beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.made-of.json")


def _state(file: Path) -> _State:
    """What changes with its content. Errors: ModelError."""
    try:
        found = file.stat()
    except OSError as error:
        raise ModelError(
            f"{shortened(file.name)!r} can't be read ({error.strerror}); check its path"
        ) from error
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@functools.lru_cache(maxsize=64)
def _sha256(file: Path, state: _State) -> tuple[str, bool]:
    """And whether another content would have another state. Errors: ModelError."""
    settled = time.time_ns() - max(state[-2:]) > _TICK_NS
    try:
        with file.open("rb") as handle:
            found = hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(
            f"{shortened(file.name)!r} can't be read ({error.strerror}); check its path"
        ) from error
    if _state(file) != state:
        raise ModelError(f"{file.name} changed while it was read; wait until it is written, then try again")
    return found, settled


@functools.lru_cache(maxsize=64)
def _described(file: Path, state: _State) -> Described:
    """state: as a key."""
    found = _ask(file, "header", seconds=_HEADER_S, memory_bytes=_HEADER_BYTES)
    described = Described(**found)
    check_family_name(str(described.config.get("model_type")))
    check_config(described.config, file.name)
    if (layers := described.config["num_hidden_layers"]) > described.tensors:
        raise ModelError(
            f"{file.name} has {layers:,} layers in {described.tensors:,} tensors; use a whole file"
        )
    return described


def _ask(file: Path, *question: Any, seconds: float, memory_bytes: int) -> Any:
    """An answer of a process that ends with it: unpacking takes memory that it would keep. Errors: ModelError."""
    path = str(file.absolute()).encode("utf-8", "surrogateescape")
    with _process.lock:
        try:
            (found,) = _process.ask([*question], path, seconds=seconds, memory_bytes=memory_bytes)
        except NoAnswerError as error:
            why = shortened(first_line(error)).rstrip(".")
            raise ModelError(f"{file.name} is no GGUF file that can be read: {why}") from None
        finally:
            _process.end()
    return json.loads(found)
