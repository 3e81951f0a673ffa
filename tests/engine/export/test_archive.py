"""A run as a ZIP: everything is explained, loads without RouteSparse, and keeps the prompt's text in. No GPU."""

from __future__ import annotations

import csv
import errno
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import pandas as pd
import pytest

from routesparse.engine.errors import BundleError, DiskFullError
from routesparse.engine.export import archive, dictionary
from routesparse.engine.store import bundle, tables

SECRET = "the code of Oslo is 4417"


@pytest.fixture(scope="module")
def folder(factory, tmp_path_factory):
    record = factory.make_record("5a11a11a11a1", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
    assert SECRET in record.prompt.text
    return bundle.write_bundle(record, tmp_path_factory.mktemp("bundles"))


def unpacked(file, place):
    with zipfile.ZipFile(file) as packed:
        packed.extractall(place)
    (inside,) = place.iterdir()
    return inside


def test_every_column_of_every_table_is_explained():
    """A new column needs its meaning, and what NULL means in it where it may be NULL."""
    known = dictionary.meanings()
    fields = {
        (table, field.name): field
        for table in (*tables.TABLES, *tables.CERTIFICATE_TABLES)
        for field in tables.arrow_schema(table)
    }
    assert set(known) == {*fields, *((table, "") for table, _ in fields)}
    assert all(entry["meaning"].endswith(".") for entry in known.values())
    assert {place for place, field in fields.items() if field.nullable} == {
        place for place, entry in known.items() if entry["null"]
    }


def test_a_bundle_that_quotes_a_prompt_it_does_not_hold_keeps_it_in(factory, tmp_path):
    record = factory.make_record("5a11a11a11a2", layers=1, heads=1, segments=1, tokens=1024, probe_columns=8)
    quoting = bundle.write_bundle(replace(record, prompt=None), tmp_path)
    for text in (False, True):
        inside = unpacked(archive.write(quoting, tmp_path / f"{text}.zip", text=text), tmp_path / str(text))
        answers = pd.read_parquet(inside / "answer.parquet")
        assert answers["text"].isna().all()
        assert (answers["token_id"] == answers["dense_rank"]).all(), "asked for or not: it was not kept"


def test_no_column_of_text_that_prompts_are_quoted_in_is_forgotten():
    quoting = {
        (table, c)
        for table in (*tables.TABLES, *tables.CERTIFICATE_TABLES)
        for c in tables.arrow_schema(table).names
        if c.endswith("text")
    }
    left_out = {(table, column) for table, texts in archive._TEXTS.items() for column in texts}
    assert quoting == left_out | {("prompt", "text")}


def test_the_dictionary_has_a_row_with_type_and_meaning_for_each_column():
    parts = dictionary.markdown().split("\n## ")[1:]
    assert [part.partition(".parquet")[0] for part in parts] == list(tables.TABLES)
    for part, table in zip(parts, tables.TABLES, strict=True):
        lines = [line for line in part.splitlines() if line.startswith("| `")]
        rows = list(csv.reader((line.replace("\\|", "¦") for line in lines), delimiter="|"))
        assert [row[1].strip(" `") for row in rows] == tables.arrow_schema(table).names
        assert all(len(row) == 7 and row[2].strip() and row[4].strip() for row in rows)


def test_the_snippet_reads_the_unpacked_run_without_routesparse(factory, tmp_path):
    """And obeys no name in it: the run, its prompt and its patterns may be somebody else's."""
    record = factory.make_record("5a11a11a11a3", layers=1, heads=1, segments=1, tokens=1024, probe_columns=8)
    record = replace(record, run=replace(record.run, prompt_name="\x1b[2J\u202etxt.exe"))
    folder = bundle.write_bundle(record, tmp_path)
    inside = unpacked(archive.write(folder, tmp_path / "a.zip", text=False), tmp_path / "out")
    file = inside / "head_choice.parquet"
    choices = pd.read_parquet(file)
    choices.assign(pattern="\x1b[31m").to_parquet(file)
    code = "import sys; sys.modules['routesparse'] = None; import runpy; runpy.run_path('load.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=inside, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "5a11a11a11a3" in done.stdout and "audited_mass" in done.stdout
    assert (
        "\\x1b[2J\\u202etxt.exe" in done.stdout and "\\x1b[31m" in done.stdout and "\x1b" not in done.stdout
    )


def test_the_text_is_in_the_zip_only_where_it_was_asked_for(folder, tmp_path):
    without = unpacked(archive.write(folder, tmp_path / "a.zip", text=False), tmp_path / "without")
    full = unpacked(archive.write(folder, tmp_path / "b.zip", text=True), tmp_path / "full")
    assert not (without / "prompt.parquet").exists()
    answers = pd.read_parquet(without / "answer.parquet")
    assert answers["text"].isna().all()
    assert (answers["token_id"] == answers["dense_rank"]).all(), "a number and the tokenizer are the text"
    assert 4417 in pd.read_parquet(full / "answer.parquet")["token_id"].tolist()
    goes_on = pd.read_parquet(without / "continuation.parquet")
    assert goes_on[["same_text", "dense_text", "routed_text"]].isna().all(axis=None)
    assert "not inside" in (without / "README.txt").read_text()
    assert SECRET in pd.read_parquet(full / "prompt.parquet")["text"][0]
    assert pd.read_parquet(full / "answer.parquet")["text"].notna().all()
    assert pd.read_parquet(full / "continuation.parquet")["dense_text"].notna().all()
    for name in ("run", "head_choice", "audit"):
        assert (without / f"{name}.parquet").read_bytes() == (folder / f"{name}.parquet").read_bytes()


def test_both_zips_hold_a_bundle_that_can_be_taken_in_and_the_full_one_is_the_same(folder, tmp_path):
    for text in (False, True):
        inside = unpacked(archive.write(folder, tmp_path / f"{text}.zip", text=text), tmp_path / str(text))
        for extra in (archive.README, archive.DICTIONARY, archive.LOAD):
            (inside / extra).unlink()
        same = bundle.verify_bundle(inside).digest == bundle.verify_bundle(folder).digest
        assert same == text and bundle.extra_entries(inside, bundle.verify_bundle(inside)) == []


def test_equal_runs_are_equal_files(folder, tmp_path):
    one, other = (archive.write(folder, tmp_path / f"{name}.zip", text=False) for name in "ab")
    assert one.read_bytes() == other.read_bytes()


def test_a_full_disk_is_told_and_leaves_what_was_there(folder, tmp_path, monkeypatch):
    (tmp_path / "a.zip").write_bytes(b"earlier")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(archive, "_copy", full)
    with pytest.raises(DiskFullError, match=r"disk is full: .*a\.zip was not written.*free space"):
        archive.write(folder, tmp_path / "a.zip", text=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.zip", b"earlier")]


def test_a_file_that_changes_while_it_is_copied_is_not_exported(folder, tmp_path, monkeypatch):
    manifest = bundle.verify_bundle(folder)
    wrong = replace(manifest, files={**manifest.files, "audit.parquet": "0" * 64})
    monkeypatch.setattr(bundle, "verify_bundle", lambda _: wrong)
    with pytest.raises(BundleError, match=r"audit\.parquet changed while it was exported"):
        archive.write(folder, tmp_path / "a.zip", text=True)
    assert not list(tmp_path.iterdir())


def test_a_name_from_elsewhere_stays_one_line_of_the_readme(factory, tmp_path):
    record = factory.make_record("b1d1", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
    hostile = replace(record, run=replace(record.run, prompt_name="a\u2028text      inside\u202e\nb"))
    inside = unpacked(
        archive.write(bundle.write_bundle(hostile, tmp_path), tmp_path / "a.zip", text=False),
        tmp_path / "out",
    )
    told = (inside / "README.txt").read_text()
    assert not set("\u2028\u202e") & set(told)
    assert sum(line.startswith("text ") for line in told.splitlines()) == 1
