"""What the detection study's analysis says of planted prefills whose truth is known."""

import numpy as np
import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import report_detection
from routesparse.engine.evaluation.studies.detection import analyse, names
from routesparse.engine.evaluation.studies.selection import rows

PROMPTS, SETTINGS = 24, (0.9, 0.7, 0.5)
HALF = 0.5**0.5


@pytest.fixture(scope="module")
def planted():
    """Two tasks. ``error`` follows the lost nats with a normal correlation of .5**.5 in each setting; ``mass_bound``
    knows the setting alone; ``hit_rate`` is noise. An answer is lost above a level of nats."""
    rng = np.random.default_rng(3)
    made = []
    for task in ("vt", "relay"):
        for index in range(PROMPTS):
            for method, settings in (("xattention", SETTINGS), *((m, (1.0,)) for m in names.WHOLE)):
                for starved, setting in enumerate(settings):
                    whole = method in names.WHOLE
                    harm = 0.0 if whole else float(rng.normal(starved, 1))
                    seen = HALF * (harm - starved) + HALF * rng.normal()
                    row = dict.fromkeys(names.ALARMS, 0.0 if whole else float(harm > 0.2))
                    row |= {"method": method, "setting": setting, "task": task, "length": 8, "index": index}
                    row |= {"seed": 0, "extras": False, "area": 1.0 - starved / 4, "low_rows": 0.0}
                    row |= {"score": float(harm < 1), "nats": 1 + harm / 7, "nats_dense": 1.0, "positions": 7}
                    row |= {"error": starved + seen, "mass_bound": 1 - starved / 4, "hit_rate": rng.normal()}
                    made.append(row | {"worst_head": -harm})
    return made


@pytest.fixture(scope="module")
def result(planted):
    return analyse.analysed(planted, seed=1)


def claims(result, scope=analyse.ALL):
    return result["foresight"][scope]["claims"]


def test_a_planted_correlation_is_found_within_settings(result):
    """Normal numbers with correlation r have Spearman's rho (6 / pi) asin(r / 2)."""
    wanted = 6 / np.pi * np.arcsin(HALF / 2)
    value, low, high = claims(result)["error"]["rho_within"]
    assert low < wanted < high and value == pytest.approx(wanted, abs=0.12) and high - low < 0.4


def test_a_claim_that_knows_the_setting_alone_foretells_no_prompt(result):
    mass = claims(result)["mass"]
    assert mass["auc"][1] > 0.6 and mass["rho"][1] > 0.3
    assert mass["auc_within"][0] == 0.5 and mass["rho_within"] is None


def test_noise_foretells_nothing_and_the_truth_upside_down_is_always_wrong(result):
    noise, wrong = claims(result)["hit_rate"], claims(result)["worst_head"]
    for measure in ("rho", "rho_within", "auc", "auc_within"):
        chance = 0.5 if "auc" in measure else 0.0
        assert noise[measure][1] < chance < noise[measure][2]
    assert wrong["auc"][0] == wrong["auc_within"][0] == 0 and wrong["rho_within"][0] == pytest.approx(-1)
    assert wrong["detected"]["0.05"][0] == 0


def test_the_curve_grows_with_the_false_alarms_and_holds_to_its_sample(planted, result):
    shares = [claims(result)["error"]["detected"][f"{share:g}"][0] for share in analyse.FALSE_ALARMS]
    assert shares == sorted(shares) and shares[0] > 0.05
    sparse = [row for row in planted if row["method"] == "xattention"]
    lost = np.array([row["score"] < 1 for row in sparse])
    error = np.array([row["error"] for row in sparse])
    best = max((error[lost] >= t).mean() for t in error if (error[~lost] >= t).mean() <= 0.1)
    assert shares[1] == pytest.approx(best, abs=1e-4)


def test_the_verdicts_alarms_are_counted_where_answers_are_lost_and_where_not(planted, result):
    sparse = [row for row in planted if row["method"] == "xattention"]
    kept = [row["alarm"] for row in sparse if row["score"] == 1]
    found = result["alarms"][0]
    assert found["lost"]["alarmed"][0] == 1 and found["lost"]["n"] == len(sparse) - len(kept)
    assert found["kept"]["alarmed"][0] == pytest.approx(np.mean(kept), abs=1e-4)
    assert found["controls"]["dense"] == {"n": 2 * PROMPTS, "alarms": 0}
    assert found["controls"][names.CONTROL] == {"n": 0, "alarms": 0}


