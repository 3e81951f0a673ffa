"""The study of presses: what its cells say of answers. No kvpress, no model."""

from __future__ import annotations

import pytest

from routesparse.engine.evaluation.studies import presses

NONE, SNAP = (None, 0.0), ("SnapKVPress", 0.5)


def answers(dense, routed, kept):
    return {
        "dense": presses.Answer("a", dense, kept, 1.0),
        "routed": presses.Answer("a" if routed == dense else "b", routed, kept, 0.25),
    }


def test_cells_pair_both_prefills_of_a_prompt_by_task_and_over_all():
    found = {
        ("one", 100): {
            1: {NONE: answers(1, 1, 90), SNAP: answers(1, 0, 45)},
            0: {NONE: answers(1, 1, 90), SNAP: answers(1, 1, 45)},
        },
        ("two", 100): {
            0: {NONE: answers(1, 1, 90), SNAP: answers(0, 1, 45)},
            1: {NONE: answers(0, 0, 90), SNAP: answers(0, 0, 45)},
        },
    }
    rows = {(row["task"], row["press"]): row for row in presses.cells(found, seed=1)}
    assert len(rows) == 6
    snap = rows["one", "SnapKVPress"]
    assert (snap["dense"], snap["routed"], snap["kept"], snap["density"]) == (100, 50, 45, 0.25)
    assert snap["scores"] == {"dense": [1, 1], "routed": [1, 0]}, "in the order of the prompts"
    assert (snap["identical"], snap["routed - dense"]["harmed"]) == (0.5, 1)
    every = rows[None, "SnapKVPress"]
    assert (every["dense"], every["routed"], every["routed - dense"]["n"]) == (50, 50, 4)
    assert every["routed - dense"]["mean_points"] == pytest.approx(0)
    assert rows[None, None]["routed - dense"]["interval_points"] == [0, 0]


def test_prompts_come_in_rounds_of_all_cells():
    """So that a run cut short has some of each."""
    parsed = presses.argparse.Namespace(
        **{
            "presses": ["SnapKVPress"],
            "ratios": [0.5, 0.75],
            "limit_s": 5.0,
            "prompts": 3,
            "first": 1,
            "without": ["SnapKVPress=0.75"],
        },
        **{"lengths": [100, 200], "tasks": ["one", "two"], "model": "demo"},
    )
    jobs = list(presses._jobs(parsed, None, ["x", "y", "z"]))
    assert [(job.index, job.tokens, job.task) for job in jobs[:4]] == [
        (0, tokens, task) for tokens in (100, 200) for task in ("one", "two")
    ]
    assert len(jobs) == 8 and {job.haystack for job in jobs} == {"x", "y"}
    assert jobs[0].cases == (NONE, SNAP, ("SnapKVPress", 0.75))
