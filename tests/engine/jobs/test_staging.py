"""What may be swept and published, and what not."""

import errno
import os

import pytest

from routesparse.engine import shared_folder
from routesparse.engine.errors import StoreError
from routesparse.engine.jobs import staging
from routesparse.engine.store import bundle
from tests.engine.jobs.conftest import claimed, done


@pytest.fixture
def folder(home):
    folder = home / "spool" / staging.STAGED
    folder.mkdir(parents=True)
    return folder


def leave(folder, *names):
    for name in names:
        (folder / name).mkdir()
        (folder / name / "manifest.json").write_text("{}")


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_sweep_leaves_what_running_and_finished_attempts_need(queue, folder):
    running, finished = claimed(queue), done(queue)
    written = f"{bundle.TEMPORARY_PREFIX}{running.run_id}-77-abc"
    leave(folder, running.run_id, finished.run_id, written)
    staging.sweep(queue)
    assert names(folder) == {running.run_id, finished.run_id, written}


def test_a_sweep_takes_what_lost_and_ended_attempts_left(queue, folder):
    failed, released = claimed(queue), claimed(queue)
    queue.fail(failed, "model", "no")
    queue.release(released)
    again = queue.claim("w")
    leave(folder, failed.run_id, released.run_id, f"{bundle.TEMPORARY_PREFIX}{released.run_id}-77-abc", "x-1")
    leave(folder, again.run_id)
    staging.sweep(queue)
    assert names(folder) == {again.run_id}


def test_a_bundle_is_published_once_however_often_asked(queue, folder, home):
    claim = done(queue)
    leave(folder, claim.run_id)
    staging.publish_finished(queue)
    assert (home / "spool" / claim.run_id / "manifest.json").is_file()
    staging.publish(queue, claim.run_id)
    assert names(folder) == set()
    assert queue.unpublished() == []


def test_a_bundle_that_can_t_be_moved_waits(queue, folder, home):
    claim = done(queue)
    leave(folder, claim.run_id)
    (home / "spool" / claim.run_id).write_text("a file where the bundle should be")
    with pytest.raises(StoreError, match="it waits"):
        staging.publish_finished(queue)
    (home / "spool" / claim.run_id).unlink()
    assert queue.unpublished() == [claim.run_id]
    staging.publish_finished(queue)
    assert (home / "spool" / claim.run_id).is_dir()


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder of all hosts that lies on another disk than the queue's home."""
    folder, publish = tmp_path / "shared", bundle.publish

    def across(source, target):
        if source.parent.name == staging.STAGED != target.parent.name:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        publish(source, target)

    monkeypatch.setattr(bundle, "publish", across)
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(folder))
    return folder


def test_a_finished_run_is_copied_into_the_spool_of_all_hosts(queue, folder, factory, shared):
    shared_folder.mark()
    claim = done(queue)
    record = factory.make_record(claim.run_id, layers=1, heads=2, segments=1, tokens=2048, probe=False)
    bundle.write_bundle(record, folder)
    staging.publish_finished(queue)
    bundle.verify_bundle(shared / "spool" / claim.run_id)
    assert names(folder) == set() and queue.unpublished() == []


@pytest.mark.parametrize("mount_point", [False, True], ids=["away", "an empty mount point"])
def test_a_finished_run_waits_while_the_shared_folder_is_away(queue, folder, shared, mount_point):
    if mount_point:
        (shared / "spool").mkdir(parents=True)
    claim = done(queue)
    leave(folder, claim.run_id)
    with pytest.raises(StoreError, match="is the shared folder mounted"):
        staging.publish_finished(queue)
    assert names(folder) == {claim.run_id} and queue.unpublished() == [claim.run_id]
    assert not list(shared.glob("spool/*"))
