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
    tau=0.9,
    tau_layer=None,
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
    max_error=1.8,
    total_ms=100.0,
    dense_ms=96.0,
    planned_us=10_000.0,
    measured_us=30_000.0,
    top1_agreement=1.0,
    kl_nats=0.0021,
    same_tokens=24,
    continued_tokens=24,
    domain=None,
    loss_nats=None,
    loss_true=None,
    loss_bound=None,
    loss_fit=None,
    loss_alarm=None,
    loss_target=None,
)
LOSS = replace(
    GOOD,
    uncertified_layers=0,
    tau=0.25,
    tau_layer=0.7,
    loss_nats=0.0061,
    loss_bound=0.0098,
    domain="prose",
    loss_fit="prose",
    loss_alarm=False,
    loss_target=0.01,
)


def judged(**changes):
    found = verdict(replace(GOOD, **changes))
    return found.level, found.sentence


def test_green_needs_a_bound_of_the_loss_not_one_position():
    assert verdict(LOSS).level == "green"
    level, told = judged()
    assert level == "grey" and told.startswith("The loss over the prompt was not measured")


@pytest.mark.parametrize(
    ("same", "of", "level"), [(2, 24, "amber"), (11, 24, "amber"), (12, 24, "green"), (7, 7, "green")]
)
def test_a_text_that_soon_goes_on_otherwise_than_by_dense_is_told(same, of, level):
    found = verdict(replace(LOSS, same_tokens=same, continued_tokens=of))
    assert found.level == level and (f"after {same} of {of} tokens" in found.sentence) == (level == "amber")


def test_a_run_that_was_not_audited_is_grey_whatever_its_loss():
    for facts in (GOOD, LOSS):
        assert verdict(replace(facts, coverage=None, mean_error=None)).level == "grey"
    assert judged(mean_error=None, sparse_units=0)[0] == "green", "nothing was left out"


RULES = {
    "lost decisions": ({"stored_units": 43}, "red", "rows lost"),
    "lost layers": ({"stored_layers": 5}, "red", "rows lost"),
    "low bounds of heads": ({"uncertified_units": 46}, "red", "heads below mass bound"),
    "no more than a bound may be wrong about": ({"uncertified_units": 1}, "amber", "heads below mass bound"),
    "low bound of a layer": ({"uncertified_layers": 1}, "red", "layers below mass bound"),
    "kernel": ({"executed_error": 1e-3}, "red", "wrong kernel output"),
    "bound": ({"violations": 1}, "red", "bound violated"),
    "answer": ({"top1_agreement": 0.0, "kl_nats": 0.4}, "red", "next token differs"),
    "answer without KL": ({"top1_agreement": 0.0, "kl_nats": None}, "red", "next token differs"),
    "tie": ({"top1_agreement": 0.0, "kl_nats": TIE_KL}, "amber", "next token differs, tie"),
    "one of a batch": ({"top1_agreement": 0.75, "kl_nats": 0.4, "batch": 4}, "red", "next token differs"),
    "odds": ({"kl_nats": KL_LIMIT + 1e-6}, "amber", "odds moved"),
    "not checked": ({"top1_agreement": None, "kl_nats": None}, "amber", "answer not checked"),
    "error": ({"mean_error": ERROR_LIMIT + 0.01}, "amber", "large error"),
    "worst row": ({"max_error": 2.72}, "amber", "row far off"),
    "slower": ({"dense_ms": 92.0}, "amber", "slower than dense"),
    "all dense and slower": ({"dense_ms": 42.0, "sparse_units": 0}, "amber", "slower than dense"),
    "times": ({"measured_us": 120_000.0}, "amber", "times far off"),
    "not audited": ({"mean_error": None, "max_error": None}, "grey", "not audited"),
    "not replayed": ({"loss_nats": None}, "grey", "loss not predicted"),
    "parts early": ({"same_tokens": 2}, "amber", "text parts early"),
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
        (
            {"uncertified_units": 1},
            "1 of 64 heads has a bound on kept mass below τ 0.9: look at it before you trust this run",
        ),
        (
            {"uncertified_units": 46, "segments": 2},
            "46 of 64 units have a bound on kept mass below τ 0.9: do not trust this run",
        ),
        (
            {"uncertified_layers": 2, "tau_layer": 0.7},
            "2 of 8 layers have a bound on kept mass below τ layer 0.7: do not trust this run",
        ),
        (
            {"top1_agreement": 0.75, "batch": 4, "kl_nats": 0.4},
            "Another next token than by dense in 25.0 % of the",
        ),
        ({"max_error": 2.72}, "The worst audited row is off by 272 %: read it on the page Text"),
        ({"dense_ms": 42.0}, "Slower than dense here: 100 ms for 42 ms"),
        (
            {"measured_us": 120_000.0},
            "The layers took 12 times the predicted time: this machine was busy or ",
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
        {"violations": None, "coverage": None, "max_error": None},
        {"dense_ms": None, "planned_us": 0.0},
        {"planned_us": None, "measured_us": None},
        {"drift_alarm": None, "calibration": None},
    ],
)
def test_what_is_within_a_limit_or_not_measured_is_no_finding(changes):
    assert verdict(replace(LOSS, **changes)).level == "green"


