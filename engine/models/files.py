"""The files of a model: where they are, whether they are whole, and which revision they are. No torch.

Everything that can be wrong with a folder and be seen without reading weights is found here, and ends in one line
that says what to do (ModelError, or UnsupportedModelError for a family off the list).
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import ModelError, first_line, shortened
from routesparse.engine.files.plain_files import read_bounded, read_json
from routesparse.engine.models import gguf, tokenizer_process
from routesparse.engine.models.refusals import check_family_name
from routesparse.engine.models.sizes import check_config, check_vocabulary
from routesparse.engine.schema import FieldError

DEMO = "demo"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = [
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer*", "chat_template*"),
]
_MOST_CONFIG_BYTES = 1 << 20
_MOST_INDEX_BYTES = 1 << 24  # that of 100,000 weights
_MOST_HEADER_BYTES = 1 << 25  # of a safetensors file
_PACKED = {"U8": 2, "I8": 2, "I32": 8}  # numbers that one of a type may hold: some have four bits
_SAMPLES = 16
_SAMPLE_BYTES = 4096


def resolve(name_or_path: str) -> tuple[Path, str]:
    """The folder of a model and the name that records use; a hub id is downloaded or taken from the cache, a GGUF
    file, by itself or in a folder, is unpacked once (gguf.py). What lies in ``paths.models()`` also goes by its name.

    Errors: ModelError for an unknown name, a missing folder, or a hub that cannot be reached.
    """
    if name_or_path == DEMO:
        folder = paths.DATA / "models" / DEMO
        if not (folder / "config.json").is_file():
            raise ModelError("the bundled model is missing from data/models/demo; restore it from git")
        return folder, DEMO
    try:
        folder = Path(name_or_path).expanduser()
        packed = gguf.file_in(folder) if folder.is_dir() else folder if folder.suffix == gguf.SUFFIX else None
        if packed is not None and packed.is_file():
            return gguf.unpack(packed), packed.stem
        if folder.is_dir():
            return folder, _own_name(folder)
        if folder.is_file():
            raise ModelError(
                f"model {name_or_path!r} is a file; pass a {gguf.SUFFIX} file or the folder that holds it"
            )
    # Too long for a path, or the home of somebody unknown: no folder at any rate.
    except (OSError, RuntimeError) as error:
        why = shortened(first_line(error))
        raise ModelError(f"model '{shortened(name_or_path)}' is no folder ({why}); pass another") from None
    listed = folders().get(name_or_path)
    if listed is not None:
        return resolve(str(listed))
    if not HUB_ID.fullmatch(name_or_path):
        raise ModelError(
            f"model {name_or_path!r} is unknown; pass {DEMO}, a folder or a hub id org/name, or a name that the page "
            "Models lists"
        )
    return _from_hub(name_or_path), name_or_path


def _own_name(folder: Path) -> str:
    """In ``paths.models()`` a link's own name, by which the dashboard offers it; elsewhere that of its target."""
    listed = Path(os.path.abspath(folder))
    return listed.name if listed.parent == Path(os.path.abspath(paths.models())) else folder.resolve().name


def offered() -> dict[str, str]:
    """What a prompt can be analysed with, by name: the bundled model, the folders and unpacked GGUF files in
    ``paths.models()``.
    """
    there = {name: unpacked_of(path) for name, path in folders().items()}
    return {name: str(path) for name, path in there.items() if (path / "config.json").is_file()} | {
        DEMO: DEMO
    }


def folders() -> dict[str, Path]:
    """The bundled model and every folder and GGUF file in ``paths.models()`` by name, whole or not: for a list that
    says which. A folder with a GGUF file alone is that file, by the name that its runs have.
    """
    there = paths.models()
    found = [place for place in there.iterdir() if place.name[0] != "."] if there.is_dir() else []
    named: dict[str, Path] = {}
    # Files first: a folder whose file has the name of another one keeps its own.
    for place in sorted(found, key=lambda place: (place.is_dir(), place)):
        path = _packed_in(place) or place
        if path.is_dir() or (path.suffix == gguf.SUFFIX and path.is_file()):
            name = path.name.removesuffix(gguf.SUFFIX)
            named.setdefault(place.name if name in named else name, path)
    return {DEMO: paths.DATA / "models" / DEMO} | {
        name: path for name, path in sorted(named.items()) if name != DEMO
    }


