"""KL at equal total time, on rows whose answer is known."""

from __future__ import annotations

import json

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.studies.selection import equal_time

LENGTHS = (16_384, 32_768)


def row(method, setting, task, length, index, area, kl, **more):
    return {
        "method": method, "setting": setting, "task": task, "length": length, "index": index, "seed": 9,
        "extras": True, "reported": True, "area": area, "kl": kl, **more,
    }  # fmt: skip


def clock_rows(slope=10.0, fixed=2.0, deciding=1.0):
    """The kernel takes fixed + slope * area, deciding the same for both policies; the first prompt compiles."""
    return [
        row(method, setting, "text:prose", length, index, area, 0.1, processes=1,
            attention_ms=(fixed + slope * area) * (50 if index == 0 else 1), select_ms=deciding)
        for method in ("routesparse", "routesparse_per_head")
        for length in LENGTHS
        for setting, area in ((1, 0.1), (0.5, 0.2), (0.25, 0.4))
        for index in range(3)
    ]  # fmt: skip


def written(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def study_rows(method, loss, areas=((1, 0.1), (0.5, 0.2), (0.25, 0.4))):
    return [
        row(method, setting, task, length, index, area, loss * (1 + index) / area)
        for setting, area in areas
        for task in ("text:prose", "text:code")
        for length in LENGTHS
        for index in range(3)
    ]


def test_deciding_counts_for_our_policies_and_not_for_the_rival(tmp_path):
    """All lose alike at equal area; the rival, whose deciding is free, reads .1 more area for our millisecond."""
    files = [
        written(tmp_path / f"{name}.jsonl", study_rows(name, 0.001))
        for name in ("routesparse", "routesparse_per_head", "minference")
    ]
    clock = equal_time.Clock(iter(clock_rows()))
    assert clock.lines == {n: (pytest.approx(2.0), pytest.approx(10.0)) for n in LENGTHS}
    found = equal_time.measured(files, clock, ["routesparse_per_head", "minference"])
    text = "\n".join(equal_time.table(found, clock, set(LENGTHS)))
    assert "12 prompts of 2 domains at 16,384, 32,768 tokens." in text
    assert "| routesparse | 1 | 4.00 | 20 |" in text and "| minference | 1 | 3.00 | 20 |" in text
    ratios = {r.split(" | ")[0]: r for r in text.split("equal time")[1].splitlines()}
    assert ratios["| routesparse_per_head"].endswith(
        "| 1.00 [1.00, 1.00] | 1.00 [1.00, 1.00] | 1.00 [1.00, 1.00] |"
    )
    # 4 ms buy the rival an area of .2 where we read .1: half our loss.
    assert ratios["| minference"].split(" | ")[1] == "0.50 [0.50, 0.50]"


def test_a_method_that_loses_twice_as_much_is_said_to(tmp_path):
    files = [
        written(tmp_path / "a.jsonl", study_rows("routesparse", 0.001)),
        written(tmp_path / "b.jsonl", study_rows("routesparse_per_head", 0.002)),
    ]
    clock = equal_time.Clock(iter(clock_rows()))
    found = equal_time.measured(files, clock, ["routesparse_per_head"])
    text = "\n".join(equal_time.table(found, clock, {LENGTHS[0]}))
    assert "6 prompts of 2 domains at 16,384 tokens." in text
    assert "| routesparse_per_head | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] |" in text


def test_a_clock_that_other_processes_disturbed_is_refused():
    rows = [{**r, "processes": 4} for r in clock_rows()]
    with pytest.raises(InputError, match="--processes 1"):
        equal_time.Clock(iter(rows))


def test_a_clock_without_a_policy_or_settings_says_what_is_missing(tmp_path):
    clock = equal_time.Clock(r for r in clock_rows() if r["method"] == "routesparse")
    files = [written(tmp_path / "b.jsonl", study_rows("routesparse_per_head", 0.002))]
    with pytest.raises(InputError, match="no routesparse_per_head"):
        found = equal_time.measured(files, clock, ["routesparse_per_head"])
        list(equal_time.table(found, clock, set(LENGTHS)))
    with pytest.raises(InputError, match="give it three"):
        equal_time.Clock(r for r in clock_rows() if r["setting"] == 1)
    with pytest.raises(InputError, match="no text prompt"):
        equal_time.measured([tmp_path / "none.jsonl"], clock, ["minference"])
