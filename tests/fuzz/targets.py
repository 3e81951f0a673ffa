"""Every parser that meets bytes from outside, as fuzz targets: what it is fed, and the only errors that it may raise.

A case starts from what RouteSparse itself would write and is changed: fields replaced, dropped, doubled and renamed,
then bytes flipped, cut and repeated. Often that is one change alone, so that some cases of every target are accepted:
what lies behind a parser's first check is only tested by those. ``Sandbox`` watches every case: no file is written
outside its folder, no pickle is read, nothing is started, no address is looked up.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from safetensors.numpy import save

from routesparse.engine import errors, paths
from routesparse.engine.calibrate.tuning_rows import read_measured
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.certificate_rows import CertificateRecord
from routesparse.engine.certification.mask_files import read_masks
from routesparse.engine.cli import bundles as cli_bundles
from routesparse.engine.config import LatencyBudget
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.export import report_certificate
from routesparse.engine.fields import FieldError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models import files as model_files
from routesparse.engine.models import token_count
from routesparse.engine.operations import backup
from routesparse.engine.prompts import read_prompt
from routesparse.engine.results import evaluations, report, shift
from routesparse.engine.store import bundle, certificate_ranges, ranges, tables, thumbnail

STORE_TESTS = Path(__file__).resolve().parents[1] / "engine" / "store"
FORBIDDEN = (
    "socket.connect",
    "socket.getaddrinfo",
    "subprocess.Popen",
    "os.system",
    "pickle.find_class",
    "os.exec",
)


class Escape(AssertionError):
    """A parser did what no parser may do."""


@dataclass
class Sandbox:
    """Watches this process while a case runs. Audit hooks stay for good, so one is added and switched on and off."""

    folder: Path
    watching: bool = False
    seen: list[str] = field(default_factory=list)

    def install(self) -> None:
        """Add the hook."""
        sys.addaudithook(self._hear)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Errors: Escape for what was done inside the block."""
        self.seen.clear()
        self.watching = True
        try:
            yield
        finally:
            self.watching = False
            if self.seen:
                raise Escape("; ".join(self.seen))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {arguments!r}"[:200])
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, _, flags = arguments
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not Path(os.fsdecode(path)).resolve().is_relative_to(self.folder.resolve()):
                self.seen.append(f"wrote {path!r}")


@dataclass(frozen=True)
class Target:
    """``parse(case, folder)`` may raise ``allowed`` alone; ``prepare`` fills the folder once."""

    cases: st.SearchStrategy[Any]
    parse: Callable[[Any, Path], object]
    allowed: tuple[type[BaseException], ...]
    prepare: Callable[[Path], object] = lambda folder: None


LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**400),
    *(0.0, 0.5, -0.5, 1.5, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("", "a", "0.95", "<b>x</b>", "../../etc/passwd", "a\0b", "\ud800", "x" * 5_000),
    *([], {}, [[]], [None], {"a": 1}, [1, 2], [0.5] * 3, {"": {"": []}}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)
# One drawn number decides all edits of a case: ten times the cases of drawing each edit, and as reproducible.
SEEDS = st.integers(0, 2**64 - 1)
EDITS = (1, 1, 1, 2, 3, 4)  # changes in a case


def edited(value: Any, seed: int) -> Any:
    """A JSON value with up to four edits, each at a place of its own."""
    random = Random(seed)
    root = {"": json.loads(json.dumps(value))}
    for _ in range(random.choice(EDITS)):
        holder: Any = root
        key: Any = ""
        while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.8:
            holder = holder[key]
            key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        act = random.choice(["replace", "replace", "nudge", "drop", "double", "rename"])
        if act == "nudge" and isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = holder[key] * random.choice([-1, 0, 0.5, 2, 1e6]) + random.choice([0, 1, -1])
        elif act in ("replace", "nudge") or holder is root:
            holder[key] = copy.deepcopy(random.choice(LEAVES))
        elif act == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            holder[random.choice(["x", "", f"{key}2", *holder])] = (
                holder.pop(key) if act == "rename" else copy.deepcopy(holder[key])
            )
        else:
            holder.insert(key, copy.deepcopy(holder[key]))
    return root[""]


def scrambled(content: bytes, seed: int) -> bytes:
    """The bytes with up to four of them, or stretches of them, changed, cut, doubled or filled."""
    random, data = Random(seed), bytearray(content)
    for _ in range(random.choice(EDITS)):
        if not data:
            break
        # Headers and footers steer a parser, so places near the ends are drawn as often as all others.
        near = random.randrange(min(200, len(data)))
        at = random.choice([random.randrange(len(data)), near, len(data) - 1 - near])
        size = random.randint(1, 64)
        act = random.choice(["set", "set", "set", "bit", "cut", "double", "fill", "end", "insert"])
        if act == "set":
            data[at] = random.randrange(256)
        elif act == "bit":
            data[at] ^= 1 << random.randrange(8)
        elif act == "cut":
            del data[at : at + size]
        elif act == "double":
            data[at:at] = data[at : at + size]
        elif act == "fill":
            data[at : at + size] = bytes([random.choice([0, 255, 127, 128])]) * len(data[at : at + size])
        elif act == "end":
            del data[at:]
        else:
            data[at:at] = random.randbytes(random.randint(0, 32))
    return bytes(data)


def bytes_like(content: bytes) -> st.SearchStrategy[bytes]:
    """Scrambled bytes."""
    return SEEDS.map(lambda seed: scrambled(content, seed))


def json_bytes(value: Any) -> st.SearchStrategy[bytes]:
    """A JSON file: edited in its fields, in its bytes, or something else altogether."""
    text = json.dumps(value).encode()
    fields_edited = SEEDS.map(lambda seed: json.dumps(edited(value, seed)).encode())
    deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"\xff\xfe", b""])
    other = JSON.map(lambda v: json.dumps(v).encode()) | deep | st.binary(max_size=100)
    return st.integers(0, 9).flatmap(
        lambda n: other if n == 0 else bytes_like(text) if n < 3 else fields_edited
    )


def json_lines(values: list[Any]) -> st.SearchStrategy[bytes]:
    """A file of JSON lines: one of them edited in its fields, or the whole in its bytes."""

    def one_edited(seed: int) -> bytes:
        lines = list(values)
        place = Random(seed).randrange(len(lines))
        lines[place] = edited(lines[place], seed)
        return "\n".join(map(json.dumps, lines)).encode()

    return SEEDS.map(one_edited) | bytes_like("\n".join(map(json.dumps, values)).encode())


