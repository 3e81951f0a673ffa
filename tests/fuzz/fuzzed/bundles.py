"""Run and certificate bundles: manifest, archive, Parquet files, and the values of their columns."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from routesparse.engine import errors
from routesparse.engine.certificate_rows import CertificateRecord
from routesparse.engine.cli import bundles as cli_bundles
from routesparse.engine.export import report_certificate
from routesparse.engine.schema import FieldError
from routesparse.engine.store import bundle, checks, tables, thumbnail
from tests.engine.store import factory
from tests.fuzz.fuzzed import swollen
from tests.fuzz.fuzzed.target import SEEDS, Target, bytes_like, json_bytes, scrambled, written

SMALL = factory.make_record("run", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
CERTIFICATE = factory.make_certificate("certificate", layers=2, heads=2)


def _zip(content: bytes, folder: Path) -> None:
    (folder / "x.zip").write_bytes(content)
    shutil.rmtree(folder / "scratch", ignore_errors=True)
    cli_bundles._unpacked(folder / "x.zip", folder / "scratch")
    assert {path.name for path in folder.iterdir()} == {"x.zip", "scratch"}


def _manifested(file: Path) -> None:
    """What is accepted holds no field that a bundle has not."""
    assert set(bundle.verify_bundle(file.parent).values) <= set(_MANIFEST)


def _table(case: tuple[str, bytes], folder: Path) -> None:
    """One table of a bundle in other bytes; where it can be read, the whole bundle too, its checksum mended."""
    table, content = case
    name = f"{table}.parquet"
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
    checks.check(data)
    thumbnail.probe_meta(data["probe"])
    for name in {name for name, *_ in case}:
        tables.from_arrow(name, data[name])


def _certificate_values(case: list[tuple[str, str, Any, int]], folder: Path) -> None:
    """What passes the schema can be made into records and a page."""
    data = _changed(case, _tables("certificate"))
    if data is None:
        return
    checks.check(data)
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
    return swollen.written(_tables("run")[name])


def _stretched(content: bytes, seed: int) -> bytes:
    """Scrambled; half of them in the footer alone, which says what a reader has to take."""
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return scrambled(content, seed) if seed % 2 else content[:footer] + scrambled(content[footer:], seed)


def _manifest() -> Any:
    """The manifest of the bundle that the target's folder holds: an edit that harms nothing is accepted."""
    with tempfile.TemporaryDirectory() as folder:
        return json.loads((bundle.write_bundle(CERTIFICATE, Path(folder)) / bundle.MANIFEST).read_text())


def _zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"run/{bundle.MANIFEST}", "{}")
        archive.writestr("run/run.parquet", b"PAR1" * 40)
    return buffer.getvalue()


_MANIFEST = _manifest()
_COLUMNS = [(name, column) for name in tables.TABLES for column in tables.arrow_schema(name).names]
_CERTIFIED = [
    (name, column) for name in tables.CERTIFICATE_TABLES for column in tables.arrow_schema(name).names
]

TARGETS: dict[str, Target] = {
    "manifest": Target(
        json_bytes(_MANIFEST),
        written(f"certificate/{bundle.MANIFEST}", _manifested),
        (errors.BundleError,),
        lambda folder: bundle.write_bundle(CERTIFICATE, folder),
    ),
    "archive": Target(bytes_like(_zipped()), _zip, (errors.BundleError,)),
    "parquet": Target(
        st.tuples(st.sampled_from(sorted(tables.TABLES)), SEEDS).map(
            lambda case: (case[0], _stretched(_parquet(case[0]), case[1]))
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
}
