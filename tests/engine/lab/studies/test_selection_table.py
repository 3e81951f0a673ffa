"""The selection study's tables: interpolation on known curves, paired intervals, bounds. No model."""

import json

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.lab.studies.selection import curves, table

AREAS = np.array([[0.4], [0.1], [0.2]])


def test_a_power_law_is_interpolated_exactly_both_ways():
    kl = 0.003 * AREAS**-2.0
    for area in (0.1, 0.13, 0.2, 0.37, 0.4):
        goal = np.array([0.003 * area**-2.0])
        found = curves.area_at(AREAS, kl, goal)
        assert found.values[0] == pytest.approx(area) and found.sides[0] == 0
        found = curves.kl_at(AREAS, kl, np.array([area]))
        assert found.values[0] == pytest.approx(goal[0]) and found.sides[0] == 0


def test_what_no_setting_brackets_is_a_bound():
    kl = 0.003 * AREAS**-2.0
    below, above = curves.area_at(AREAS, kl, np.array([1.0])), curves.area_at(AREAS, kl, np.array([1e-4]))
    assert (below.values[0], below.sides[0]) == (pytest.approx(0.1), -1)
    assert (above.values[0], above.sides[0]) == (pytest.approx(0.4), 1)
    small, large = curves.kl_at(AREAS, kl, np.array([0.01])), curves.kl_at(AREAS, kl, np.array([0.9]))
    assert (small.values[0], small.sides[0]) == (pytest.approx(0.3), 1)
    assert (large.values[0], large.sides[0]) == (pytest.approx(0.01875), -1)


def test_a_kl_that_rises_with_the_area_counts_as_the_least_one_before():
    area, kl = np.array([[0.1], [0.2], [0.4]]), np.array([[0.1], [0.3], [0.01]])
    assert curves.kl_at(area, kl, np.array([0.2])).values[0] == pytest.approx(0.1)


def row(method, setting, index, area, kl, *, task="relay", score=1.0, **more):
    return {
        "method": method, "setting": setting, "task": task, "length": 4096, "index": index, "seed": 1,
        "extras": True, "reported": True, "area": area, "kl": kl, "agree": 0.5, "nats": 1.0 + kl,
        "nats_dense": 1.0, "score": score, "select_ms": 2.0, **more,
    }  # fmt: skip


def written(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return [path]


def test_a_method_with_twice_the_area_at_every_kl_is_said_to_read_twice_as_much(tmp_path):
    found = [row("dense", 1.0, i, 1.0, 0.0) for i in range(4)]
    for i in range(4):
        # Prompts differ by much, and by the same factor in both methods: the paired ratio does not vary.
        for area in (0.05, 0.1, 0.2):
            found.append(row("ours", area, i, area, (1 + i) * 0.001 / area, score=0.75))
            found.append(row("rival", area, i, 2 * area, (1 + i) * 0.001 / area))
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", True))
    assert "## relay, 4,096 tokens (reported)" in text
    assert "| ours | 0.1 | 4 | 0.100 | 25 | +25 | 50.00 | 75.0 | -25.0 [-25.0, -25.0] | 2.0 |" in text
    areas = [line for line in text.splitlines() if line.startswith("| rival | 2.00")]
    assert areas == ["| rival | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] |"]
    losses = text.split("KL at equal area")[1].split("\n\n")[1].splitlines()[-1]
    assert losses == "| rival | > 1.00 | 2.00 [2.00, 2.00] | 2.00 [2.00, 2.00] |"


def test_the_area_at_a_kl_stands_beside_its_multiple_and_prompts_of_one_document_count_as_one_group(tmp_path):
    books = [["a"], ["b", "c"], ["c", "d"], ["e"]]
    found = []
    for i, documents in enumerate(books):
        for area in (0.02, 0.1, 0.4):
            found.append(row("ours", area, i, area, 0.001 * (1 + i) / area, documents=documents))
            found.append(row("rival", area, i, 2 * area, 0.001 * (1 + i) / area, documents=documents))
    groups = table._groups(pd.DataFrame(found))
    assert list(groups == groups.iloc[1]) == [False, True, True, False] and groups.nunique() == 3
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", True, [25]))
    rows = text.split("Area at a KL, and as a multiple of ours's:")[1].split("\n\n")[1].splitlines()
    assert rows[0] == "| method | KL 25 mnat | x |"
    assert rows[2].startswith("| ours | 0.100 [") and rows[2].endswith("| 1.00 [1.00, 1.00] |")
    assert rows[3].startswith("| rival | 0.200 [") and rows[3].endswith("| 2.00 [2.00, 2.00] |")


def test_settings_that_lack_prompts_are_shown_but_not_compared(tmp_path):
    found = [row("dense", 1.0, i, 1.0, 0.0) for i in range(3)]
    found += [row("ours", 0.1, i, 0.1, 0.01) for i in range(3)]
    found += [row("rival", 0.2, i, 0.2, 0.01) for i in range(2)]
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", True))
    assert "| rival | 0.2 | 2 |" in text and "equal KL" not in text
    found = [one for one in found if one["method"] == "dense" or one["index"] < 2]
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", True))
    assert "| rival | > 1.00 |" in text, "a prompt that dense attention alone has keeps nothing out"


def test_development_and_reported_prompts_stand_apart_and_failures_are_told(tmp_path):
    found = [
        row("dense", 1.0, 0, 1.0, 0.0),
        row("dense", 1.0, 0, 1.0, 0.0, seed=0, reported=False),
        {**row("ours", 0.1, 0, 0.1, 0.01), "failed": "ValueError: no"},
    ]
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", True))
    assert text.index("(development)") < text.index("(reported)")
    assert "failed: ours 0.1 relay 4096 0 1 True: ValueError: no" in text


def test_what_extras_change_nothing_of_stands_in_the_table_without_them(tmp_path):
    found = [
        row("dense", 1.0, 0, 1.0, 0.0),
        row("window", 512.0, 0, 0.3, 0.02),
        row("window", 512.0, 0, 0.2, 0.03, extras=False),
    ]
    text = "\n".join(table.tables(written(tmp_path / "s.jsonl", found), "ours", False))
    assert "| dense | 1 |" in text and "| window | 512 | 1 | 0.200 |" in text and "0.300" not in text


@pytest.mark.parametrize(("prompts", "text"), [(1, "-20.0"), (2, "-15.0 [-20.0, -10.0]")])
def test_one_prompt_has_no_interval(prompts, text):
    found = [row("dense", 1.0, i, 1.0, 0.0, score=0.9) for i in range(prompts)]
    found += [row("ours", 0.1, i, 0.1, 0.1, score=0.7 + 0.1 * i) for i in range(prompts)]
    assert table.difference(pd.DataFrame(found), ("ours", 0.1)) == text