def unpacked_of(path: Path) -> Path:
    """The folder that was made of a GGUF file; the path itself where none was, and of a folder."""
    if path.is_dir():
        return path
    try:
        return gguf.unpacked(path) or path
    except ModelError:
        return path


def _packed_in(path: Path) -> Path | None:
    try:
        return gguf.file_in(path) if path.is_dir() else None
    # Several, of which ``read_config`` asks for one, or a folder that can't be read.
    except (ModelError, OSError):
        return None


def downloaded() -> dict[str, Path]:
    """Models in the hub's cache on this machine by hub id, newest snapshot each; the network is not asked.

    Errors: ModelError where the cache can't be read.
    """
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir()
    except CacheNotFound:
        return {}
    except OSError as error:
        raise ModelError(f"the hub's cache can't be read ({first_line(error)}); check its folder") from error
    found = {}
    for repo in cache.repos:
        if repo.repo_type == "model" and repo.revisions:
            newest = max(repo.revisions, key=lambda revision: revision.last_modified)
            found[repo.repo_id] = Path(newest.snapshot_path)
    return dict(sorted(found.items()))


def adopt(hub_id: str) -> str:
    """Put a downloaded model into ``paths.models()`` by links to its files, which copies nothing; its name there.

    Errors: ModelError where it is not downloaded, or something of that name is there.
    """
    snapshot = downloaded().get(hub_id)
    if snapshot is None:
        raise ModelError(f"model {hub_id!r} is not downloaded on this machine; download it first")
    name = hub_id.replace("/", "--")
    target, partial = paths.models() / name, paths.home() / f".{name}.partial"
    if target.exists():
        raise ModelError(f"models/{name} is there already; choose it in the list, or move it away first")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        paths.models().mkdir(exist_ok=True)
        for file in snapshot.iterdir():
            if file.is_file() and any(fnmatch(file.name, pattern) for pattern in HUB_FILES):
                (partial / file.name).symlink_to(file.resolve())
        partial.rename(target)
    except OSError as error:
        raise ModelError(f"models/{name} can't be made ({error.strerror}); make it writable") from error
    return name


def check_folder(folder: Path) -> tuple[dict[str, Any], int]:
    """The model's configuration and how many numbers its weights are, of which only the headers are read.

    Errors: ModelError for missing or corrupt files, UnsupportedModelError for a family off the list.
    """
    config = read_config(folder)
    family_of(config)
    check_config(config, f"{folder.name}/config.json")
    check_tokenizer(folder, config["vocab_size"])
    tensors, numbers = check_weights(folder)
    if (layers := config["num_hidden_layers"]) > tensors:
        told = f"{layers:,} layers, but the weights are {tensors:,} tensors; use files that belong together"
        raise ModelError(f"{folder.name}/config.json has {told}")
    return config, numbers


def read_config(folder: Path) -> dict[str, Any]:
    """config.json, which names a family. Errors: ModelError."""
    gguf.file_in(folder)  # of several files it asks for one
    config = _read_json(folder, "config.json", _MOST_CONFIG_BYTES)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{folder.name}/config.json names no model_type; save it with save_pretrained")
    return config


def family_of(config: dict[str, Any]) -> str:
    """The model_type. Errors: UnsupportedModelError for a family off the list."""
    family = str(config["model_type"])
    check_family_name(family)
    return family


def check_tokenizer(folder: Path, vocabulary: int | None = None) -> None:
    """Errors: ModelError unless a fast tokenizer lies there, whose tokens a model of so many has."""
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"model {folder.name!r} has no tokenizer.json; save its fast tokenizer there")
    check_vocabulary(folder.name, tokenizer_process.largest_id(folder), vocabulary)