def tensors_like(content: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file: its header edited and as long as it says, or the whole in its bytes."""
    size = int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8 : 8 + size]), content[8 + size :]

    def header_edited(seed: int) -> bytes:
        text = json.dumps(edited(header, seed)).encode()
        return len(text).to_bytes(8, "little") + text + tensors

    return SEEDS.map(header_edited) | bytes_like(content)


def _factory() -> Any:
    spec = importlib.util.spec_from_file_location("store_factory_for_fuzzing", STORE_TESTS / "factory.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _scores() -> Any:
    """Scores of an evaluation, as the tests of results make them."""
    path = STORE_TESTS.parent / "results" / "values.py"
    spec = importlib.util.spec_from_file_location("evaluation_values", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made.scores()


def shown(found: tuple[list[evaluations.Evaluation], tuple[evaluations.Verdict, ...]]) -> str:
    """Whatever is read can be shown."""
    return report.page(*found, "fuzz") + report.markdown(*found, "fuzz")


def _written(name: str, parse: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Put the bytes into a file of this name and parse it."""

    def run(content: bytes, folder: Path) -> object:
        file = folder / name
        file.write_bytes(content)
        return parse(file)

    return run


def _zip(content: bytes, folder: Path) -> None:
    (folder / "x.zip").write_bytes(content)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    cli_bundles._unpacked(folder / "x.zip", folder / "scratch")
    assert {path.name for path in folder.iterdir()} == {"x.zip", "scratch"}


def _table(case: tuple[str, bytes], folder: Path) -> None:
    """One table of a bundle in other bytes; where it can be read, the whole bundle too, its checksum mended."""
    name, content = case
    file, manifest_file = folder / "run" / name, folder / "run" / bundle.MANIFEST
    kept, manifest = file.read_bytes(), manifest_file.read_text()
    values = json.loads(manifest)
    values["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    try:
        file.write_bytes(content)
        bundle.read_table(folder / "run", name.removesuffix(".parquet"))
        manifest_file.write_text(json.dumps(values))
        bundle.verify_bundle(folder / "run")
    finally:
        file.write_bytes(kept)
        manifest_file.write_text(manifest)


def _values(case: list[tuple[str, str, Any, int]], folder: Path) -> None:
    """What passes the schema can be drawn as thumbnails and made into records."""
    data = _changed(case, _tables("run"))
    if data is None:
        return
    ranges.check(data)
    thumbnail.probe_meta(data["probe"])
    for name in {name for name, *_ in case}:
        tables.from_arrow(name, data[name])


def _certificate_values(case: list[tuple[str, str, Any, int]], folder: Path) -> None:
    """What passes the schema can be made into records and a page."""
    data = _changed(case, _tables("certificate"))
    if data is None:
        return
    certificate_ranges.check(data)
    (row,) = tables.from_arrow("certificate", data["certificate"])
    claims, named = (tuple(tables.from_arrow(name, data[name])) for name in ("claim", "named_row"))
    report_certificate.page(CertificateRecord(row, claims, named), words=True)


def _changed(case: list[tuple[str, str, Any, int]], data: dict[str, pa.Table]) -> dict[str, pa.Table] | None:
    """The tables with other values; None where no Parquet file holds them."""
    data = dict(data)
    for name, column, value, row in case:
        table = data[name]
        place = table.schema.get_field_index(column)
        values = table.column(place).to_pylist()
        values[row % len(values)] = value
        try:
            made = pa.array(values, table.schema.field(place).type)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
            return None
        data[name] = table.set_column(place, table.schema.field(place), made)
    return data


def _model(name: str) -> Callable[[bytes, Path], object]:
    def run(content: bytes, folder: Path) -> None:
        (folder / name).write_bytes(content)
        token_count._read.cache_clear()
        refused = []
        for parse in (model_files.check_folder, model_files.revision_of, token_count._files):
            try:
                parse(folder)
            except errors.ModelError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    return run


def _copy_model(folder: Path) -> None:
    """A folder with the bundled model's small files and weights of a few bytes."""
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(paths.DATA / "models" / "demo" / name, folder / name)
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    (folder / "model.safetensors").write_bytes(WEIGHTS)


@cache
def _tables(head: str) -> dict[str, pa.Table]:
    record = SMALL if head == "run" else CERTIFICATE
    return {name: tables.to_arrow(name, tables.rows_of(record, name)) for name in tables.of_kind(head)}


@cache  # making a strategy takes far longer than drawing from it
def _any_value(name: str, column: str) -> st.SearchStrategy[tuple[str, str, Any, int]]:
    at = tables.arrow_schema(name).field(column)
    whole = (
        st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 70) | st.sampled_from([2**31 - 1, 2**31, 0, -1])
    )
    values = {
        pa.int64(): whole,
        pa.float64(): st.floats(),
        pa.string(): st.text(max_size=20) | st.sampled_from(["dense", "", "<b>", "x" * 3_000, "us", "0.5"]),
        pa.bool_(): st.booleans(),
        pa.binary(): st.binary(max_size=40),
    }[at.type]
    # A bundle's reader refuses NULL in a required column before.
    values = values | st.none() if at.nullable else values
    return st.tuples(st.just(name), st.just(column), values, st.integers(0, 7))


@cache
def _parquet(name: str) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(_tables("run")[name], buffer, compression="zstd")
    return buffer.getvalue()


def _manifest() -> Any:
    """The manifest of the bundle that the target's folder holds: an edit that harms nothing is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        return json.loads((bundle.write_bundle(SMALL, Path(folder)) / bundle.MANIFEST).read_text())


def _mask_array() -> bytes:
    """More blocks than its header has bytes, so that half of the changes hit blocks."""
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 1, 16, 32), bool))
    return buffer.getvalue()


def _mask_tensors() -> bytes:
    return save({"layer.0": np.ones((1, 16, 32), bool)}, metadata={"block_q": "128", "block_k": "64"})


def _fill_backup(folder: Path) -> None:
    """The files that the backup's manifest names."""
    for name, content in _BACKED_UP.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def _restored(file: Path) -> None:
    """A backup with this manifest, into a home that is new each time."""
    home = file.parent / "home"
    shutil.rmtree(home, ignore_errors=True)
    backup.restore(file.parent, home)


def _zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"run/{bundle.MANIFEST}", "{}")
        archive.writestr("run/run.parquet", b"PAR1" * 40)
    return buffer.getvalue()


