"""A run bundle: one folder of Parquet files and a manifest, the only hand-over between engine and store.

``<directory>/<run_id>/manifest.json`` names every file with its sha256; the files are plain Parquet (zstd),
readable by pandas, DuckDB and polars without RouteSparse. A bundle is written into a temporary sibling
folder, flushed to the disk and renamed: a reader sees all of it or nothing, also after ``kill -9``.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import BundleError, DiskFullError, StoreError
from routesparse.engine.rows import RunRecord, RunRow
from routesparse.engine.store import tables

FORMAT = "routesparse-bundle"
SCHEMA_VERSION = 3  # 1 named lambda and g "gate"; 2 had no worst_row and block_reads
MANIFEST = "manifest.json"
_JSON_COLUMNS = ("config_json", "versions_json")  # of run: pages read them
PROBE_LIMIT_BYTES = 20 * 1024 * 1024
TEMPORARY_PREFIX = ".tmp-"
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PROBE_ROWS_PER_GROUP = 64  # one head's heatmap can be read without the others


@dataclass(frozen=True)
class Manifest:
    """What a verified bundle says about itself; ``digest`` identifies it (sha256 of manifest.json)."""

    run_id: str
    schema_version: int
    files: dict[str, str]  # file name -> sha256
    digest: str
    size_bytes: int
    values: dict[str, Any]


def write_bundle(record: RunRecord, directory: Path) -> Path:
    """Write the record as ``<directory>/<run_id>`` and return that folder; an existing one is left as it is.

    Errors: StoreError when the disk is full or not writable (nothing half-written stays), BundleError when
    the probe exceeds 20 MB or the run id can't name a folder.
    """
    run = record.run
    target = Path(directory) / check_run_id(run.run_id)
    if target.exists():
        return target
    temporary = target.parent / f"{TEMPORARY_PREFIX}{run.run_id}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        temporary.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        for table in tables.TABLES:
            rows = tables.rows_of(record, table)
            if not rows and table in tables.OPTIONAL_TABLES:
                continue
            content = _parquet_bytes(table, tables.to_arrow(table, rows))
            if table == "probe" and len(content) > PROBE_LIMIT_BYTES:
                raise BundleError(
                    f"the probe of run {run.run_id} takes {len(content) / 2**20:.1f} MB, the limit is "
                    f"{PROBE_LIMIT_BYTES // 2**20} MB; pool its columns further before writing"
                )
            name = f"{table}.parquet"
            _write_synced(temporary / name, content)
            digest = hashlib.sha256(content).hexdigest()
            files[name] = {"sha256": digest, "bytes": len(content), "rows": len(rows)}
        manifest = json.dumps(_manifest(run, files), indent=2, sort_keys=True) + "\n"
        _write_synced(temporary / MANIFEST, manifest.encode())
        sync_folder(temporary)
        publish(temporary, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = DiskFullError if full else StoreError
        raise kind(_disk_message(error, f"run {run.run_id} was not written", target.parent)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def read_bundle(path: Path) -> RunRecord:
    """The record of a bundle, verified first. Errors: BundleError."""
    data = read_tables(path)
    rows = {name: tables.from_arrow(name, table) for name, table in data.items()}
    values: dict[str, Any] = {
        field: tuple(rows[name])
        for name, (_, field) in tables.TABLES.items()
        if field not in ("run", "prompt") and name in rows
    }
    prompt = rows.get("prompt") or [None]
    return RunRecord(run=rows["run"][0], prompt=prompt[0], **values)


def verify_bundle(path: Path) -> Manifest:
    """Check every file against the manifest and every table against the schema. Errors: BundleError."""
    manifest, _ = _verified(Path(path))
    return manifest


def read_tables(path: Path) -> dict[str, pa.Table]:
    """The verified tables of a bundle by name. Errors: BundleError."""
    _, data = _verified(Path(path))
    return data


def verified_tables(path: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    """verify_bundle and read_tables in one pass over the files. Errors: BundleError."""
    return _verified(Path(path))


def owner_of(path: Path) -> str | None:
    """Whose run a bundle holds; None is the local person. Errors: BundleError."""
    owner: str | None = read_tables(path)["run"]["owner"][0].as_py()
    return owner


def check_run_id(run_id: str) -> str:
    """The run id itself, if it may name a folder. Errors: BundleError."""
    if not _RUN_ID.fullmatch(run_id):
        raise BundleError(f"run id {run_id!r} can't name a folder; use letters, digits, '-' and '_'")
    return run_id


def publish(temporary: Path, target: Path) -> None:
    """Rename a finished folder into place and flush the parent; a target that appeared meanwhile wins."""
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not target.is_dir():
            raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(run: RunRow, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "created_at": run.created_at,
        "model": {"id": run.model, "revision": run.model_revision},
        "tokenizer_hash": run.tokenizer_hash,
        "device": run.device,
        "dtype": run.dtype,
        "versions": json.loads(run.versions_json),
        "git_commit": run.git_commit,
        "config": json.loads(run.config_json),
        "seed": run.seed,
        "files": files,
    }


def _verified(path: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    manifest = _read_manifest(path)
    data: dict[str, pa.Table] = {}
    size = 0
    for name, checksum in manifest.files.items():
        content = _read_file(path, name)
        size += len(content)
        if hashlib.sha256(content).hexdigest() != checksum:
            raise BundleError(f"{path.name}/{name} doesn't match its checksum; copy the bundle again")
        table = name.removesuffix(".parquet")
        data[table] = _read_table(path, table, content)
    run_ids = data["run"].column("run_id").to_pylist()
    if run_ids != [manifest.run_id]:
        raise BundleError(f"{path.name}/run.parquet describes {run_ids}, the manifest {manifest.run_id!r}")
    for column in _JSON_COLUMNS:
        _check_json(path, column, data["run"].column(column)[0].as_py())
    for table, rows in data.items():
        others = set(rows.column("run_id").unique().to_pylist()) - {manifest.run_id}
        if others:
            raise BundleError(f"{path.name}/{table}.parquet holds rows of other runs: {sorted(others)[:3]}")
    return Manifest(**{**vars(manifest), "size_bytes": size}), data


def _read_manifest(path: Path) -> Manifest:
    if path.is_symlink() or not path.is_dir():
        raise BundleError(f"{path.name} is not a bundle: expected a folder with {MANIFEST}")
    content = _read_file(path, MANIFEST)
    try:
        values = json.loads(content)
        version, run_id = int(values["schema_version"]), check_run_id(str(values["run_id"]))
        files = {str(name): str(entry["sha256"]) for name, entry in values["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BundleError(
            f"{path.name}/{MANIFEST} can't be read ({type(error).__name__}: {error})"
        ) from error
    if values.get("format") != FORMAT:
        raise BundleError(f"{path.name}/{MANIFEST} says format {values.get('format')!r}, expected {FORMAT!r}")
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"{path.name} has schema {version}, this version reads {SCHEMA_VERSION}; upgrade RouteSparse"
        )
    known = {f"{table}.parquet" for table in tables.TABLES}
    unknown = sorted(set(files) - known)
    if unknown:
        raise BundleError(f"{path.name}/{MANIFEST} names {unknown[0]!r}, which is no table of a bundle")
    required = known - {f"{table}.parquet" for table in tables.OPTIONAL_TABLES}
    missing = sorted(required - set(files))
    if missing:
        raise BundleError(f"{path.name}/{MANIFEST} doesn't name {missing[0]}; the bundle is incomplete")
    return Manifest(run_id, version, files, hashlib.sha256(content).hexdigest(), 0, values)


def _check_json(path: Path, column: str, text: str) -> None:
    try:
        valid = isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        valid = False
    if not valid:
        raise BundleError(f"{path.name}/run.parquet holds no JSON object under {column}")


def _read_file(path: Path, name: str) -> bytes:
    file = path / name
    if file.is_symlink():
        raise BundleError(f"{path.name}/{name} is a link; a bundle holds plain files only")
    if file.exists() and not file.is_file():  # opening a pipe would wait for ever
        raise BundleError(f"{path.name}/{name} is no file; a bundle holds plain files only")
    try:
        return file.read_bytes()
    except FileNotFoundError as error:
        raise BundleError(f"{path.name}/{name} is missing; copy the bundle again") from error
    except OSError as error:
        raise BundleError(f"{path.name}/{name} can't be read ({error.strerror})") from error


def _read_table(path: Path, table: str, content: bytes) -> pa.Table:
    try:
        data = pq.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError) as error:
        raise BundleError(f"{path.name}/{table}.parquet is not a readable Parquet file ({error})") from error
    expected = tables.arrow_schema(table)
    data = tables.as_of_today(table, data)
    for field in expected:
        if field.name not in data.schema.names or data.schema.field(field.name).type != field.type:
            raise BundleError(f"{path.name}/{table}.parquet lacks column {field.name} of type {field.type}")
        if not field.nullable and data.column(field.name).null_count:
            raise BundleError(f"{path.name}/{table}.parquet has no value for {field.name} in some rows")
    return data.select(expected.names)


def _parquet_bytes(table: str, data: pa.Table) -> bytes:
    buffer = io.BytesIO()
    group = _PROBE_ROWS_PER_GROUP if table == "probe" else None
    dictionary = [field.name for field in data.schema if pa.types.is_string(field.type)]
    pq.write_table(data, buffer, compression="zstd", row_group_size=group, use_dictionary=dictionary)
    return buffer.getvalue()


def _write_synced(file: Path, content: bytes) -> None:
    with open(file, "xb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def _disk_message(error: OSError, consequence: str, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full: {consequence}; nothing half-written stays in {folder}. Free space and retry"
        )
    return f"{consequence} into {folder} ({error.strerror or error}); check that the folder is writable"
