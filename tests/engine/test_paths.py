"""Files that several processes write at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from routesparse.engine import paths


def test_one_file_that_two_write_at_once_is_whole_and_nothing_else_stays(tmp_path, monkeypatch):
    """Both have written before either puts its file in place: the second found none of its own there."""
    both, write_text = Barrier(2, timeout=30), Path.write_text

    def together(self, *given, **options):
        done = write_text(self, *given, **options)
        both.wait()
        return done

    monkeypatch.setattr(Path, "write_text", together)
    file = tmp_path / "new" / "x.json"
    with ThreadPoolExecutor(2) as threads:
        writing = [threads.submit(paths.write_json, file, {"from": number}) for number in range(2)]
        assert [one.result() for one in writing] == [file, file]
    assert json.loads(file.read_text())["from"] in (0, 1)
    assert [path.name for path in file.parent.iterdir()] == ["x.json"]


def test_what_can_not_be_written_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        paths.write_json(tmp_path / "x.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []
