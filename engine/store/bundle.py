"""A bundle: one folder of Parquet files and a manifest, the only hand-over between engine and store.

It holds a run (the tables of ``engine/rows.py``) or a certificate (``engine/certificate_rows.py``).

``<directory>/<run_id>/manifest.json`` names every file with its sha256; the files are plain Parquet (zstd),
readable by pandas, DuckDB and polars without RouteSparse. A bundle is written into a temporary sibling
folder, flushed to the disk and renamed: a reader sees all of it or nothing, also after ``kill -9``.

A bundle from elsewhere may hold anything: it is read with a bound, through no link, and every value is held to
its record's annotation before anything is moved or stored.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine import shared_folder
from routesparse.engine.certificate_rows import CertificateRecord, CertificateRow
from routesparse.engine.errors import BundleError, DiskFullError, StoreError
from routesparse.engine.files import plain_files
from routesparse.engine.rows import RunRecord, RunRow
from routesparse.engine.schema import Count, FieldError, Positive, checked, from_json, shown
from routesparse.engine.store import checks, tables, unpacking
from routesparse.engine.store.rules import Object

FORMAT = "routesparse-bundle"
# 1 named lambda and g "gate"; 2 had no answer, worst_row and block_reads; 3 no continuation; 4 no certificates;
# 5 no named rows; 6 no loss; 7 no shapes and no traced rows
SCHEMA_VERSION = 8
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 1 << 20  # real ones have 3 KB
PROBE_LIMIT_BYTES = 20 * 1024 * 1024
# A run of 128 layers of 128 heads with 16 segments has 7 million candidates, in some 200 MB.
_MOST_FILE_BYTES = 1 << 29
TEMPORARY_PREFIX = ".tmp-"
REJECTED = "rejected"  # the folder in a spool for what was set aside
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

    @property
    def head(self) -> str:
        """The table with the one row of totals: "run" or "certificate"."""
        return _head(self.files)


@dataclass(frozen=True)
class _File:
    sha256: str
    bytes: Count = 0
    rows: Count = 0


@dataclass(frozen=True)
class _Stated:
    """What a manifest may say; all but the first four is said for people, the run's table holds it as well."""

    format: Literal["routesparse-bundle"]
    schema_version: Positive
    run_id: str
    files: dict[str, _File]
    created_at: str | None = None
    model: dict[str, str | None] | None = None
    tokenizer_hash: str | None = None
    device: str | None = None
    dtype: str | None = None
    git_commit: str | None = None
    seed: int | None = None
    config: Object | None = None
    versions: Object | None = None


