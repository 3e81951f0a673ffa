"""README.md's numbers and the pages in data/results say what the result files say."""

import json

import pytest

from routesparse.engine import paths
from routesparse.engine.evaluation import (
    report,
    report_certify,
    report_contexts,
    report_cpu,
    report_gpu,
    report_gpu_tables,
    report_trust,
    result_files,
)
from routesparse.engine.evaluation.studies.needles import paired

PAGES = ["CPU.md", "GPU.md", "TRUST.md", "CERTIFY.md", "DETECTION.md"]
# Written once their studies have been run.
PAGES += ["PRESSES.md"] if any(map(result_files.there, report_contexts.PRESSES)) else []
PAGES += ["LONG_CONTEXT.md"] if any(map(result_files.there, report_contexts.LONG)) else []


@pytest.fixture
def copied(monkeypatch, tmp_path):
    """A repository of README.md and the result files alone, its pages and numbers still to be written."""
    readme = (paths.REPOSITORY / "README.md").read_text()
    before, rest = readme.split(report.BEGIN)
    _, after = rest.split(report.END)
    (tmp_path / "README.md").write_text(f"{before}{report.BEGIN}\n{report.END}{after}")
    for path in result_files.RESULTS.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path)
    return tmp_path


def test_the_readme_and_the_pages_are_what_the_report_writes(copied, monkeypatch):
    expected = {"README.md": (paths.DATA.parent / "README.md").read_text()}
    expected |= {name: (result_files.RESULTS / name).read_text() for name in PAGES}
    monkeypatch.setattr(result_files, "RESULTS", copied)
    report.main(["--write"])
    assert {name: (copied / name).read_text() for name in expected} == expected


def test_without_write_the_numbers_are_printed_and_nothing_changes(copied, monkeypatch, capsys):
    monkeypatch.setattr(result_files, "RESULTS", copied)
    untouched = (copied / "README.md").read_text()
    report.main([])
    assert "dense / routed" in capsys.readouterr().out
    assert (copied / "README.md").read_text() == untouched
    assert not list(copied.glob("[CGT]*.md"))


def replace(folder, name, result):
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(result))


def test_the_headline_tells_the_8b_shape_by_plans_that_a_router_chose(copied, monkeypatch):
    """Not by forced ones, however fast; and every row of another commit names it."""
    name = "end_to_end_h200.json"
    result = result_files.read(name)
    monkeypatch.setattr(result_files, "RESULTS", copied)
    for row in result["rows"]:
        if row["what"] == "recorded" and row["n_tokens"] == 131_072:
            row.update(speedup_over_cudnn=1.87, density=0.42)
    replace(copied, name, result)
    assert "this model's plans (42 %) were 1.87 times as fast" in report_gpu.headline()[2]
    other = {row["git_commit"] for row in result["rows"] if "git_commit" in row}
    assert other and all(
        any(f"(at {commit})" in line for line in report_gpu_tables.prefill()) for commit in other
    )


@pytest.mark.parametrize("seed", [report_cpu.DEVELOPMENT_SEED, report_cpu.DEVELOPMENT_SEED + 1])
def test_needles_that_the_method_was_changed_for_are_called_so(copied, monkeypatch, seed):
    result = result_files.read("needles.json")
    monkeypatch.setattr(result_files, "RESULTS", copied)
    replace(copied, "needles.json", {**result, "seed": seed})
    told = "\n".join(report_cpu.needles())
    assert ("not an independent test" in told) == (seed == report_cpu.DEVELOPMENT_SEED)
    assert ("drawn for this table" in told) == (seed != report_cpu.DEVELOPMENT_SEED)


def pair(mean, harmed=2):
    return {
        "n": 25,
        "mean_points": mean,
        "interval_points": [mean - 3, mean + 3],
        "harmed": harmed,
        "gained": 1,
    }


