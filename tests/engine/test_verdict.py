"""The rules of the verdict: each one alone, the worst speaks, and nothing but evidence makes a run green. No GPU."""

from dataclasses import replace

import pytest

from routesparse.engine.verdict import ERROR_LIMIT, KL_LIMIT, TIE_KL, WARNINGS, Facts, of_record, verdict

GOOD = Facts(
    routed=True,
    batch=1,
    segments=1,
    layers=8,
    units=64,
    stored_units=64,
    stored_layers=8,
    sparse_units=60,
    uncertified_units=0,
    uncertified_layers=None,
    confidence=0.95,
    dense_fallback_units=0,
    fallback_limit=0.25,
    calibration="prose",
    calibration_mismatch=None,
    drift_alarm=False,
    dtype="float32",
    coverage=1.0,
    violations=0,
    executed_error=1e-6,
    mean_error=0.04,
    top1_agreement=1.0,
    kl_nats=0.0021,
)


def judged(**changes):
    found = verdict(replace(GOOD, **changes))
    return found.level, found.sentence


def test_a_run_whose_answer_was_checked_is_green():
    assert judged() == ("green", "Next token as by dense, KL 0.0021 nats")


def test_a_run_that_was_not_audited_says_so():
    told = [finding.text for finding in verdict(replace(GOOD, coverage=None, mean_error=None)).findings]
    assert told[-1].endswith("; not audited, so true mass and output error are unknown")
    assert not any("not audited" in finding.text for finding in verdict(GOOD).findings)


RULES = {
    "lost decisions": ({"stored_units": 43}, "red", "rows lost"),
    "lost layers": ({"stored_layers": 5}, "red", "rows lost"),
    "uncertified heads": ({"uncertified_units": 46}, "red", "uncertified heads"),
    "no more than a certificate may be wrong about": ({"uncertified_units": 1}, "amber", "uncertified heads"),
    "uncertified layer": ({"uncertified_layers": 1}, "red", "uncertified layers"),
    "kernel": ({"executed_error": 1e-3}, "red", "wrong kernel output"),
    "bound": ({"violations": 1}, "red", "bound violated"),
    "answer": ({"top1_agreement": 0.0, "kl_nats": 0.4}, "red", "next token differs"),
    "answer without KL": ({"top1_agreement": 0.0, "kl_nats": None}, "red", "next token differs"),
    "tie": ({"top1_agreement": 0.0, "kl_nats": TIE_KL}, "amber", "next token differs, tie"),
    "one of a batch": ({"top1_agreement": 0.75, "kl_nats": 0.4, "batch": 4}, "red", "next token differs"),
    "odds": ({"kl_nats": KL_LIMIT + 1e-6}, "amber", "odds moved"),
    "not checked": ({"top1_agreement": None, "kl_nats": None}, "amber", "answer not checked"),
    "error": ({"mean_error": ERROR_LIMIT + 0.01}, "amber", "large error"),
    "coverage": ({"coverage": 0.949}, "amber", "low coverage"),
    "drift": ({"drift_alarm": True}, "amber", "drift alarm"),
    "forced": ({"calibration_mismatch": "model"}, "amber", "calibration does not fit"),
    "fallbacks": ({"dense_fallback_units": 17}, "amber", "speedup lost to fallback"),
}


@pytest.mark.parametrize(("changes", "level", "reason"), RULES.values(), ids=RULES)
def test_each_rule_alone(changes, level, reason):
    worst = verdict(replace(GOOD, **changes)).findings[0]
    assert (worst.level, worst.reason) == (level, reason)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"stored_units": 0, "stored_layers": 5},
            "Rows of this run were lost: 0 of its 64 decisions and 5 of its 8 layers are stored, and its pages show "
            "only these. Restore a backup, or run the prompt again",
        ),
        ({"uncertified_units": 1}, "1 of 64 heads ran uncertified: look at it before you trust this run"),
        ({"uncertified_units": 46, "segments": 2}, "46 of 64 units ran uncertified: do not trust this run"),
        (
            {"top1_agreement": 0.75, "batch": 4, "kl_nats": 0.4},
            "Another next token than by dense in 25.0 % of the",
        ),
        ({"coverage": 0.949}, "Only 94.9 % of the audited certificates held, 95.0 % should"),
    ],
)
def test_a_sentence_has_the_numbers_of_the_run(changes, told):
    assert told in judged(**changes)[1]