def test_full_coverage_and_no_fallback_make_no_run_green():
    """They are properties of the bound and of the cost; the answer is unknown."""
    assert judged(coverage=1.0, top1_agreement=None, kl_nats=None)[0] == "amber"
    assert judged(coverage=1.0, dense_fallback_units=0, uncertified_units=46)[0] == "red"


def test_the_worst_finding_speaks_and_the_others_stay():
    found = verdict(replace(GOOD, drift_alarm=True, uncertified_units=46))
    assert [finding.level for finding in found.findings] == ["red", "amber", "grey", "green"]
    assert found.sentence.startswith("46 of 64") and found.short == "46 of 64 heads: bound < τ"
    assert "unlike" in found.findings[1].text and "as by dense" in found.findings[3].text


def test_where_nothing_was_left_out_there_is_nothing_to_check():
    assert judged(routed=False, units=0, sparse_units=0, top1_agreement=None)[0] == "green"
    assert judged(sparse_units=0, top1_agreement=None) == (
        "green",
        "Every head reads all keys: nothing was left out",
    )


def test_a_run_that_lost_rows_is_red_whatever_is_said_of_what_is_left():
    found = verdict(replace(GOOD, stored_units=63, executed_error=1.0))
    assert [finding.reason for finding in found.findings[:2]] == ["rows lost", "wrong kernel output"]
    assert found.short == "1 of 64 rows lost" and "kept mass bounded" not in [
        one.reason for one in found.findings
    ]
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
    found = verdict(replace(GOOD, kl_nats=kl)).findings[1]
    assert found.text == f"Next token as by dense, KL {shown}"
    assert found.short.startswith("as dense, KL ") and len(found.short) <= 27
    assert verdict(replace(GOOD, kl_nats=0.1869)).short == "odds moved, KL 0.1869 nats"


def test_a_record_has_the_verdict_of_its_facts(factory):
    made = factory.make_record(layers=2, heads=2, segments=1, tokens=2048, probe=False, hardness=0.2)
    assert of_record(made).level == "green"
    made = replace(made, run=replace(made.run, loss_nats=None))
    assert of_record(made).level == "grey"
    choices = tuple(replace(c, lower_mass=0.1) if c.pattern != "dense" else c for c in made.choices)
    missed = sum(c.pattern != "dense" for c in choices)
    assert of_record(replace(made, choices=choices)).sentence.startswith(
        f"{missed} of 4 heads have a bound on kept mass below τ 0.9"
    )