def _safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    return len(header).to_bytes(8, "little") + header + np.zeros(64, "<f4").tobytes()


SMALL = _factory().make_record("run", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
CERTIFICATE = _factory().make_certificate("certificate", layers=2, heads=2)
WEIGHTS = _safetensors()
TOKENIZER = json.dumps(
    {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}}
).encode()
CONFIG = json.loads((paths.DATA / "models" / "demo" / "config.json").read_text())
_CALIBRATION = json.loads((paths.DATA / "calibrations" / "prose.json").read_text())
for _long in ("prompts", "documents"):
    _CALIBRATION[_long] = _CALIBRATION[_long][:3]
_STAMP = {"policy": "priced", "confidence": 0.95}
_ABOUT = {
    "model": "demo",
    "dtype": "float32",
    "device": "cpu",
    "library_hash": "0",
    "stamp": _STAMP,
    "tokens": 600,
}
_TUNED = {
    **_ABOUT,
    "schema": tuned.SCHEMA,
    "kind": tuned.KIND,
    **{
        "name": "x",
        "domain": "x",
        "measure": "kl",
        "target": 0.01,
        "limit": 0.01,
        "cap": 0.04,
        "confidence": 0.95,
    },
    **{"price": 0.5, "robust": False, "model_revision": "0", "documents": ["0"], "seed": 0, "commit": None},
    **{"measured": ["x"], "command": "x"},
    "tested": [
        {
            "price": price,
            "loss": 0.0,
            "bound": 0.0,
            "largest": 0.0,
            "above": 0.0,
            "area": 0.1,
            "kept": price < 1,
        }
        for price in (0.5, 1.0)
    ],
    "parts": [{"domain": "x", "unit": "window", "windows": 8, "documents": 2, "clusters": 2}],
}
_ROW = {
    "split": "calibration",
    "index": 0,
    "price": 0.5,
    "kl": 0.1,
    "agreement": 1.0,
    "nats": 3.0,
    "nats_dense": 3.0,
}
_NAMES = dict.fromkeys(("domain", "document", "document_sha256", "cluster"), "x")
_HEADER = {**_ABOUT, "revision": "0", "command": "x", "seed": 0, "git_commit": None}
_ROWS = [_HEADER, {**_NAMES, **_ROW, "area": 0.5}]
_BACKED_UP = {"jobs.sqlite3": b"a queue", "prompts/job.txt": b"a prompt", "logs/worker.jsonl": b"{}"}
_PROFILE = json.loads(next(iter(sorted((paths.DATA / "profiles").glob("*.json")))).read_text())
_PROFILE["cells"] = _PROFILE["cells"][:4]
_MANIFEST = _manifest()
_COLUMNS = [(name, column) for name in tables.TABLES for column in tables.arrow_schema(name).names]
_CERTIFIED = [
    (name, column) for name in tables.CERTIFICATE_TABLES for column in tables.arrow_schema(name).names
]

_JOB = {
    **{
        "suite": "ruler",
        "tasks": ["vt"],
        "lengths": [8192],
        "methods": ["routesparse=0.5,1"],
        "n": 2,
        "seed": 0,
    },
    **{"model": "demo", "data": "data", "out": "out", "extras": True},
}

