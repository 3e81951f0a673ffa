"""Reading what others may have put there: plain files, up to a bound, in a moment."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from routesparse.engine.files import plain_files


def test_a_plain_file_is_read_whole_up_to_the_bound(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    for bound in (5, 1 << 50):  # memory is taken for what it has
        assert plain_files.read_bounded(tmp_path / "x", bound) == b"12345"
    with pytest.raises(OSError, match="it has more than 4 bytes") as caught:
        plain_files.read_bounded(tmp_path / "x", 4)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("pipe", "no plain file but a pipe or a device"),
        ("device", "no plain file but a pipe or a device"),
        ("folder", "it is a folder"),
        ("no\0name", "no file can have this name"),
        ("x" * 300, "name too long"),
        ("loop", "symbolic links"),
        ("missing", "No such file"),
    ],
)
def test_anything_else_is_refused_in_words_and_at_once(tmp_path, name, told):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError) as caught:
        plain_files.read_bounded(tmp_path / name, 100)
    assert told.lower() in caught.value.strerror.lower()


def test_links_are_followed_where_the_caller_says_so(tmp_path):
    (tmp_path / "x").write_bytes(b"1")
    (tmp_path / "link").symlink_to("x")
    assert plain_files.read_bounded(tmp_path / "link", 1) == b"1"
    with pytest.raises(OSError) as caught:
        plain_files.read_bounded(tmp_path / "link", 1, follow_links=False)
    assert caught.value.errno == errno.ELOOP


def test_a_file_that_grows_meanwhile_ends_at_the_bound(tmp_path):
    file, stop = tmp_path / "log", threading.Event()

    def grow():
        with file.open("ab", buffering=0) as handle:
            while not stop.is_set() and handle.tell() < 1 << 26:
                handle.write(b"x" * 65_536)

    file.write_bytes(b"x" * 2_000_000)
    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(OSError, match="it has more than 1 MB"):
            plain_files.read_bounded(file, 1 << 20)
    finally:
        stop.set()
        writer.join()


def test_the_state_of_a_file_differs_once_it_is_replaced_by_one_of_its_size_and_date(tmp_path):
    file, other = tmp_path / "file", tmp_path / "other"
    assert plain_files.state_of(file) is None
    file.write_text("one")
    before = plain_files.state_of(file)
    assert before == plain_files.state_of(file) is not None
    other.write_text("two")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.replace(file)
    assert plain_files.state_of(file) != before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" + ",".join(["[]"] * 1_000_000) + "]", "more than 524,288 values"),
        ("{" + ",".join(f'"{i}":0' for i in [*range(80_000), 79_999]) + "}", "'79999' stands twice"),
    ],
    ids=["values", "names"],
)
def test_a_file_of_very_many_values_or_names_is_refused_at_once(tmp_path, text, why):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=why):
        plain_files.read_json(tmp_path / "x.json", 1 << 26)
