"""Fitting on fold A, delta on fold B, pooled and robust, on prompts with known residuals. No GPU, no model."""

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.calibrate.fit import (
    PromptMeasure,
    Recipe,
    Subject,
    UnitTruth,
    assemble,
    calibrate,
    fit_alpha,
    fit_error,
    fit_gate,
    held_out_prompts,
    largest_delta,
    make_bucket,
)
from routesparse.engine.calibrate.prompts import Document, cut, split_folds
from routesparse.engine.calibration.artifact import conformal_delta, load_calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method.latency import LatencyProfile

CONFIG = RouterConfig(policy="certified")
PROFILE = LatencyProfile("p", "d", "torch", "float32", 64, 2, 1, 128, 64, 10, 10, 1, 0, 8, 0, 0, 0, 0)
SUBJECT = Subject("demo", "0123", "float32", "cpu", PROFILE)


class Tokenizer:
    bos_token_id = 1


def document(name, tokens, domain="prose"):
    ids = np.arange(tokens, dtype=np.int32) + len(name)
    return Document(domain, name, name * 8, ids)


def measured(window, flattery, seed=0, errors=True):
    """4 heads x 3 candidates; the second is selected and its g exceeds g* by ``flattery`` per head."""
    rng = np.random.default_rng([seed, window.start, len(window.token_ids)])
    gate = np.tile(np.array([0.8, 0.95, 1.0], np.float32), (4, 1))
    u = rng.uniform(0.01, 0.05, (4, 3)).astype(np.float32)
    target = gate - np.array(flattery, np.float32).reshape(4, 1) * np.array([1, 1, 0], np.float32)
    error = np.stack([1.2 * (1 - target[:, c]) for c in range(3)], 1) if errors else None
    entropy = rng.uniform(1, 3, 4).astype(np.float32)
    truth = UnitTruth(0, 0, np.array([1, 1, 1, 2]), gate, target, u, entropy, error)
    return PromptMeasure(
        window.domain, window.document, window.document_sha256, window.sha256, window.tokens, 0.4,
        ("entropy 0", "local_band 0"), rng.normal(0, 1, 2), (truth,),
    )  # fmt: skip


def windows(documents, count=40, seed=0):
    return cut(documents, count, 600, 1_200, Tokenizer, seed)


def folds(domain="prose", count=40):
    a, b = split_folds([document(f"{domain}{i}", 9_000, domain) for i in range(6)], 0.3, 0)
    return windows(a, count), windows(b, count)


def flattering(amount):
    def measure(found, config, errors):
        return [measured(w, [amount, 0.0, -amount, 0.5], errors=errors) for w in found]

    return measure


# Prompts.


def test_folds_share_no_document_and_both_have_one():
    documents = [document(f"d{i}", 2_000) for i in range(5)]
    for share in (0.01, 0.3, 0.99):
        a, b = split_folds(documents, share, seed=3)
        assert a and b and not {d.name for d in a} & {d.name for d in b}
        assert len(a) + len(b) == 5


def test_the_same_text_under_two_names_is_refused():
    twin = replace(document("d0", 2_000), name="copy")
    with pytest.raises(CalibrationError, match="'d0' and 'copy' are the same text"):
        split_folds([document("d0", 2_000), twin], 0.5, 0)


def test_windows_take_documents_in_turn_and_spread_over_each():
    found = cut([document("long", 40_000), document("short", 3_000)], 20, 600, 1_200, Tokenizer, 0)
    starts = [w.start for w in found if w.document == "long"]
    assert len(starts) == 10 and starts == sorted(starts)
    assert max(starts) > 30_000 and np.diff(starts).min() > 0
    assert all(600 <= w.tokens <= 1_200 and w.token_ids[0] == 1 for w in found)


def test_a_short_document_gives_no_window_twice_and_a_too_short_one_none():
    found = cut([document("tiny", 300), document("small", 700)], 60, 600, 4_000, Tokenizer, 0)
    assert {w.document for w in found} == {"small"}
    assert len({w.sha256 for w in found}) == len(found) > 20
    assert all(600 <= w.tokens <= 701 for w in found)
    assert len(cut([document("exact", 599)], 9, 600, 4_000, Tokenizer, 0)) == 1
    with pytest.raises(CalibrationError, match="no document holds 600 tokens"):
        cut([document("tiny", 300)], 1, 600, 700, Tokenizer, 0)


# Fitting.


@pytest.mark.parametrize("flattery", [0.01, 0.07])
def test_lambda_moves_until_lambda_minus_delta_reaches_tau_and_stays_where_it_is_strict_enough(flattery):
    gate, fold = fit_gate(folds()[0], CONFIG, flattering(flattery))
    least = max(CONFIG.effective_gate_threshold, CONFIG.tau + flattery)
    assert least <= gate <= least + 0.002 and len(fold) == 40


def test_under_one_price_there_is_no_lambda_to_fit():
    """Fold A is measured once, however far g flatters, and however few prompts it has."""
    asked = []

    def measure(found, config, errors):
        asked.append((config, errors))
        return flattering(0.3)(found, config, errors)

    config = RouterConfig(policy="priced")
    gate, fold = fit_gate(folds(count=12)[0], config, measure)
    assert gate is None and len(fold) == 12 and asked == [(config, True)]


def test_too_small_a_fold_a_is_refused():
    told = r"fold A has 12 prompts with a sparse head \(of 12\), too few for q"
    with pytest.raises(CalibrationError, match=told):
        fit_gate(folds(count=12)[0], CONFIG, flattering(0.01))


def test_alpha_is_the_slope_of_the_flattery_on_the_disagreement():
    truths = [measured(w, [0, 0, 0, 0]) for w in folds()[0]]

    def with_target(target_of):
        return [replace(m, truths=(replace(m.truths[0], target=target_of(m.truths[0])),)) for m in truths]

    flattered = with_target(lambda truth: truth.gate_statistic - 0.7 * truth.disagreement)
    assert fit_alpha(flattered) == pytest.approx(0.7, abs=1e-4)
    assert fit_alpha(with_target(lambda truth: truth.gate_statistic + 0.1)) == 0.0


def test_only_selected_sparse_units_have_a_residual():
    m = measured(folds()[0][0], [0.01, 0.02, 0.03, 0.5])
    np.testing.assert_allclose(m.residual, [0.01, 0.02, 0.03], atol=1e-6)


# The artifact.


def made(**more):
    a, b = folds()
    recipe = Recipe("prose", "prose", CONFIG, ((600, 900), (901, 1_200)), **more)
    return calibrate((a, b), recipe, SUBJECT, flattering(0.02)), b


def test_delta_is_fold_bs_quantile_in_each_bucket():
    calibration, fold_b = made()
    for bucket in calibration.buckets:
        mine = [w for w in fold_b if bucket.min_tokens <= w.tokens <= bucket.max_tokens]
        assert bucket.prompts == len(mine) > 5
        found = [measured(w, [0.02, 0.0, -0.02, 0.5]).residual for w in mine]
        for q in (0.9, 0.95, 0.99):
            delta = conformal_delta(found, q)
            assert bucket.deltas[f"{q:g}"] == (pytest.approx(delta) if np.isfinite(delta) else None)
        assert bucket.units == 3 * len(mine)


def test_the_artifact_keeps_folds_prompts_drift_and_predictor_and_survives_its_file(tmp_path):
    calibration, fold_b = made()
    assert load_calibration(str(calibration.save(tmp_path))) == calibration
    assert calibration.overlap() == []
    assert calibration.folds["B"]["prompts"] == len(fold_b)
    assert {p["fold"] for p in calibration.prompts} == {"A", "B"} and len(calibration.prompts) == 80
    assert len(calibration.drift.distances) == 80
    assert calibration.predictor.fit["prompts"] == 40
    assert calibration.cost_model.dense == pytest.approx(0.8)


def test_a_document_in_both_folds_is_refused():
    a, _ = folds()
    with pytest.raises(CalibrationError, match="document is in both folds"):
        calibrate((a, a), Recipe("p", "p", CONFIG, ((600, 1_200),)), SUBJECT, flattering(0.02))


def test_robust_takes_the_largest_delta_over_the_domains_and_pooled_the_quantile_of_all():
    easy = [measured(w, [0.01] * 4) for w in folds("prose")[1]]
    hard = [measured(w, [0.05] * 4) for w in folds("code")[1]]
    assert largest_delta([*easy, *hard[:1]], 0.95, robust=False) == pytest.approx(0.01, abs=1e-6)
    assert largest_delta([*easy, *hard], 0.95, robust=True) == pytest.approx(0.05, abs=1e-6)
    assert make_bucket([*easy, *hard], 600, 1_200, True).deltas["0.95"] == pytest.approx(0.05, abs=1e-6)
    # Robust over a domain with too few prompts promises nothing.
    assert make_bucket([*easy, *hard[:5]], 600, 1_200, True).deltas["0.95"] is None


def test_without_output_errors_there_is_no_predictor():
    a, b = ([measured(w, [0.01] * 4, errors=False) for w in fold] for fold in folds())
    frozen = replace(CONFIG, gate_threshold=0.94)
    calibration = assemble(a, b, Recipe("p", "p", frozen, ((600, 1_200),)), SUBJECT, {})
    assert calibration.predictor is None


def test_fold_b_is_measured_under_the_frozen_alpha():
    """alpha is part of the policy that delta certifies: fitted on A, it must stand before B is routed."""
    seen = []

    def measure(found, config, errors):
        seen.append((errors, config.alpha))
        return [measured(w, [0.01, 0.02, 0.03, 0.0], errors=errors) for w in found]

    a, b = folds()
    made = calibrate((a, b), Recipe("x", "x", CONFIG, [(600, 1_200)]), SUBJECT, measure)
    assert made.alpha > 0 and made.alpha != CONFIG.alpha
    assert [alpha for errors, alpha in seen if not errors] == [made.alpha]


def test_the_predictors_quality_is_measured_on_other_documents():
    assert held_out_prompts(["b", "a", "b", "c", "d", "a"]).tolist() == [False] * 4 + [True, False]
    assert held_out_prompts(["a", "b", "a"]).tolist() == [False, True, False]
    assert not held_out_prompts(["a"] * 9).any()
    a, _ = folds()
    fitted = fit_error(list(flattering(0.01)(a, CONFIG, True)), 0)
    names = [w.document_sha256 for w in a]
    assert fitted.fit["held_out_prompts"] == sum(held_out_prompts(names)) > 0
    alone = [w for w in a if w.document_sha256 == names[0]]
    fitted = fit_error(list(flattering(0.01)(alone, CONFIG, True)), 0)
    assert fitted.fit["held_out_prompts"] == 0 and "r2" not in fitted.fit