TARGETS: dict[str, Target] = {
    "evaluation's job": Target(
        json_bytes(_JOB), _written("job.json", lambda file: Job.load(file.parent)), (errors.InputError,)
    ),
    "calibration": Target(
        json_bytes(_CALIBRATION),
        _written("x.json", lambda file: load_calibration(str(file))),
        (errors.CalibrationError,),
    ),
    "tuned price": Target(
        json_bytes(_TUNED), _written("x.json", lambda file: tuned.load(str(file))), (errors.CalibrationError,)
    ),
    "tuning rows": Target(
        json_lines(_ROWS), _written("x.jsonl", lambda file: read_measured([file])), (errors.CalibrationError,)
    ),
    "profile": Target(json_bytes(_PROFILE), _written("x.json", LatencyProfile.load), (errors.ProfileError,)),
    "manifest": Target(
        json_bytes(_MANIFEST),
        _written(f"run/{bundle.MANIFEST}", lambda file: bundle.verify_bundle(file.parent)),
        (errors.BundleError,),
        lambda folder: bundle.write_bundle(SMALL, folder),
    ),
    "backup": Target(
        json_bytes(
            {
                **{"version": backup.VERSION, "made_at": "2026-11-23T12:00:00+00:00", "runs": 0, "jobs": 1},
                "files": {name: hashlib.sha256(content).hexdigest() for name, content in _BACKED_UP.items()},
            }
        ),
        _written(backup.MANIFEST, _restored),
        (errors.InputError, errors.StoreError),
        _fill_backup,
    ),
    "evaluations": Target(
        json_bytes(_scores()),
        _written("scores.json", lambda file: shown(evaluations.read(file))),
        (errors.ResultsError,),
    ),
    "shift": Target(
        json_bytes(json.loads((paths.DATA / "results" / shift.FILE).read_text())),
        _written(shift.FILE, lambda file: report.page([], [], "fuzz", shift.read(file))),
        (errors.ResultsError,),
    ),
    "request": Target(
        json_bytes(json.loads(RunRequest().to_json())).map(
            lambda content: content.decode("utf-8", "replace")
        ),
        lambda text, folder: RunRequest.from_json(text).config(),
        (errors.ConfigError,),
    ),
    "budget": Target(
        st.text(max_size=20)
        | st.from_regex(r"[-+0-9.eEus ]{0,12}", fullmatch=True)
        | st.from_regex(r" *[-+]?[0-9]{0,4}\.?[0-9]{1,400}([eE][-+]?[0-9]{1,4})?(us)? *", fullmatch=True)
        | st.floats().map(str),
        lambda text, folder: LatencyBudget.parse(text),
        (errors.ConfigError,),
    ),
    "prompt": Target(
        st.binary(max_size=200)
        | bytes_like("\ufeffA line of text, täglich.\n".encode() * 4)
        | st.text().map(str.encode),
        _written("x.txt", read_prompt),
        (errors.PromptError,),
    ),
    "archive": Target(bytes_like(_zipped()), _zip, (errors.BundleError,)),
    "parquet": Target(
        st.tuples(st.sampled_from(sorted(tables.TABLES)), SEEDS).map(
            lambda case: (f"{case[0]}.parquet", scrambled(_parquet(case[0]), case[1]))
        ),
        _table,
        (errors.BundleError,),
        lambda folder: bundle.write_bundle(SMALL, folder),
    ),
    "values": Target(
        st.lists(st.sampled_from(_COLUMNS).flatmap(lambda place: _any_value(*place)), min_size=1, max_size=3),
        _values,
        (FieldError,),
    ),
    "certificate values": Target(
        st.lists(
            st.sampled_from(_CERTIFIED).flatmap(lambda place: _any_value(*place)), min_size=1, max_size=3
        ),
        _certificate_values,
        (FieldError,),
    ),
    "mask, NumPy": Target(bytes_like(_mask_array()), _written("x.npy", read_masks), (errors.ConfigError,)),
    "mask, safetensors": Target(
        tensors_like(_mask_tensors()), _written("x.safetensors", read_masks), (errors.ConfigError,)
    ),
    "model config": Target(json_bytes(CONFIG), _model("config.json"), (errors.ModelError,), _copy_model),
    "model tokenizer": Target(
        json_bytes(json.loads(TOKENIZER)), _model("tokenizer.json"), (errors.ModelError,), _copy_model
    ),
    "model weights": Target(
        tensors_like(WEIGHTS), _model("model.safetensors"), (errors.ModelError,), _copy_model
    ),
}
