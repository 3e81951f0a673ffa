"""No finished run is put into the empty place where the folder of all hosts should be mounted, whoever brings it."""

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle


@pytest.fixture
def spool(tmp_path, monkeypatch):
    """The spool of all hosts, on an empty mount point."""
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(tmp_path / "shared"))
    folder = tmp_path / "shared" / "spool"
    folder.mkdir(parents=True)
    return folder


def writes_a_run(factory, tmp_path, folder):
    return bundle.write_bundle(factory.make_record("a-run", layers=1, heads=2, probe=False), folder)


def writes_a_certificate(factory, tmp_path, folder):
    return bundle.write_bundle(factory.make_certificate("a-run", layers=1, heads=2), folder)


def copies(factory, tmp_path, folder):
    made = writes_a_run(factory, tmp_path, tmp_path / "made")
    bundle.copy(made, bundle.verify_bundle(made), folder / "a-run")


def moves(factory, tmp_path, folder):
    bundle.publish(writes_a_run(factory, tmp_path, tmp_path / "made"), folder / "a-run")


EVERYBODY = pytest.mark.parametrize("brings", [writes_a_run, writes_a_certificate, copies, moves])


@EVERYBODY
def test_an_empty_mount_point_takes_no_finished_run(factory, tmp_path, spool, brings):
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        brings(factory, tmp_path, spool)
    assert list(spool.iterdir()) == []
    shared_folder.mark()
    brings(factory, tmp_path, spool)
    assert sorted(path.name for path in spool.iterdir()) == [shared_folder.MARK, "a-run"]


@EVERYBODY
def test_nobody_makes_the_spool_of_all_hosts_in_the_passing(factory, tmp_path, spool, brings):
    spool.rmdir()
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        brings(factory, tmp_path, spool)
    assert not spool.exists()


def test_a_spool_by_another_name_is_the_same_spool(factory, tmp_path, spool):
    (tmp_path / "link").symlink_to(spool)
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        writes_a_run(factory, tmp_path, tmp_path / "link")


def test_a_folder_of_one_s_own_needs_no_mark(factory, tmp_path, spool, monkeypatch):
    assert writes_a_run(factory, tmp_path, tmp_path / "own").is_dir()
    monkeypatch.delenv("ROUTESPARSE_SHARED")
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    assert shared_folder.check() == tmp_path / "spool"
    assert writes_a_run(factory, tmp_path, tmp_path / "spool").is_dir()