def test_each_method_has_its_line(result):
    lines = {(line["method"], line["setting"]): line for line in result["methods"]}
    assert set(lines) == {*(("xattention", s) for s in SETTINGS), ("dense", 1.0), ("dense_kernel", 1.0)}
    assert lines["dense", 1.0]["lost"] == 0 == lines["dense", 1.0]["nats"]
    lost = [lines["xattention", setting]["lost"] for setting in SETTINGS]
    assert lost == sorted(lost) and lost[0] > 0 and sum(lost) == result["foresight"][analyse.ALL]["lost"]


def test_the_page_says_of_each_task_whether_random_rows_foretell(result):
    about = {"failed": 0, "rows": 64, "device": "cpu", "threads": 1, "dtype": "bfloat16", "seed": 1}
    about |= {
        "versions": {"torch": "2"},
        "git_commit": "0123456",
        "command": "run",
        "note": "Half came back.",
    }
    text = report_detection.page({**about, **result})
    assert (
        "Half came back." in text[0]
        and sum("it says more than chance about which prompt" in line for line in text) == 3
    )
    noise = claims(result)["hit_rate"]
    blind = {**result["foresight"][analyse.ALL], "claims": {"error": noise}}
    told = report_detection.findings({**result, "foresight": {analyse.ALL: blind}})
    assert sum(line.count("is **not** shown to tell") for line in told) == 2
    lost = result["foresight"]["vt"]["lost"]
    assert any(f" | vt, {lost} of {PROMPTS * len(SETTINGS)} lost |" in line for line in text)
    assert any(line.startswith("| no certificate: area read |") for line in text)


def test_the_page_names_the_tasks_where_known_places_tell_clearly_more():
    random, more, as_much = ({"auc": [middle, middle - 0.1, middle + 0.05]} for middle in (0.6, 0.8, 0.7))
    claims = {"error": random, "question_error": more, "needles_error": as_much}
    told = report_detection._places({"vt": {"claims": claims}, analyse.ALL: {"claims": claims}})
    assert "output error in the question's rows on vt. " in told and "needles" not in told


def test_a_drop_below_a_tenth_counts_once_and_not_twice(planted):
    """Half of the lost answers lose a twentieth of the score, the others all of it."""
    small = [row | {"score": max(row["score"], 0.95 * (row["index"] % 2))} for row in planted]
    found = analyse.analysed(small, seed=1)
    lost = [row for row in planted if row["score"] == 0]
    assert found["foresight"][analyse.ALL]["lost"] == len(lost)
    assert found["of_a_tenth"]["lost"] == sum(row["index"] % 2 == 0 for row in lost)


def test_too_few_lost_answers_give_no_curve_and_a_claim_that_rows_lack_is_left_out(planted):
    few = [row | {"score": 1.0} for row in planted]
    result = analyse.analysed(few, seed=1)
    found = result["foresight"]["vt"]
    assert result["thin"] == []
    assert found["lost"] == 0 and found["claims"]["error"]["auc"] is None
    assert found["claims"]["error"]["rho"] is not None and "needles_error" not in found["claims"]


def test_a_task_with_few_prompts_is_left_out_of_the_comparison_and_named(planted):
    cut = [row for row in planted if row["task"] == "vt" or row["index"] < analyse.FEWEST - 1]
    found = analyse.analysed(cut, seed=1)
    assert found["thin"] == ["relay at 8"] and set(found["foresight"]) == {"vt", analyse.ALL}
    with pytest.raises(InputError, match="measure more"):
        analyse.analysed([row for row in cut if row["task"] == "relay"], seed=1)


def test_what_dense_fails_is_left_out_and_a_prompt_without_dense_is_an_error(planted):
    unanswered = [row | {"score": 0.0} if row["index"] == 0 else row for row in planted]
    told, count = analyse.paired(unanswered)
    assert count == 2 and not any(row["index"] == 0 for row in told.rows)
    with pytest.raises(InputError, match=f"{2 * PROMPTS} prompts lack dense"):
        analyse.paired([row for row in planted if row["method"] != "dense"])


def test_files_of_several_processes_are_read_together(planted, tmp_path):
    for place in (0, 1):
        with rows.Appender(tmp_path / f"d.{place}.jsonl") as out:
            out.write({"command": "run", "device": "cpu", "rows": 4})
            for row in planted[place::2]:
                out.write(row)
    analyse.main([str(tmp_path / "d.jsonl"), "--out", str(tmp_path / "d.json")])
    text = (tmp_path / "d.json").read_text()
    assert f'"prefills": {len(planted)}' in text and '"device": "cpu"' in text
    with pytest.raises(InputError, match="hold no prefill"):
        analyse.main([str(tmp_path / "other.jsonl"), "--out", str(tmp_path / "d.json")])