FORETOLD = "Predicted loss 0.0061 nats a token"
BOUNDED = f"{FORETOLD}, at most 0.0098 (95 %, fitted on prose)"
NOT_FITTED = f"{FORETOLD} by a stated factor; the model is not fitted, so no coverage"
HERE = "where plans began to lose answers"
LOSSES = {
    "within": ({}, "green", "loss bounded", f"{BOUNDED}: within the target 0.01"),
    "at the target": ({"loss_bound": 0.01}, "green", "loss bounded", "at most 0.0100"),
    "bound above": (
        {"loss_bound": 0.0128},
        "amber",
        "loss may be too high",
        f"{FORETOLD}, at most 0.0128 (95 %, fitted on prose): may be above the target 0.01",
    ),
    "bound just above": ({"loss_bound": 0.010004}, "amber", "loss may be too high", "at most 0.010004 (95 %"),
    "above": ({"loss_nats": 0.0102}, "red", "loss too high", "above the target 0.01"),
    "truth within": (
        {"loss_true": 0.0098},
        "green",
        "loss bounded",
        "true 0.0098 at the replayed rows: within",
    ),
    "truth beyond": ({"loss_true": 0.0099}, "amber", "loss may be too high", "beyond its bound"),
    "truth above": ({"loss_true": 0.0102}, "red", "loss too high", "true 0.0102 at the replayed rows: above"),
    "truth above, not fitted": ({"loss_fit": None, "loss_true": 0.02}, "red", "loss too high", "true 0.0200"),
    "no target": ({"loss_target": None}, "green", "loss bounded", BOUNDED),
    "no target, bound above": (
        {"loss_target": None, "loss_bound": 0.06},
        "amber",
        "loss may be too high",
        f"may be above 0.05, {HERE}",
    ),
    "no target, above": (
        {"loss_target": None, "loss_nats": 0.051, "loss_bound": 0.08},
        "red",
        "loss too high",
        f": above 0.05, {HERE}",
    ),
    "not fitted": ({"loss_fit": None, "loss_alarm": None}, "amber", "loss not fitted", NOT_FITTED),
    "not fitted, above": (
        {"loss_fit": None, "loss_nats": 0.02},
        "red",
        "loss too high",
        "so no coverage: above",
    ),
    "alarm": (
        {"loss_alarm": True},
        "amber",
        "loss unlike the fit",
        f"{FORETOLD}, but the replayed rows are unlike those of the fit (prose): no bound holds for them",
    ),
    "fitted without a bound": ({"loss_bound": None}, "amber", "loss unlike the fit", FORETOLD),
}


@pytest.mark.parametrize(("changes", "level", "reason", "told"), LOSSES.values(), ids=LOSSES)
def test_the_predicted_loss_leads_and_is_held_against_its_target(changes, level, reason, told):
    worst = verdict(replace(LOSS, **changes)).findings[0]
    assert (worst.level, worst.reason) == (level, reason)
    assert told in worst.text and len(worst.short) <= 27


def test_a_bound_of_the_loss_makes_up_for_a_dense_prefill_and_a_stated_factor_does_not():
    unchecked = replace(LOSS, top1_agreement=None, kl_nats=None)
    assert verdict(unchecked).level == "green"
    unfitted = verdict(replace(unchecked, loss_fit=None))
    assert [one.reason for one in unfitted.findings[:2]] == ["loss not fitted", "answer not checked"]
    changed = verdict(replace(LOSS, top1_agreement=0.0, kl_nats=0.4))
    assert [one.reason for one in changed.findings[:2]] == ["next token differs", "loss bounded"]


def test_low_mass_bounds_are_no_finding_of_a_priced_run_with_a_predicted_loss():
    low = {"uncertified_units": 46, "uncertified_layers": 3}
    found = verdict(replace(LOSS, **low))
    assert [one.reason for one in found.findings] == ["loss bounded", "next token as dense"]
    assert verdict(replace(LOSS, **low, loss_nats=None)).short == "3 of 8 layers: bound < τ"
    other = verdict(replace(LOSS, uncertified_units=46, uncertified_layers=None))
    assert other.level == "red", "another policy promises it of every head"


def test_no_verdict_says_certified_or_foretells_a_loss_where_nothing_was_left_out():
    told = verdict(replace(LOSS, sparse_units=0)).findings
    assert [one.reason for one in told] == ["all dense"]
    every = [verdict(replace(GOOD, **changes)) for changes, *_ in RULES.values()]
    every += [verdict(replace(LOSS, **changes)) for changes, *_ in LOSSES.values()]
    words = " ".join(f"{one.text} {one.short} {one.reason}" for found in every for one in found.findings)
    assert "certified" not in words.lower()


def test_every_finding_that_warns_has_a_reason_that_runs_can_be_found_by():
    """Reasons hold no number of the run, and each of WARNINGS occurs."""
    findings = [f for changes, _, _ in RULES.values() for f in verdict(replace(GOOD, **changes)).findings]
    findings += [f for changes, *_ in LOSSES.values() for f in verdict(replace(LOSS, **changes)).findings]
    assert {finding.reason for finding in findings if finding.level != "green"} == set(WARNINGS)


def test_a_true_loss_and_a_kind_that_nobody_named_are_told():
    found = verdict(replace(LOSS, domain="letters", loss_true=0.0071)).findings
    told = next(one.text for one in found if one.text.startswith("Predicted loss"))
    assert "(95 %, fitted on prose, the nearest kind); true 0.0071 at the replayed rows" in told
