"""Related rules at chosen settings: the choice, what it is made of, and the command on a tiny model. CPU."""

import pytest

from routesparse.engine.baselines.related import RELATED
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.studies.selection import methods, rows, tuned
from routesparse.engine.evaluation.studies.selection.tuned import Tried


def test_the_least_kl_within_the_area_is_chosen_and_else_what_reads_least():
    found = [Tried("a", 0.14, 0.1), Tried("b", 0.13, 0.3), Tried("c", 0.1, 0.2), Tried("d", 0.12, 0.25)]
    assert tuned.choose(found, 0.13).text == "c"
    assert tuned.choose(found, 0.2).text == "a"
    assert tuned.choose(found, 0.05).text == "c"


def test_every_candidate_can_be_made_and_every_scorer_and_pattern_has_one():
    for rule, candidates in tuned.CANDIDATES.items():
        made = [methods.find(*methods.rounds([text])[0][0]) for text in candidates]
        assert {methods.varied(one.name)[0] for one in made} == {rule}
        assert len({(one.name, one.setting) for one in made}) == len(candidates)
    asked = {one.method for one in RELATED if one.file.startswith(("scorers/", "patterns/"))}
    assert asked <= set(tuned.CANDIDATES)


def written(path, kls):
    """Development rows: KL by candidate, task and prompt."""
    with rows.Appender(path) as out:
        for text, by_task in kls.items():
            name, _, setting = text.rpartition("=")
            for task, values in by_task.items():
                for index, kl in enumerate(values):
                    row = {
                        "method": name,
                        "setting": float(setting),
                        "task": task,
                        "length": 1,
                        "index": index,
                    }
                    out.write(
                        {**row, "seed": 0, "extras": True, "kl": kl, "area": 0.1 + 0.1 * (task == "vt")}
                    )


def test_a_task_counts_by_ratios_not_by_its_size(tmp_path):
    """Arithmetic means over prompts, geometric ones over tasks; reported rows are not looked at."""
    path = tmp_path / "out.jsonl"
    kls = {"quest=8": {"vt": [1.0, 3.0], "relay": [0.002]}, "dhsa=8": {"vt": [1.0, 1.0], "relay": [0.008]}}
    written(path, kls)
    with rows.Appender(path) as out:
        out.write({**next(rows.read_lines(path)), "seed": 7, "kl": 99.0})
    with pytest.raises(InputError, match="quest=9 was measured on 0 of 3 development prompts"):
        tuned.tried(path, ("quest=9",))
    one, other = tuned.tried(path, tuple(kls))
    assert one.kl == pytest.approx((2 * 0.002) ** 0.5) and other.kl == pytest.approx((1 * 0.008) ** 0.5)
    assert one.area == pytest.approx(0.15)


@pytest.mark.timeout(300)
def test_the_command_chooses_on_development_prompts_and_reports_fresh_ones(
    folder, tmp_path, steady_home, monkeypatch
):
    for split, letter in (("calibration", "a"), ("test", "b")):
        (tmp_path / "prose" / split).mkdir(parents=True)
        words = " ".join(letter * (1 + 7 * i % 5) for i in range(900))
        (tmp_path / "prose" / split / "1.txt").write_text(words)
    monkeypatch.setattr(tuned, "DEVELOPED", ("text:prose",))
    monkeypatch.setattr(tuned, "TASKS", ("text:prose",))
    candidates = {"quest": ("quest@page:8=3", "quest@page:32=3"), "window": ("window=128", "window=256")}
    monkeypatch.setattr(tuned, "CANDIDATES", candidates)
    out = tmp_path / "out.jsonl"
    call = ["--model", str(folder), "--data", str(tmp_path), "--out", str(out), "--length", "600"]
    call += ["--seed", "4", "--rules", "quest", "window", "--area", "0.9", "--prompts", "1", "--most", "2"]
    tuned.main([*call, "--development", "1"])
    (choice,) = [line for line in rows.read_lines(out) if "chosen" in line]
    assert choice["area"] == 0.9 and set(choice["chosen"]) == {"quest", "window"}
    done = rows.read_rows([out])[0]
    reported = {key[:2]: [k for k in done if k[:2] == key[:2] and k[5] == 4] for key in done if key[5] == 4}
    quest, window = (choice["chosen"][rule][0].rpartition("=") for rule in ("quest", "window"))
    counts = {key: len(found) for key, found in reported.items()}
    assert counts == {
        **{("dense", 1.0): 2, ("routesparse", 0.5): 2, (window[0], float(window[2])): 1},
        **{(quest[0], 3.0): 2, (quest[0], 4.0): 2},
    }
    assert {key[5] for key in done} == {0, 4}
    before = out.read_text()
    tuned.main([*call, "--development", "1"])
    assert [line for line in out.read_text().splitlines() if '"command"' not in line] == [
        line for line in before.splitlines() if '"command"' not in line
    ], "what is there is not done again"
    with pytest.raises(SystemExit):
        tuned.main([*call, "--seed", "0"])
