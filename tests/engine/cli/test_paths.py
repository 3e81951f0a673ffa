"""Paths that are none of this machine, or that a database can't be opened by, are refused before anything is made."""

import pytest

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.operations.backup import back_up
from routesparse.engine.store.duckdb_store import Store

ADDRESSES = ["s3://bucket/x", "file:///tmp/x", "postgresql://u@h/d", "gs://b", "host:/x", "~nobody9/x"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "a#b%41 *[c]'d"))
    Store(paths.database()).close()


COMMANDS = ("backup", "restore", "analyze", "tune code --prompts", "profile --out", "export x --out")


@pytest.mark.parametrize(
    ("command", "address"),
    [
        *((command, "s3://bucket/x") for command in COMMANDS),
        *(("backup", address) for address in ADDRESSES[1:]),
    ],
)
def test_an_address_is_no_path(run, tmp_path, command, address):
    before = sorted(tmp_path.iterdir())
    code, out, err = run(*command.split(), address)
    assert (code, out) == (2, "") and ("is an address" in err or "no such user" in err)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("variable", ["ROUTESPARSE_HOME", "ROUTESPARSE_SHARED"])
def test_a_home_that_cannot_be_one_is_refused(run, monkeypatch, variable):
    for named in ("q?x", *ADDRESSES):
        monkeypatch.setenv(variable, named)
        with pytest.raises(InputError):
            paths.spool()
    code, _, err = run("runs")
    assert code == 2 and "error: " in err and "Traceback" not in err


def test_a_home_of_other_odd_characters_is_backed_up_and_restored(printed, run, tmp_path, monkeypatch):
    assert run("backup", "backup % #1")[0] == 0
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "new % #"))
    printed("restore", "backup % #1")
    with pytest.raises(InputError, match=r"has a '\?'"):
        back_up(paths.home(), tmp_path / "b?c")


def test_a_tilde_is_the_users_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "me").mkdir()
    assert run("backup", "~/kept")[0] == 0 and (tmp_path / "me" / "kept" / "backup.json").is_file()
