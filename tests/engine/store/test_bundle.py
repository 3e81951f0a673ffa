"""Bundles: round trip, readable without RouteSparse, refused when damaged, never half-written. No GPU."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.store import bundle, tables


def rewrite_manifest(path: Path, change) -> None:
    manifest = json.loads((path / bundle.MANIFEST).read_text())
    change(manifest)
    (path / bundle.MANIFEST).write_text(json.dumps(manifest))


def test_round_trip_gives_equal_records_in_sorted_order(record, tmp_path):
    back = bundle.read_bundle(bundle.write_bundle(record, tmp_path))
    assert back.run == record.run
    assert back.prompt == record.prompt
    for _, field in tables.TABLES.values():
        if field not in ("run", "prompt"):
            assert set(getattr(back, field)) == set(getattr(record, field))
    keys = [(row.layer, row.head, row.segment, row.candidate) for row in back.candidates]
    assert keys == sorted(keys)


def test_existing_bundle_of_the_same_id_is_left_as_it_is(small, tmp_path):
    path = bundle.write_bundle(small, tmp_path)
    before = (path / bundle.MANIFEST).stat().st_mtime_ns
    other = replace(small, run=replace(small.run, tau=0.5))
    assert bundle.write_bundle(other, tmp_path) == path
    assert (path / bundle.MANIFEST).stat().st_mtime_ns == before
    assert bundle.read_bundle(path).run.tau == small.run.tau


@pytest.mark.parametrize("run_id", ["../escape", "a/b", ".hidden", "", "x" * 129, "a b"])
def test_run_id_that_cannot_name_a_folder_is_refused(small, tmp_path, run_id):
    with pytest.raises(BundleError, match="can't name a folder"):
        bundle.write_bundle(replace(small, run=replace(small.run, run_id=run_id)), tmp_path / "spool")
    assert not (tmp_path / "spool").exists()


def test_probe_above_its_limit_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "PROBE_LIMIT_BYTES", 1000)
    with pytest.raises(BundleError, match="pool its columns"):
        bundle.write_bundle(small, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_required_value_that_is_none_is_refused(small, tmp_path):
    broken = replace(small, run=replace(small.run, tau=None))
    with pytest.raises(BundleError, match=r"run\.tau"):
        bundle.write_bundle(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails_at", [1, 4, 9])
def test_full_disk_leaves_nothing_and_says_so(small, tmp_path, monkeypatch, fails_at):
    calls = 0
    real = os.fsync

    def fsync(descriptor):
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StoreError, match="disk is full"):
        bundle.write_bundle(small, tmp_path)
    assert list(tmp_path.iterdir()) == []


def sign(path: Path, name: str) -> None:
    """Make the manifest agree with a file that was changed."""
    digest = hashlib.sha256((path / name).read_bytes()).hexdigest()
    rewrite_manifest(path, lambda manifest: manifest["files"][name].update(sha256=digest))


def without_column(path: Path, name: str, column: str) -> None:
    """The bundle as a version that did not have the column would have written it."""
    pq.write_table(pq.read_table(path / name).drop_columns([column]), path / name)
    sign(path, name)


def with_column(path: Path, column: str, value: pa.Array) -> None:
    """Another value in the one row of table run."""
    run = pq.read_table(path / "run.parquet")
    place = run.schema.get_field_index(column)
    pq.write_table(run.set_column(place, run.schema.field(place), value), path / "run.parquet")
    sign(path, "run.parquet")


def a_missing_file(path):
    (path / "audit.parquet").unlink()


def a_flipped_bit(path):
    content = bytearray((path / "head_choice.parquet").read_bytes())
    content[100] ^= 1
    (path / "head_choice.parquet").write_bytes(content)


def a_torn_file(path):
    os.truncate(path / "head_choice.parquet", 100)


def a_link(path):
    (path / "audit.parquet").rename(path.parent / "outside.parquet")
    (path / "audit.parquet").symlink_to(path.parent / "outside.parquet")


def a_pipe(path, name="audit.parquet"):
    (path / name).unlink()
    os.mkfifo(path / name)


def no_parquet(path):
    (path / "audit.parquet").write_bytes(b"PAR1 not really PAR1")
    sign(path, "audit.parquet")


def a_name_that_is_no_text(path):
    file = path / "run.parquet"
    file.write_bytes(file.read_bytes().replace(b"git_commit", b"git\xffcommit"))
    sign(path, "run.parquet")


def gigabytes(path):
    rows = pq.read_table(path / "fallback_event.parquet").slice(0, 1)
    many = pa.table({name: pa.repeat(rows[name][0], 20_000_000) for name in ("layer",)})
    pq.write_table(many, path / "fallback_event.parquet")
    assert (path / "fallback_event.parquet").stat().st_size < 100_000
    sign(path, "fallback_event.parquet")


HOSTILE = {
    "missing": (a_missing_file, r"audit\.parquet is missing"),
    "changed": (a_flipped_bit, "checksum"),
    "torn": (a_torn_file, "checksum"),
    "link": (a_link, "link"),
    "pipe": (a_pipe, "no plain file but a pipe or a device"),
    "pipe for a manifest": (
        lambda path: a_pipe(path, bundle.MANIFEST),
        "no plain file but a pipe or a device",
    ),
    "no parquet": (no_parquet, "not a readable Parquet"),
    "no column": (lambda path: without_column(path, "run.parquet", "tau"), r"run\.parquet lacks column tau"),
    "no text": (
        lambda path: with_column(path, "model", pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())),
        r"run\.parquet is not a readable Parquet file",
    ),
    "name that is no text": (a_name_that_is_no_text, r"run\.parquet"),
    "deep settings": (
        lambda path: with_column(path, "config_json", pa.array(["[" * 100_000])),
        r"run\.config_json is .*it must be JSON",
    ),
    "gigabytes": (gigabytes, "unpacks to more than any run holds"),
    "newer": (
        lambda path: rewrite_manifest(path, lambda m: m.update(schema_version=99)),
        "upgrade RouteSparse",
    ),
    **{
        name: (
            lambda path, name=name: rewrite_manifest(
                path, lambda m: m["files"].update({name: {"sha256": "0" * 64}})
            ),
            "no table of a bundle",
        )
        for name in ("../secret.parquet", "/etc/passwd", "sub/run.parquet")
    },
}


@pytest.mark.parametrize(("harm", "told"), HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_or_hostile_bundle_is_refused(small, tmp_path, harm, told):
    path = bundle.write_bundle(small, tmp_path / "spool")
    harm(path)
    with pytest.raises(BundleError, match=told):
        bundle.verify_bundle(path)


def test_rows_of_another_run_are_refused(small, factory, tmp_path):
    mixed = replace(small, layers=factory.rename(small, "other").layers)
    with pytest.raises(BundleError, match="other runs"):
        bundle.verify_bundle(bundle.write_bundle(mixed, tmp_path))


def test_a_bundle_of_schema_1_is_read_under_the_names_of_today(small, tmp_path):
    path = bundle.write_bundle(small, tmp_path)
    digests = {}
    for table, names in tables.RENAMED.items():
        file = path / f"{table}.parquet"
        older = {new: old for old, new in names.items()}
        data = pq.read_table(file)
        pq.write_table(data.rename_columns([older.get(name, name) for name in data.column_names]), file)
        digests[file.name] = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    rewrite_manifest(path, lambda m: (m.update(schema_version=1), m["files"].update(digests)))
    back = bundle.read_bundle(path)
    assert back.run == small.run and set(back.choices) == set(small.choices)


def test_a_bundle_of_schema_2_has_no_worst_rows_and_no_block_reads(small, tmp_path):
    path = bundle.write_bundle(small, tmp_path)
    for name in ("worst_row.parquet", "block_reads.parquet"):
        (path / name).unlink()
        rewrite_manifest(path, lambda manifest, name=name: manifest["files"].pop(name))
    without_column(path, "prompt.parquet", "token_starts")
    rewrite_manifest(path, lambda manifest: manifest.update(schema_version=2))
    back = bundle.read_bundle(path)
    assert back.worst_rows == back.block_reads == () and back.audits
    assert back.prompt == replace(small.prompt, token_starts=None)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema_version": 1}', '{"schema_version": 1e999}', "[" * 100_000, "\x00\xff"],
    ids=["empty", "cut", "list", "short", "infinite", "deep", "binary"],
)
def test_unreadable_manifest_is_refused(small, tmp_path, text):
    path = bundle.write_bundle(small, tmp_path)
    (path / bundle.MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(BundleError, match=r"manifest\.json"):
        bundle.verify_bundle(path)


def nested(levels: int):
    return {"a": nested(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"notes": [[]] * 400_000}, "more than 1 MB"),
        ({"notes": ""}, "manifest.json.notes .*left out"),
        ({"config": nested(9)}, "at most 8 levels"),
        ({"files": {"run.parquet": {"sha256": "0" * 64, "url": ""}}}, "url .*left out"),
        ({"files": {"run.parquet": {"sha256": 0}}}, "sha256 is 0, it must be a text"),
        ({"schema_version": "6"}, "schema_version"),
        ({"format": "zip"}, "routesparse-bundle"),
    ],
    ids=["large", "unknown", "deep", "unknown of a file", "number", "text", "format"],
)
def test_a_manifest_says_what_is_known_in_a_bounded_size(small, tmp_path, said, why):
    path = bundle.write_bundle(small, tmp_path)
    rewrite_manifest(path, lambda manifest: manifest.update(said))
    with pytest.raises(BundleError, match=why):
        bundle.verify_bundle(path)