@pytest.mark.parametrize(
    "changes",
    [
        {"dense_fallback_units": 16},
        {"coverage": 0.95},
        {"kl_nats": KL_LIMIT},
        {"executed_error": None},
        {"violations": None, "coverage": None, "mean_error": None},
        {"drift_alarm": None, "calibration": None},
    ],
)
def test_what_is_within_a_limit_or_not_measured_is_no_finding(changes):
    assert judged(**changes)[0] == "green"


def test_full_coverage_and_no_fallback_make_no_run_green():
    """They are properties of the bound and of the cost; the answer is unknown."""
    assert judged(coverage=1.0, top1_agreement=None, kl_nats=None)[0] == "amber"
    assert judged(coverage=1.0, dense_fallback_units=0, uncertified_units=46)[0] == "red"


def test_the_worst_finding_speaks_and_the_others_stay():
    found = verdict(replace(GOOD, drift_alarm=True, uncertified_units=46))
    assert [finding.level for finding in found.findings] == ["red", "amber", "green"]
    assert found.sentence.startswith("46 of 64") and found.short == "46 of 64 heads uncertified"
    assert "unlike" in found.findings[1].text and "as by dense" in found.findings[2].text


def test_where_nothing_was_left_out_there_is_nothing_to_check():
    assert judged(routed=False, units=0, sparse_units=0, top1_agreement=None)[0] == "green"
    assert judged(sparse_units=0, top1_agreement=None) == (
        "green",
        "Every head reads all keys: nothing was left out",
    )


def test_a_run_that_lost_rows_is_red_whatever_is_said_of_what_is_left():
    found = verdict(replace(GOOD, stored_units=63, executed_error=1.0))
    assert [finding.reason for finding in found.findings[:2]] == ["rows lost", "wrong kernel output"]
    assert found.short == "1 of 64 rows lost" and "certified" not in [one.reason for one in found.findings]
    assert verdict(replace(GOOD, stored_layers=7)).short == "1 of 8 layers lost"
    assert judged(routed=False, stored_units=0, stored_layers=0)[0] == "green", (
        "dense ran, which has no decisions"
    )


@pytest.mark.parametrize(
    ("kl", "shown"),
    [
        (0.0, "below 0.0001 nats"),
        (0.00004, "below 0.0001 nats"),
        (0.0003, "0.0003 nats"),
        (0.05, "0.0500 nats"),
    ],
)
def test_a_kl_has_digits_enough_for_the_limits_and_fits_a_column(kl, shown):
    found = verdict(replace(GOOD, kl_nats=kl)).findings[0]
    assert found.text == f"Next token as by dense, KL {shown}"
    assert found.short.startswith("as dense, KL ") and len(found.short) <= 27


def test_a_record_has_the_verdict_of_its_facts(factory):
    made = factory.make_record(layers=2, heads=2, segments=1, tokens=2048, probe=False, hardness=0.2)
    assert of_record(made).level == "green"
    choices = tuple(replace(c, lower_mass=0.1) if c.pattern != "dense" else c for c in made.choices)
    missed = sum(c.pattern != "dense" for c in choices)
    assert of_record(replace(made, choices=choices)).sentence.startswith(
        f"{missed} of 4 heads ran uncertified"
    )


def test_every_finding_that_warns_has_a_reason_that_runs_can_be_found_by():
    """Reasons hold no number of the run, and each of WARNINGS occurs."""
    findings = [f for changes, _, _ in RULES.values() for f in verdict(replace(GOOD, **changes)).findings]
    assert {finding.reason for finding in findings if finding.level != "green"} == set(WARNINGS)