def write_bundle(record: RunRecord | CertificateRecord, directory: Path) -> Path:
    """Write the record as ``<directory>/<run_id>`` and return that folder; an existing one is left as it is.

    Errors: StoreError when the disk is full or not writable (nothing half-written stays) or the spool of all hosts is
    not mounted, BundleError when the probe exceeds 20 MB or the run id can't name a folder.
    """
    run = record.run if isinstance(record, RunRecord) else record.certificate
    target = shared_folder.check(directory) / check_run_id(run.run_id)
    if target.exists():
        return target
    temporary = target.parent / f"{TEMPORARY_PREFIX}{run.run_id}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        temporary.mkdir(parents=True)
        files: dict[str, dict[str, Any]] = {}
        for table in tables.of_kind("run" if isinstance(record, RunRecord) else "certificate"):
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
            plain_files.write_synced(temporary / name, content)
            digest = hashlib.sha256(content).hexdigest()
            files[name] = {"sha256": digest, "bytes": len(content), "rows": len(rows)}
        manifest = json.dumps(_manifest(run, files), indent=2, sort_keys=True) + "\n"
        plain_files.write_synced(temporary / MANIFEST, manifest.encode())
        plain_files.sync(temporary)
        publish(temporary, target)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = DiskFullError if full else StoreError
        raise kind(_disk_message(error, f"run {run.run_id} was not written", target.parent)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def read_bundle(path: Path) -> RunRecord:
    """The record of a run's bundle, verified first. Errors: BundleError."""
    data = read_tables(path)
    if "run" not in data:
        raise BundleError(f"{path.name} is a certificate: no routing was recorded; pass a run's bundle")
    return record_of(data)


def record_of(data: Mapping[str, pa.Table]) -> RunRecord:
    """A run's record of its verified tables; without the rows of a table that is left out."""
    rows = {name: tables.from_arrow(name, table) for name, table in data.items()}
    values: dict[str, Any] = {
        field: tuple(rows.get(name, ()))
        for name, (_, field) in tables.TABLES.items()
        if field not in ("run", "prompt") and name in rows
    }
    prompt = rows.get("prompt") or [None]
    return RunRecord(run=rows["run"][0], prompt=prompt[0], **values)


def read_certificate(path: Path) -> CertificateRecord:
    """The record of a certificate's bundle, verified first. Errors: BundleError."""
    data = read_tables(path)
    if "certificate" not in data:
        raise BundleError(f"{path.name} is a run, not a certificate; pass what `routesparse certify` wrote")
    (row,) = tables.from_arrow("certificate", data["certificate"])
    rows = {name: tuple(tables.from_arrow(name, table)) for name, table in data.items()}
    return CertificateRecord(row, rows["claim"], rows.get("named_row", ()))


def verify_bundle(path: Path) -> Manifest:
    """Check every file against the manifest and every table against the schema. Errors: BundleError."""
    return verified_tables(path)[0]


def cut_files(path: Path) -> list[str]:
    """The files that are gone or have another size than the manifest says: a look, which reads no table."""
    try:
        stated = _read_manifest(path).values["files"]
    except BundleError:
        return [MANIFEST]
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    return [name for name, one in stated.items() if one.get("bytes", sizes.get(name)) != sizes.get(name, -1)]


def read_tables(path: Path) -> dict[str, pa.Table]:
    """The verified tables of a bundle by name. Errors: BundleError."""
    return verified_tables(path)[1]


def read_table(path: Path, table: str) -> pa.Table:
    """One table of a bundle, its values checked but not its checksum. Errors: BundleError."""
    data = _read_table(path, table, _read_file(path, f"{table}.parquet"))
    with _nonsense_refused(path):
        checks.check_table(table, data)
    return data


def head_of(path: Path) -> dict[str, Any]:
    """The row of totals of a run or a certificate, its values checked but not its checksum. Errors: BundleError."""
    head = tables.head_table({file.stem for file in path.glob("*.parquet")})
    rows = read_table(path, head).slice(0, 1).to_pylist()
    if not rows:
        raise BundleError(f"{path.name}/{head}.parquet holds no row; make the bundle again")
    return dict(rows[0])


def owner_of(path: Path) -> str | None:
    """Whose a bundle is; None is the local person. Errors: BundleError."""
    data = read_tables(path)
    owner: str | None = data[tables.head_table(data)]["owner"][0].as_py()
    return owner


def check_run_id(run_id: str) -> str:
    """The run id itself, if it may name a folder. Errors: BundleError."""
    if not _RUN_ID.fullmatch(run_id):
        raise BundleError(f"run id {run_id!r} can't name a folder; use letters, digits, '-' and '_'")
    return run_id


def extra_entries(path: Path, manifest: Manifest) -> list[str]:
    """What lies in a bundle's folder and is not of the bundle, sorted."""
    return sorted({entry.name for entry in path.iterdir()} - {MANIFEST, *manifest.files})


def copy(path: Path, manifest: Manifest, target: Path) -> None:
    """Copy a bundle, and nothing else that lies in its folder, to where a reader sees all of it or nothing.

    Errors: BundleError where it is no longer the verified one, StoreError where the spool of all hosts is not mounted,
    OSError.
    """
    shared_folder.check(target.parent)
    temporary = target.parent / f"{TEMPORARY_PREFIX}{target.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        temporary.mkdir(parents=True)
        for name in (MANIFEST, *manifest.files):
            plain_files.write_synced(temporary / name, _read_file(path, name))
        if verify_bundle(temporary).digest != manifest.digest:
            raise BundleError(f"{path.name} changed while it was copied; copy it again")
        publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def publish(temporary: Path, target: Path) -> None:
    """Rename a finished folder into place and flush the parent; a target that appeared meanwhile wins.

    Errors: StoreError where the spool of all hosts is not mounted, OSError.
    """
    shared_folder.check(target.parent)
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not target.is_dir():
            raise
    plain_files.sync(target.parent)


def _head(files: Iterable[str]) -> str:
    return tables.head_table({name.removesuffix(".parquet") for name in files})


def _manifest(run: RunRow | CertificateRow, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
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


def verified_tables(path: Path) -> tuple[Manifest, dict[str, pa.Table]]:
    """``verify_bundle`` and ``read_tables`` in one pass over the files. Errors: BundleError."""
    path = Path(path)
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
    run_ids = data[manifest.head].column("run_id").slice(0, 2).to_pylist()
    if run_ids != [manifest.run_id]:
        raise BundleError(
            f"{path.name}/{manifest.head}.parquet describes {run_ids}, the manifest {manifest.run_id!r}"
        )
    for table, rows in data.items():
        others = set(rows.column("run_id").unique().slice(0, 4).to_pylist()) - {manifest.run_id}
        if others:
            raise BundleError(f"{path.name}/{table}.parquet holds rows of other runs: {sorted(others)}")
    with _nonsense_refused(path):
        checks.check(data)
    return Manifest(**{**vars(manifest), "size_bytes": size}), data


@contextmanager
def _nonsense_refused(path: Path) -> Iterator[None]:
    try:
        yield
    except FieldError as error:
        raise BundleError(
            f"{path.name} holds a value that no run can have: {error}; make the bundle again, or discard it"
        ) from None


def _read_manifest(path: Path) -> Manifest:
    if path.is_symlink() or not path.is_dir():
        raise BundleError(f"{path.name} is not a bundle: expected a folder with {MANIFEST}")
    content = _read_file(path, MANIFEST)
    try:
        values = from_json(content.decode("utf-8"))
    except ValueError as error:
        raise BundleError(f"{path.name}/{MANIFEST} can't be read ({error})") from error
    with _nonsense_refused(path):
        version = checked(Object, values, MANIFEST).get("schema_version")
        if isinstance(version, int) and version > SCHEMA_VERSION:  # which may say more than is known here
            raise BundleError(
                f"{path.name} has schema {shown(version)}, this version reads {SCHEMA_VERSION}; upgrade RouteSparse"
            )
        stated = checked(_Stated, values, MANIFEST)
    files = {name: entry.sha256 for name, entry in stated.files.items()}
    known = {f"{table}.parquet" for table in tables.of_kind(_head(files))}
    unknown = sorted(set(files) - known)
    if unknown:
        raise BundleError(f"{path.name}/{MANIFEST} names {unknown[0]!r}, which is no table of a bundle")
    required = known - {f"{table}.parquet" for table in tables.OPTIONAL_TABLES}
    missing = sorted(required - set(files))
    if missing:
        raise BundleError(f"{path.name}/{MANIFEST} doesn't name {missing[0]}; the bundle is incomplete")
    digest = hashlib.sha256(content).hexdigest()
    return Manifest(check_run_id(stated.run_id), stated.schema_version, files, digest, 0, values)


def _read_file(path: Path, name: str) -> bytes:
    """Errors: BundleError for what is missing, no plain file, a link, or too large."""
    most_bytes = MOST_MANIFEST_BYTES if name == MANIFEST else _MOST_FILE_BYTES
    try:
        return plain_files.read_bounded(path / name, most_bytes, follow_links=False)
    except FileNotFoundError as error:
        raise BundleError(f"{path.name}/{name} is missing; copy the bundle again") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f"{path.name}/{name} is a link; a bundle holds plain files only") from error
        raise BundleError(f"{path.name}/{name} can't be read ({error.strerror})") from error


def _read_table(path: Path, table: str, content: bytes) -> pa.Table:
    try:
        return unpacking.unpacked(table, content)
    except BundleError as error:
        raise BundleError(f"{path.name}/{table}.parquet {error}") from None


def _parquet_bytes(table: str, data: pa.Table) -> bytes:
    buffer = io.BytesIO()
    group = _PROBE_ROWS_PER_GROUP if table == "probe" else None
    dictionary = [field.name for field in data.schema if pa.types.is_string(field.type)]
    pq.write_table(data, buffer, compression="zstd", row_group_size=group, use_dictionary=dictionary)
    return buffer.getvalue()


def _disk_message(error: OSError, consequence: str, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full: {consequence}; nothing half-written stays in {folder}. Free space and retry"
        )
    return f"{consequence} into {folder} ({error.strerror or error}); check that the folder is writable"