def check_weights(folder: Path) -> tuple[int, int]:
    """How many tensors and numbers the headers of its files say. Errors: ModelError for missing or cut ones."""
    numbers = [number for file in weight_files(folder) for number in _numbers(file)]
    return len(numbers), sum(numbers)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, sorted. Errors: ModelError when there is none or one is missing."""
    if (folder / "model.safetensors.index.json").is_file():
        index = _read_json(folder, "model.safetensors.index.json", _MOST_INDEX_BYTES)
        try:
            files = [folder / name for name in sorted(set(index["weight_map"].values()))]
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                f"{folder.name}/model.safetensors.index.json has no weight_map; download the model again"
            ) from error
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        what = "only weights in other formats" if others else "no weights"
        raise ModelError(f"model {folder.name!r} has {what}; RouteSparse reads *.safetensors and *.gguf")
    missing = [file.name for file in files if file.parent != folder or not os.path.isfile(file)]
    if missing:
        raise ModelError(f"model {folder.name!r} lacks {shortened(missing[0])!r}; download the model again")
    return files


def revision_of(folder: Path) -> str:
    """Sixteen hex digits over config.json and, per weight file, name, size, header and sampled bytes.

    Samples tell two fine-tunes of one architecture apart without reading gigabytes. Errors: ModelError.
    """
    try:
        digest = hashlib.sha256(read_bounded(folder / "config.json", _MOST_CONFIG_BYTES))
        for file in weight_files(folder):
            _digest_weights(digest, file)
    except OSError as error:
        raise ModelError(f"model {folder.name!r} can't be read ({error.strerror}); restore it") from error
    return digest.hexdigest()[:16]


def _digest_weights(digest: Any, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name} {size} ".encode())
    with file.open("rb") as handle:
        header_bytes = _header_bytes(file, handle.read(8))
        data = size - 8 - header_bytes
        digest.update(handle.read(header_bytes))
        for sample in range(_SAMPLES):
            handle.seek(8 + header_bytes + data * sample // _SAMPLES)
            digest.update(handle.read(_SAMPLE_BYTES))


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    from routesparse.engine.terminal import with_bars

    try:
        with with_bars():
            return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise ModelError(
            f"model {name!r} is neither a folder nor to be had from the hub ({first_line(error)}); "
            "check the name and the network, or pass a local folder"
        ) from error


def _read_json(folder: Path, name: str, most_bytes: int) -> Any:
    try:
        return read_json(folder / name, most_bytes)
    except FileNotFoundError:
        raise ModelError(f"model folder {folder.name!r} has no {name}; pass one with a saved model") from None
    except FieldError as error:
        raise ModelError(f"{folder.name}/{name} can't be read ({first_line(error)}); restore it") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{folder.name}/{name} is not readable JSON; download the model again") from error


def _numbers(file: Path) -> list[int]:
    """How many numbers each tensor of a file has. Errors: ModelError for a file that is cut."""
    from safetensors import SafetensorError, safe_open

    try:
        with file.open("rb") as handle:
            _header_bytes(file, handle.read(8))
        with safe_open(file, framework="numpy") as tensors:
            parts = [tensors.get_slice(name) for name in tensors.keys()]  # noqa: SIM118
            return [math.prod(part.get_shape()) * _PACKED.get(part.get_dtype(), 1) for part in parts]
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file.parent.name}/{file.name} is corrupt ({first_line(error)}); download the model again"
        ) from error


def _header_bytes(file: Path, first: bytes) -> int:
    """The length of a header, from the file's first eight bytes. Errors: ModelError for one that can't be."""
    found = int.from_bytes(first, "little")
    if found > min(file.stat().st_size - 8, _MOST_HEADER_BYTES):
        why = f"shorter than its header, or that longer than {_MOST_HEADER_BYTES >> 20} MB"
        raise ModelError(f"{file.parent.name}/{file.name} is corrupt ({why}); download the model again")
    return found
