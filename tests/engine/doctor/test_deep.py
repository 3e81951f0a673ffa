"""``routesparse doctor --deep``: a right model passes with figures, a wrong kernel and a poisoned model do not. CPU."""

from __future__ import annotations

import json

import pytest

from routesparse.engine.doctor import checks as doctor
from routesparse.engine.doctor import deep as deep_check
from routesparse.engine.models.load import load_model

pytestmark = pytest.mark.usefixtures("home")


def test_the_bundled_model_agrees_with_the_oracle_in_three_layers():
    found, windowed = deep_check.check_model(load_model("demo"), seed=1)
    assert len(found) == deep_check.LAYERS and not windowed
    assert all(check.right and 0.0 < check.error < 1e-5 for check in found)
    assert any(check.density < 0.9 for check in found)  # sparse attention was compared, not dense with itself
    assert all(check.tokens == deep_check.TOKENS and check.routed_ms > 0 < check.dense_ms for check in found)


def test_a_kernel_that_is_wrong_in_one_head_is_a_problem(run, monkeypatch):
    execute = deep_check.execute

    def wrong(*arguments):
        out, finite = execute(*arguments)
        out[:, 1] *= 1.001
        return out, finite

    monkeypatch.setattr(deep_check, "execute", wrong)
    code, out, _ = run("doctor", "--deep", "--json")
    checks = [check for check in json.loads(out)["checks"] if check["name"] == "oracle"]
    assert code == 1 and [check["status"] for check in checks[:3]] == ["problem"] * 3
    assert "do not trust runs of this model here" in checks[0]["detail"]


def test_a_poisoned_model_is_a_problem_that_names_it(tiny_model, tmp_path):
    folder = tiny_model.save(tmp_path / "poisoned", poison=float("nan"))
    (check,) = (check for check in doctor.checks(str(folder), deep=True) if check.name == "oracle")
    assert check.status == "problem" and "NaN or Inf" in check.detail
