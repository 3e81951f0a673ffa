"""Comparing two recordings of decisions. Recording itself takes minutes: it is a command, not a test."""

import copy

import pytest

from routesparse.engine.lab.studies.decisions import comparison


@pytest.fixture
def recording():
    problems = [
        {"name": name, "ids": [[1, 2]], "config": {}, "dense_upstream": True} for name in ("prose", "code")
    ]
    unit = {"layer": 3, "head": 1, "pattern": "a_shape", "mass": (0.9).hex()}
    found = {
        "units": [unit],
        "layers": [{"layer": 3, "planned_us": (10.0).hex()}],
        "candidates": {"layer 3, candidates of a_shape, mass": "0f"},
        "logits": "aa",
        "sha256": "",
    }
    header = {"machine": "one", "versions": {}, "salt": "s", "seed": 1, "costs": {}}
    return {**header, "problems": problems, "results": {"prose": found, "code": copy.deepcopy(found)}}


def test_equal_recordings_differ_in_no_prompt(recording, capsys):
    assert comparison.compare(recording, copy.deepcopy(recording)) == 0
    assert "2 of 2 prompts are equal bit by bit" in capsys.readouterr().out


def test_what_differs_is_named_by_prompt_layer_and_field(recording, capsys):
    other = copy.deepcopy(recording)
    # One unit in the last place.
    other["results"]["code"]["units"][0]["mass"] = (0.9 + 2**-53).hex()
    other["results"]["code"]["candidates"]["layer 3, candidates of a_shape, mass"] = "10"
    assert comparison.compare(recording, other) == 1
    printed = capsys.readouterr().out
    assert "code (dense upstream), layers [3]: units: mass 1, candidates of a_shape, mass 1" in printed
    assert "1 of 2 prompts are equal bit by bit" in printed


def test_recordings_of_different_problems_are_refused(recording):
    other = copy.deepcopy(recording)
    other["problems"][0]["ids"] = [[1, 3]]
    with pytest.raises(SystemExit, match="record the second one with --like the first"):
        comparison.compare(recording, other)