ABOUT = {
    **{"device": "D", "threads": 2, "dtype": "bfloat16", "versions": {"torch": "2.11.0"}, "seed": 5},
    **{"git_commit": "0123456789", "command": "python -m x", "slack_tokens": 8, "prompts_per_cell": 30},
}
LONGROPE = {
    **{"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 131_072},
    **{"short_factor": [1.0, 1.0], "long_factor": [1.0, 2.0]},
}


def scored(dense, routed):
    """What a row says of its prompts, and what follows of them."""
    scores = {"dense": dense, "routed": routed}
    means = {method: 100 * sum(values) / len(values) for method, values in scores.items()}
    return {"scores": scores, **means, "routed - dense": paired({"one": scores}, "routed", "dense", 0)}


def test_presses_are_told_by_length_with_all_tasks_first():
    cell = {"task": "niah_single_2", "tokens": 16_384, "press": "SnapKVPress", "ratio": 0.75}
    cell |= {"identical": 0.92, "density": 0.178, **scored([1.0] * 20 + [0.0] * 5, [1.0] * 18 + [0.0] * 7)}
    other = {**cell, "task": "niah_multikey_1", "density": 0.2, **scored([1.0] * 25, [1.0] * 25)}
    lines = report_contexts.presses([{**ABOUT, "cells": [cell, other, {**cell, "task": None}]}])
    rows = [line for line in lines if line.startswith("| SnapKV")]
    assert "## 16,384 tokens" in lines and [row.split(" | ")[2] for row in rows] == [
        *("**all**", "niah_single_2", "niah_multikey_1")
    ]
    assert "| 75% | **all** | 50 | 90.0 | 86.0 | -4.0 | 2 | 0 | 92 | 0.19 |" in rows[0], (
        "2 differ: no interval"
    )
    text = "\n".join(lines)
    assert (
        "Tasks: niah_multikey_1, niah_single_2; 30 prompts asked for of each task and length, 25 answered in"
        in text
    )
    assert "about four clusters" in text and "The 3 comparisons below were made without a correction" in text
    assert "drawn at random after the scripts stood" in text and "up to 3/n of all may" in text


def test_a_later_run_s_prompts_join_those_of_the_first():
    """Of one seed and behind them; what it left out keeps its own n."""
    cell = {
        "task": "vt",
        "tokens": 100,
        "press": "SnapKVPress",
        "ratio": 0.5,
        "identical": 1.0,
        "density": 0.1,
    }
    first = {**cell, **scored([1.0, 0.5], [1.0, 0.5])}
    alone = {**first, "ratio": 0.75, **scored([0.25, 0.0], [0.0, 0.0])}
    more = {**cell, "identical": 0.0, "density": 0.4, **scored([1.0], [0.0])}
    runs = [{**ABOUT, "cells": [first, alone]}, {**ABOUT, "first_prompt": 2, "cells": [more]}]
    lines = report_contexts.presses(runs)
    assert "| SnapKV | 50% | vt | 3 | 83.3 | 50.0 | -33.3 | 1 | 0 | 67 | 0.20 |" in lines
    assert "| SnapKV | 75% | vt | 2 | 12.5 | 0.0 | -12.5 | 1 | 0 | 100 | 0.10 |" in lines
    text = "\n".join(lines)
    assert "left out SnapKV at 75%: where dense prefills find 12 to 12 %" in text
    assert (
        "28 prompts asked for of each task and length, 1 answered in the time allowed. They follow the"
        in text
    )
    with pytest.raises(ValueError, match="raise --first"):
        report_contexts.presses([runs[0], {**runs[1], "first_prompt": 1}])
    assert report_contexts.presses([runs[0], {**runs[1], "first_prompt": 0, "seed": 6}])


SEARCH = {
    **{**ABOUT, "trained": 100, "tokens": 400, "positions": 300, "nats": 2.0, "best_from": "child"},
    "starts": {"as trained": 2.5, "YaRN": 2.25},
    "tried": [["as trained", 2.5], ["YaRN", 2.25], ["child", 2.0]],
    "rope": {"long_factor": [1.0, 3.5], "attention_factor": 1.06},
}


@pytest.mark.parametrize(("nats", "told"), [(2.125, "0.1250 nats less than"), (2.5, "0.2500 nats more than")])
def test_a_search_is_told_with_the_windows_that_it_did_not_see(nats, told):
    held = [{"name": name, "tokens": 400, "nats": [2.25]} for name in SEARCH["starts"]]
    held.append({"name": "searched", "tokens": 400, "nats": [nats - 0.5, nats + 0.5]})
    row = {
        "scaling": "searched",
        "task": "vt",
        "tokens": 400,
        "identical": 0.5,
        "density": 0.1,
        "needles": [],
    }
    run = {**ABOUT, "original": 131_072, "rows": [{**row, **scored([1.0], [1.0])}]}
    lines = report_contexts.long_contexts([run], {**SEARCH, "held_out": held})
    text = "\n".join(lines)
    assert "3 candidates, 2 of them published points" in text and "(YaRN) 2.2500" in text
    assert f"at 400 tokens {told} the best of these (as trained)" in text
    assert "*LongRoPE, searched* stretch the 65,536 of training" in text and "Nobody searched" not in text
    assert f"| searched | 2.0000 | {nats:.4f} |" in lines and "1, 3.5; attention factor 1.06" in text


@pytest.mark.parametrize(("harmed", "told"), [(8, "-1.5 | 8"), (9, "-1.5 [-4.5, +1.5] | 9")])
def test_an_interval_is_printed_from_ten_differing_prompts_on(harmed, told):
    row = {"dense": 81.0, "routed": 79.5, "identical": 0.5, "density": 0.1}
    assert f"| {told} |" in report_contexts._paired({**row, "routed - dense": pair(-1.5, harmed)})


def test_longer_contexts_are_told_with_the_depths_of_found_needles():
    row = {"scaling": "yarn", "task": "niah_multivalue", "tokens": 262_144, **scored([1.0], [0.75])}
    row |= {
        "density": 0.1,
        "identical": 0.5,
        "needles": [[0.1, 1, 1], [0.2, 1, 0], [0.99, 1, 1]],
    }
    lines = report_contexts.long_contexts([{**ABOUT, "original": 131_072, "rows": [row]}])
    assert "| YaRN | niah_multivalue | 262,144 | 1 | 100.0 | 75.0 | -25.0 | 1 | 0 | 50 | 0.10 |" in lines
    assert lines[-3] == "| YaRN | 262,144 | 2 and 1 of 2 | - | - | 1 and 1 of 1 |"
    assert "all tasks and lengths together: YaRN 1 and 0 of 1." in lines[-1]
    assert "What was measured, 262,144, lies beyond the 65,536" in lines[0] and "short list" not in lines[0]
    trained = report_contexts.long_contexts(
        [{**ABOUT, "original": 131_072, "rows": [row, {**row, "tokens": 32_768}]}]
    )
    assert "where it is not needed" not in trained[0]


@pytest.mark.parametrize("alike", [True, False])
def test_longropes_short_list_is_called_no_scaling(alike):
    row = {"task": "vt", "tokens": 131_072, "density": 0.1, "identical": 0.5, **scored([1.0], [0.75])}
    row |= {"needles": [[0.1, 1, 1]], "rope": None, "scaling": "none"}
    short = {**row, "scaling": "longrope", "rope": json.dumps(LONGROPE), "needles": [[0.1, 1, float(alike)]]}
    lines = report_contexts.long_contexts(
        [{**ABOUT, "original": 131_072, "rows": [row, short, {**short, "tokens": 262_144}]}]
    )
    table = [line for line in lines if line.startswith("| LongRoPE's form") and "| vt |" in line]
    assert [line.startswith("| LongRoPE's form (no scaling) |") for line in table] == [True, False]
    assert "whose factors are all 1.0 here" in lines[0] and ("find the same needles" in lines[0]) == alike
    assert "| LongRoPE's form (no scaling) | 131,072 |" in "\n".join(lines[-5:]), "by depth too"


@pytest.mark.parametrize(("ms", "told"), [(1.4, "met up to 32 rows a head"), (1.6, "not met")])
def test_the_goal_of_certifys_cost_is_judged_by_the_figures(ms, told):
    row = {"tokens": 131_072, "heads": 32, "dense_ms": 40.0, "certify_p20_ms": ms, "certify_p80_ms": ms}
    rows = [
        {**row, "rows": n, "certify_ms": ms * n / 32, "with_named_ms": 3, "with_plan_ms": 4} for n in (32, 64)
    ]
    rows = [one for one in rows if told != "not met" or one["rows"] >= 32]
    lines = report_certify.cost(
        {**ABOUT, "rows": rows, "kv_heads": 8, "size": 128, "density": 0.2, "named": "last:64"}
    )
    assert f"the goal of 1.5 ms a layer is {told}" in lines[0] and len(lines) == 4 + len(rows)
    assert "seed 5, commit" in lines[0] and "are single medians, whose spread was not kept" in lines[0]


@pytest.mark.parametrize(
    ("highs", "told"),
    [
        ([0.002, 0.003], "None of them rules out a rate above the level."),
        ([0.0005, 0.003], "In 1 of the 2 lines it does not rule out a rate above the level."),
        ([0.0005, 0.0009], "All lie below the level."),
    ],
)
def test_the_simulation_of_false_alarms_says_what_it_does_not_rule_out(copied, monkeypatch, highs, told):
    monkeypatch.setattr(result_files, "RESULTS", copied)
    result = result_files.read(report_trust.FLEET)
    rows = [{**result["rows"][0], "high": high, "draws": 5_500} for high in highs]
    replace(copied, report_trust.FLEET, {**result, "rows": rows, "command": "x --draws 50000 --limit-s 600"})
    text = "\n".join(report_trust.fleet())
    assert told in text and "5,500 of 50,000 asked draws of each line were done" in text
    replace(copied, report_trust.FLEET, {**result, "rows": rows, "command": "x --draws 5500"})
    assert "asked draws" not in "\n".join(report_trust.fleet())
