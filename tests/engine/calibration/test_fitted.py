"""A fit's factor, bound, shares and prices, by hand and by simulation; files that mean nothing. No model."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine import paths
from routesparse.engine.calibrate.fitting import Heads, fitted_from
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.calibration.choose import aimed, price_of
from routesparse.engine.calibration.fitted import MIXED, unfitted, upper_quantile
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method.families import library_hash

PRICES = (0.25, 0.5)
HEADER = {
    "model": "some",
    "revision": "abc",
    "dtype": "float32",
    "device": "cpu",
    "library_hash": library_hash(),
    "stamp": json.loads(json.dumps({k: v for k, v in stamp_of(RouterConfig()).items() if k != "price"})),
    "tokens": 2_048,
    "seed": 0,
    "git_commit": None,
    "command": "routesparse fit some",
}


def rows(domain, documents, ratio=lambda place: 1.5, kl=0.004, prices=PRICES):
    """One window of each document; at the second price it loses twice as much."""
    return [
        {
            "domain": domain,
            "document": f"{domain}-{place}",
            "document_sha256": f"{place:064x}",
            "cluster": f"{domain}-{place}",
            "index": 0,
            "sha256": f"{place:064x}",
            "split": "calibration",
            "price": price,
            "kl": kl * price / PRICES[0],
            "replayed": kl * price / PRICES[0] / ratio(place),
            "entropy": 2.0,
            "surprise": 2.5,
            "area": 0.4 - 0.2 * price,
        }
        for place in range(documents)
        for price in prices
    ]


def made(found, weights=None, name="some"):
    return fitted_from(found, [HEADER], Heads(weights, None), name=name, command="routesparse fit some")


def test_the_factor_is_the_mean_ratio_and_the_bound_the_documents_rank():
    fit = made(rows("code", 24, lambda place: 1.0 + place / 10) + rows("prose", 3))
    found = fit.predicted(0.01, "code", 0.95)
    ratios = 1.0 + np.arange(24) / 10
    assert found.nats == pytest.approx(0.01 * np.exp(np.log(ratios).mean()), rel=1e-3)
    assert found.bound == pytest.approx(0.01 * ratios[23], rel=1e-3)  # 24 of 25 parts are needed: the largest
    assert fit.predicted(0.01, "code", 0.9).bound == pytest.approx(0.01 * ratios[22], rel=1e-3)
    assert fit.predicted(0.01, "prose", 0.95).bound is None and fit.predicted(0.01, "prose", 0.7).bound > 0
    assert fit.predicted(-1e-9, "code", 0.95) == fitted.Prediction(0.0, 0.0)
    assert (fit.kind_of("code"), fit.kind_of("verse"), fit.kind_of(None)) == ("code", MIXED, MIXED)
    assert fit.domains == ["code", "prose"] and len(fit.of(MIXED)) == 27
    assert unfitted(0.02) == fitted.Prediction(0.03, None)


def test_a_document_has_one_part_however_many_windows_it_has():
    few, many = [np.array([float(place)]) for place in range(19)], [np.full(1_000, 50.0)]
    assert upper_quantile(few + many, 0.9) == 18.0
    assert upper_quantile(few + many, 0.95) == 50.0
    assert upper_quantile(few[:18], 0.95) is None


def test_the_bound_covers_new_documents_and_not_by_much():
    rng = np.random.default_rng(0)
    held = []
    for _ in range(4_000):
        level = rng.normal(0, 0.3, 40)
        groups = [rng.normal(mean, 0.2, rng.integers(1, 6)) for mean in level[1:]]
        bound = upper_quantile(groups, 0.9)
        held.append(rng.normal(level[0], 0.2) <= bound)
    assert 0.885 < np.mean(held) < 0.935


def test_a_prompt_of_another_kind_rings_and_one_of_the_same_seldom():
    rng = np.random.default_rng(1)
    found = {"code": rows("code", 60), "prose": rows("prose", 60)}
    for kind, level in (("code", 0.2), ("prose", 1.2)):
        for row, noise in zip(found[kind], np.repeat(rng.normal(0, 0.15, (60, 2)), 2, axis=0), strict=True):
            row["entropy"], row["surprise"] = np.exp(level + noise)
    fit = made(found["code"] + found["prose"])

    def rings(level, kind):
        points = np.exp(level + rng.normal(0, 0.15, (400, 2)))
        return float(np.mean([fit.is_unlike(*point, kind) for point in points]))

    assert rings(0.2, "code") < 0.08 > rings(0.2, MIXED) and rings(1.2, "prose") < 0.08
    assert rings(1.2, "code") > 0.99 and rings(0.7, MIXED) > 0.7
    few = made(rows("code", 11))
    assert not few.is_unlike(9.0, 9.0, "code") and few.nearest(9.0, 9.0) == MIXED  # too few to tell
    assert (fit.nearest(1.2, 1.3), fit.nearest(3.2, 3.4)) == ("code", "prose")


def test_heads_share_a_loss_by_what_they_lost_and_what_it_matters():
    fit = made(rows("code", 2), np.array([[1.0, 3.0], [0.0, 2.0]]))
    shares = fit.head_shares(np.array([[2.0, 1.0], [5.0, 0.5]]))
    assert shares == pytest.approx(np.array([[2.0, 3.0], [0.0, 1.0]]) / 6)
    assert (fit.head_shares(np.zeros((2, 2))) == 0).all()
    assert (
        fit.head_shares(np.zeros((2, 3))) is None
        and made(rows("code", 2)).head_shares(np.zeros((2, 2))) is None
    )


def test_the_price_of_a_target_is_the_one_that_reads_least():
    fit = made(rows("code", 40) + rows("prose", 40, kl=0.002))
    assert price_of(fit, "code", 0.02).price == 0.5 and price_of(fit, "code", 0.007).price == 0.25
    mixed = price_of(fit, MIXED, 0.01)
    assert (mixed.name, mixed.price, [part.domain for part in mixed.parts]) == (
        "mixed-kl-0.01",
        0.5,
        ["code", "prose"],
    )
    assert mixed.mismatch("abc", RouterConfig()) is None and "revision" in mixed.mismatch(
        "other", RouterConfig()
    )
    with pytest.raises(CalibrationError, match=r"no price keeps kl=0\.001"):
        price_of(fit, "code", 0.001)
    kept, missed = aimed(fit, "verse", 0.01), aimed(fit, "code", 0.001)
    assert (kept.price, kept.found) == (0.5, mixed) and kept.says == f"mixed-kl-0.01: {mixed.says}"
    assert (missed.price, missed.found) == (0.25, None) and "loss of 0.001 on code texts" in missed.says


def test_a_summary_has_every_kind_and_then_all_together():
    code, prose, mixed = made(rows("code", 24) + rows("prose", 8, kl=0.002)).summary()
    assert (code["kind"], code["documents"], code["windows"]) == ("code", 24, 24)
    assert code["kl"] == pytest.approx({0.25: 0.004, 0.5: 0.008}) and code["bound"] == pytest.approx(
        1.5, rel=1e-3
    )
    assert prose["bound"] is None and prose["factor"] == pytest.approx(1.5, rel=1e-3)
    assert (mixed["kind"], mixed["documents"]) == (MIXED, 32) and mixed["kl"][0.25] == pytest.approx(0.0035)


def test_a_fit_is_found_by_its_models_weights_one_made_here_first(home):
    fit = made(rows("code", 3), ((1.0, 1.0),))
    fit.save(paths.home() / "fits" / "some.json")
    assert fitted.load("some") == fit == fitted.of_model("abc") and fitted.of_model("other") is None
    assert "some" in fitted.known()
    shipped = [fitted.load(name) for name in fitted.known() if name != "some"]
    assert shipped and all(len(one.domains) == 3 and one.weights for one in shipped)
    assert len({one.model_revision for one in shipped}) == len(shipped)
    hidden = replace(fit, name="mine", model_revision=shipped[0].model_revision)
    hidden.save(paths.home() / "fits" / "mine.json")
    assert fitted.of_model(shipped[0].model_revision) == hidden
    with pytest.raises(CalibrationError, match="no fit 'none'"):
        fitted.load("none")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prices": [0.5, 0.25]}, "prices"),
        ({"windows": []}, "windows"),
        ({"weights": [[1.0], [1.0, 2.0]]}, r"weights\[1\]"),
        ({"kind": "tuned price"}, "kind"),
        ({"schema": 2}, "schema"),
        ({"tokens": 0}, "tokens"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_file_that_means_nothing_is_named(change, told, home):
    path = made(rows("code", 2)).save(paths.home() / "fits" / "some.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CalibrationError, match=told):
        fitted.load("some")


def test_a_window_of_another_length_or_kind_is_named(home):
    path = made(rows("code", 2)).save(paths.home() / "fits" / "some.json")
    whole = json.loads(path.read_text())
    for change, told in (
        ({"kl": [0.1]}, r"windows\[1\].kl"),
        ({"domain": MIXED}, "one kind"),
        ({"kl": [-1, 1]}, "kl"),
    ):
        broken = {**whole, "windows": [whole["windows"][0], whole["windows"][1] | change]}
        path.write_text(json.dumps(broken))
        with pytest.raises(CalibrationError, match=told):
            fitted.load("some")


def test_rows_without_a_replay_or_of_the_test_split_make_no_fit():
    plain = [{k: v for k, v in row.items() if k != "replayed"} for row in rows("code", 2)]
    with pytest.raises(CalibrationError, match="too short to be replayed"):
        made(plain)
    with pytest.raises(CalibrationError, match="test split"):
        made([row | {"split": "test"} for row in rows("code", 2)])
    with pytest.raises(CalibrationError, match="no window was measured at every price"):
        made(rows("code", 2)[::3])
    failed = [*rows("code", 3), {**rows("code", 1)[0], "failed": "memory", "cluster": "other"}]
    assert len(made(failed).windows) == 3
    assert math.isclose(made(failed).factor("code"), 1.5, rel_tol=1e-3)
