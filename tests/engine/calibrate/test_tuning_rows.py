"""Reading what a tuning measured: torn lines are counted, damage and mixed seeds are refused."""

import json

import pytest

from routesparse.engine.calibrate.tuning_rows import read_measured
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError

HEADER = {
    **dict.fromkeys(("model", "revision", "dtype", "device", "library_hash", "command"), "x"),
    "stamp": stamp_of(RouterConfig()),
    "tokens": 600,
    "seed": 0,
    "git_commit": None,
}
ROW = {
    **dict.fromkeys(("domain", "document", "document_sha256", "cluster"), "x"),
    "split": "calibration",
    "index": 0,
    "price": 1.0,
    "failed": "out of memory",
}


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lines_that_were_cut_off_are_left_out_and_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", HEADER, ROW, ROW)
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:30]
    path.write_text("\n".join(lines) + "\n" + lines[1])
    said = []
    rows, headers = read_measured([path], said.append)
    assert (len(rows), len(headers)) == (1, 1)
    assert len(said) == 1 and said[0].endswith("a.jsonl: 2 lines were cut off and left out")


def test_rows_of_several_seeds_or_without_a_proper_name_are_refused(tmp_path):
    files = [write(tmp_path / f"{seed}.jsonl", {**HEADER, "seed": seed}, ROW) for seed in (0, 1)]
    with pytest.raises(CalibrationError, match="different seed; pass files of one"):
        read_measured(files)
    odd = write(tmp_path / "odd.jsonl", HEADER, {**ROW, "sha256": []})
    with pytest.raises(CalibrationError, match="sha256"):
        read_measured([odd])
    mixed = write(tmp_path / "mixed.jsonl", HEADER, {**ROW, "seed": 0}, {**ROW, "seed": 1})
    with pytest.raises(CalibrationError, match="different seed; pass files of one"):
        read_measured([mixed])
