"""``certify`` on functions and on single calls: broken ones, shapes, settings, what places the rows. CPU."""

import pytest
import torch

from routesparse.engine import certify, certify_attention
from routesparse.engine.certification.certify import Request
from routesparse.engine.errors import ConfigError, UnsupportedModelError
from tests.engine.certification import trials


def test_the_rows_of_a_function_are_placed_by_its_keys_and_the_call():
    def positions(seeds, **named):
        with certify(lambda q, k, v: trials.dense(q, k, v, 0), rows=8, **named) as report:
            for seed in seeds:
                report.attention(*trials.problem(seed, torch.float32))
        return [one.scores[0]["positions"].tolist() for one in report.passes]

    first = positions([0, 0])
    assert first == positions([0, 0]) and first[0] != first[1]
    assert first[0] != positions([1])[0] and first[0] != positions([0], seed=1)[0]


def test_a_report_keeps_its_last_passes_only():
    q, k, v = trials.problem(0, torch.float32)
    with certify(lambda q, k, v: trials.dense(q, k, v, 0), rows=8, keep=2) as report:
        for _ in range(4):
            report.attention(q, k, v)
    assert [one.layers for one in report.passes] == [(2,), (3,)]


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"rows": 1}, "rows is 1, it must be a whole number from 2"),
        ({"rows": 10**9}, "rows is 1000000000, it must be a whole number"),
        ({"rows": 24.0}, "rows is 24.0"),
        ({"seed": True}, "seed is true"),
        ({"block": (64, 0)}, r"block\[1\] is 0"),
        ({"block": 64}, "block is 64, it must be a list"),
        ({"confidence": 1.0}, "confidence is 1.0, it must be a number between 0 and 1"),
        ({"confidence": "0.95"}, "confidence is .0.95., it must be a"),
        ({"mass_level": float("nan")}, "mass_level is NaN"),
        ({"tolerance": 0.0}, "tolerance is 0.0, it must be a number above 0"),
        ({"tolerance": float("inf")}, "tolerance is Infinity"),
        ({"every": 0}, "every is 0"),
        ({"every": 1.5}, "every is 1.5"),
        ({"keep": 0}, "keep is 0, it must be a whole number from 1"),
    ],
)
def test_settings_out_of_range_are_refused(named, told):
    with pytest.raises(ConfigError, match=told), certify(trials.dense, **named):
        pass
    with pytest.raises(UnsupportedModelError, match="neither a model nor"), certify(3):
        pass


def test_a_function_is_certified_call_by_call():
    def half(q, k, v, scale=None):
        return 0.5 * trials.dense(q, k, v, 0)

    q, k, v = trials.problem(0, torch.float32)
    with certify(half, rows=8, tolerance=0.6) as report:
        report.attention(q, k, v)
        report.attention(q, k, v)
    assert [one.name for one in report.passes] == ["half", "half"]
    assert report.run.mean_error == pytest.approx(0.5, abs=1e-4)
    assert report.verdict.level == "differs"  # 32 rows can't promise 1 % at 95 %
    with certify(half, rows=128, tolerance=0.6) as report:
        report.attention(q, k, v)
    assert report.verdict.level == "within" and "half: within" in str(report)


@pytest.mark.parametrize("case", trials.CASES)
def test_broken_attention_is_found_and_whole_attention_is_not_accused(case):
    """Ten trials of each; 200 are counted in data/results/CERTIFY.md."""
    found = trials.counted(case, 10)
    if found["whole"]:
        assert found["alarms"] == 0 and found["spoiled_share"] == 0.0
    else:
        assert found["claimed"] >= 3 and found["claimed_alarms"] >= found["claimed"] - 1


def test_the_record_is_json_with_claims_of_run_layers_and_heads():
    q, k, v = trials.problem(0, torch.float32)
    out = trials.dense(q, k, v, 0)
    told = certify_attention(q, k, v, out, request=Request(rows=8), layer=3).as_dict()
    assert told["verdict"]["passed"] is True and told["layers"][0]["layer"] == 3
    assert len(told["heads"]) == 4 and told["run"]["rows"] == 32 and told["run"]["mass"] is None


def test_shapes_that_do_not_fit_are_refused():
    q, k, v = trials.problem(0, torch.float32)
    others = {
        "output": (q, k, v, q[:, :, :5]),
        "dimensions": (q[0], k[0], v[0], q[0]),
        "batch": (q.repeat(2, 1, 1, 1), k, v, q.repeat(2, 1, 1, 1)),
        "groups": (q[:, :3], k, v, q[:, :3]),
        "head size": (q, k[..., :16], v, q),
        "values": (q, k, v[:, :, 1:], q),
        "keys": (q, k[:, :, 1:], v[:, :, 1:], q),
    }
    for wrong in others.values():
        with pytest.raises(ConfigError, match="do not fit"):
            certify_attention(*wrong)
