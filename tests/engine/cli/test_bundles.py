"""``ingest``, ``runs`` and ``export`` on bundles in folders. No model, no torch, no database."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from routesparse.engine import paths
from routesparse.engine.store.bundle import verify_bundle, write_bundle
from tests.engine.conftest import files_of


@pytest.fixture
def bundle(factory, tmp_path):
    """Make a small bundle outside the home folder."""
    small = factory.small_record()

    def make(run_id="run-a", place="elsewhere", **overrides):
        made = replace(small, run=replace(small.run, **overrides))
        return write_bundle(factory.rename(made, run_id), tmp_path / place)

    return make


def test_ingest_puts_a_checked_copy_into_the_spool_once(run, home, bundle):
    source = bundle()
    code, out, _ = run("ingest", source)
    assert (code, out) == (0, "run-a  put into the spool\n")
    assert verify_bundle(paths.spool() / "run-a").digest == verify_bundle(source).digest
    assert [path.name for path in paths.spool().iterdir()] == ["run-a"]
    before = files_of(home)
    code, out, _ = run("ingest", source, "--json")
    (result,) = json.loads(out)["bundles"]
    assert (code, result["run_id"], result["new"]) == (0, "run-a", False)
    assert files_of(home) == before


def test_a_run_that_the_store_already_took_is_not_spooled_again(run, home, bundle):
    shutil.copytree(bundle(), home / "bundles" / "run-a")
    code, out, _ = run("ingest", bundle())
    assert (code, out) == (0, "run-a  already there\n")
    assert not paths.spool().exists()


def test_the_same_id_with_other_content_is_refused(refused, run, home, bundle):
    run("ingest", bundle())
    other = bundle(place="other", tau=0.5)
    assert "run-a is already there with other content" in refused("ingest", other)


def damage_file(folder):
    file = folder / "head_choice.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_file, "run-a/head_choice.parquet doesn't match its checksum; copy the bundle again"),
        (lambda folder: (folder / "manifest.json").unlink(), "run-a/manifest.json is missing"),
    ],
    ids=["checksum", "manifest"],
)
def test_a_broken_bundle_is_refused_and_the_good_ones_beside_it_too(
    refused, run, home, bundle, damage, message
):
    """All or none: a good bundle before the bad one is not taken in either."""
    run("ingest", bundle("run-z"))
    good, bad = bundle("run-b"), bundle("run-a")
    damage(bad)
    assert message in refused("ingest", good, bad)


@pytest.mark.parametrize("name", ["nothing", "nothing.zip", "file", "file.zip"])
def test_something_that_is_no_bundle_is_refused(refused, home, tmp_path, name):
    if name.startswith("file"):
        (tmp_path / name).write_text("text")
    assert name in refused("ingest", tmp_path / name)


def test_an_exported_run_comes_in_again_with_its_text_only_where_it_was_asked_for(
    run, home, factory, tmp_path, monkeypatch
):
    record = factory.make_record("run-t", layers=2, heads=2, segments=1, tokens=2048, probe_columns=16)
    run("ingest", write_bundle(record, tmp_path / "elsewhere"))
    files = (tmp_path / "a.zip", tmp_path / "b.zip")
    code, out, err = run("export", "run-t", "--out", files[0])
    assert (code, out) == (0, f"{files[0]}\n") and "the prompt's text is inside" in err
    code, out, _ = run("export", "un-t", "--out", files[1], "--without-text", "--json")
    told = json.loads(out)
    assert (code, told["run_id"], told["text"]) == (0, "run-t", False), "pages print the end of an id"
    names = [{Path(name).name for name in zipfile.ZipFile(file).namelist()} for file in files]
    assert names[0] - names[1] == {"prompt.parquet"}
    original = verify_bundle(paths.spool() / "run-t").digest
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "second"))
    assert run("ingest", files[0])[0] == 0
    assert verify_bundle(paths.spool() / "run-t").digest == original


def test_a_file_is_replaced_where_that_is_asked_for_alone(refused, run, home, bundle, tmp_path, monkeypatch):
    run("ingest", bundle())
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("export", "run-", "--json")
    assert (code, json.loads(out)["file"]) == (0, "run-a.zip")
    first = (tmp_path / "run-a.zip").read_bytes()
    assert "--force to replace it" in refused("export", "run-a")
    assert run("export", "run-a", "--force")[0] == 0
    assert (tmp_path / "run-a.zip").read_bytes() == first
    assert not list(tmp_path.glob(".*partial"))


def test_report_writes_one_page_and_replaces_none_unasked(refused, run, home, bundle, tmp_path, monkeypatch):
    run("ingest", bundle())
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("report", "run-", "--json")
    assert (code, json.loads(out)["file"]) == (0, "run-a.html")
    assert (tmp_path / "run-a.html").read_text().startswith("<!DOCTYPE html>")
    assert "--force to replace it" in refused("report", "run-a")
    damage_file(paths.spool() / "run-a")
    assert "doesn't match its checksum" in refused("report", "run-a", "--out", tmp_path / "b.html")
    assert not (tmp_path / "b.html").exists()


def test_export_needs_one_known_run(refused, run, home, bundle, tmp_path):
    assert "no run is called 'run-a'; `routesparse runs` lists the 0" in refused("export", "run-a")
    run("ingest", bundle("run-a1"), bundle("run-a2"))
    assert "run 'run-a' is ambiguous: run-a1, run-a2" in refused("export", "run-a")
    assert "lists the 2 known ones" in refused("export", "../../etc")
    target = tmp_path / "no" / "such" / "folder.zip"
    assert "cannot be written" in refused("export", "run-a1", "--out", target)


@pytest.mark.parametrize(
    "name", ["../evil/manifest.json", "a/b/manifest.json", "manifest.json", "/a/manifest.json"]
)
def test_a_zip_file_cannot_write_outside_its_folder(refused, home, tmp_path, name):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(name, "{}")
    assert "x.zip is not a bundle" in refused("ingest", tmp_path / "x.zip")
    assert not (tmp_path / "evil").exists()


def packed(folder, file, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(file, "w", method) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{folder.name}/{path.name}")
    return bytearray(file.read_bytes())


def mark(content, offset_local, offset_central, value):
    """Set a 16-bit field of every entry, in its local header and in the directory."""
    for signature, offset in ((b"PK\x03\x04", offset_local), (b"PK\x01\x02", offset_central)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset : at + offset + 2] = value.to_bytes(2, "little")
            at = content.find(signature, at + 4)
    return content


def damage_data(content):
    content[60:90] = b"?" * 30
    return content


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: mark(content, 6, 8, 1), "encrypted"),
        (lambda content: mark(content, 8, 10, 99), "compression method is not supported"),
        (lambda content: mark(content, 8, 10, 14), "x.zip"),
        (damage_data, "x.zip"),
        (lambda content: content[: len(content) // 2], "not a zip file"),
        (lambda content: content[:-30] + b"\xff" * 30, "not a zip file"),
        (lambda content: b"", "not a zip file"),
    ],
    ids=["encrypted", "unknown method", "wrong method", "damaged", "cut", "broken directory", "empty"],
)
def test_an_archive_that_can_not_be_unpacked_is_one_line(refused, home, bundle, tmp_path, change, told):
    content = change(packed(bundle(), tmp_path / "x.zip"))
    (tmp_path / "x.zip").write_bytes(content)
    message = refused("ingest", tmp_path / "x.zip")
    assert told in message and "Traceback" not in message


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_others_packed_is_read_and_a_bomb_is_not(
    refused, run, home, bundle, tmp_path, monkeypatch, method
):
    packed(bundle(), tmp_path / "good.zip", method)
    assert run("ingest", tmp_path / "good.zip")[0] == 0
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", method) as archive:
        archive.writestr("run-b/manifest.json", b" " * (1 << 22))
    monkeypatch.setattr("routesparse.engine.cli.bundles.MAX_UNPACKED_BYTES", 1 << 21)
    assert "unpacks to more than 2 MB; it is no bundle" in refused("ingest", tmp_path / "bomb.zip")


def test_links_and_other_files_in_a_bundle_stay_where_they_are(refused, run, home, bundle, tmp_path):
    """Neither of an archive nor of a folder; an archive that holds a file twice is refused."""
    source = bundle()
    packed(source, tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr("run-a/notes.txt", "of somebody")
    (tmp_path / "secret").write_text("elsewhere")
    own = {path.name for path in source.iterdir()}
    (source / "notes").symlink_to(tmp_path / "secret")
    (source / "more").mkdir()
    for given in (tmp_path / "x.zip", source):
        assert run("ingest", given)[0] == 0
        assert {path.name for path in (paths.spool() / "run-a").iterdir()} == own
        shutil.rmtree(paths.spool() / "run-a")
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zipfile.ZipFile(tmp_path / "x.zip", "a") as archive,
    ):
        archive.writestr("run-a/manifest.json", "{}")
    assert "holds manifest.json twice" in refused("ingest", tmp_path / "x.zip")


class TestRuns:
    def test_none_yet(self, run, home):
        code, out, _ = run("runs")
        assert code == 0 and "no runs yet" in out
        assert json.loads(run("runs", "--json")[1]) == {"runs": []}

    def test_spool_and_store_newest_first_and_broken_ones_named(self, run, home, bundle):
        run("ingest", bundle("old"))
        shutil.copytree(bundle("new", created_at="2027-03-01T00:00:00+00:00"), home / "bundles" / "new")
        (paths.spool() / "torn").mkdir()
        (paths.spool() / ".tmp-half-written").mkdir()
        code, out, _ = run("runs", "--json")
        rows = json.loads(out)["runs"]
        listed = [(row["run_id"], row["place"]) for row in rows]
        assert (code, listed) == (0, [("new", "store"), ("old", "spool"), ("torn", "spool")])
        assert rows[2]["problem"] == "torn/run.parquet is missing; copy the bundle again"
        text = run("runs")[1]
        assert all(name in text for name in ("new", "old", "torn", "needles-16k.txt", "is missing"))
        assert len(json.loads(run("runs", "--json", "--limit", "1")[1])["runs"]) == 1

    def test_a_bundle_made_under_a_login_says_who_will_see_it(self, run, home, bundle):
        assert "login" not in run("ingest", bundle("mine"))[2]
        err = run("ingest", bundle("anns", owner="0123456789abcdef0123456789abcdef"))[2]
        assert "run anns was made under a login; pages show it under the same" in " ".join(err.split())

    def test_a_bundle_of_an_earlier_version_is_listed(self, run, home, bundle):
        """Columns that came later are missing from its run table."""
        run("ingest", bundle("early"))
        file = paths.spool() / "early" / "run.parquet"
        pq.write_table(pq.read_table(file).drop_columns(["owner", "top1_agreement"]), file)
        (row,) = json.loads(run("runs", "--json")[1])["runs"]
        assert (row["run_id"], row["owner"], row["top1_agreement"]) == ("early", None, None)

    def test_one_bad_bundle_hides_no_other(self, run, home, bundle):
        """Values that no run has, a pipe in place of a table: the list shows what is wrong beside the others."""
        run("ingest", bundle("good"), bundle("pipe"), bundle("null"))
        (paths.spool() / "pipe" / "run.parquet").unlink()
        os.mkfifo(paths.spool() / "pipe" / "run.parquet")
        file = paths.spool() / "null" / "run.parquet"
        table = pq.read_table(file)
        pq.write_table(table.set_column(1, "created_at", [[None]]), file)
        code, out, _ = run("runs", "--json")
        rows = {row["run_id"]: row for row in json.loads(out)["runs"]}
        assert code == 0 and rows["good"]["tokens"] == 2048
        assert "no plain file but a pipe" in rows["pipe"]["problem"]
        assert "created_at" in rows["null"]["problem"]
        assert run("runs")[0] == 0


def test_the_database_is_never_opened(home, bundle, tmp_path):
    """A DuckDB file held by the web process (here: not even a database) disturbs none of the three."""
    (home / "routesparse.duckdb").write_bytes(b"held by the web process")
    code = (
        "import sys; from routesparse.engine.cli.main import main; source, target = sys.argv[1:]; "
        "assert main(['ingest', source]) == 0; assert main(['runs']) == 0; "
        "assert main(['export', 'run-a', '--out', target]) == 0; "
        "assert 'duckdb' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, bundle(), tmp_path / "a.zip"], check=True)
    assert (home / "routesparse.duckdb").read_bytes() == b"held by the web process"


@pytest.mark.parametrize("name", ["pipe", "pipe.zip", "zero.zip"])
def test_a_pipe_or_a_device_is_not_waited_for(refused, home, tmp_path, no_plain_file, name):
    no_plain_file(tmp_path / name, "pipe" if name.startswith("pipe") else "device")
    assert name in refused("ingest", tmp_path / name)
