"""Failures that only show while a prompt runs: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.latency import LatencyProfile

PROMPT = "the quick brown fox jumps over the lazy dog. " * 14


@pytest.fixture
def analyze(tmp_path, monkeypatch, tiny_model, run):
    """Analyse PROMPT with a model; returns (exit code, stdout, the error line, files left in the home folder)."""
    home = tmp_path / "home"
    monkeypatch.setenv("ROUTESPARSE_HOME", str(home))
    name = tiny_model.SHAPE.profile_name(RouterConfig())
    costs = (1.0, 1.0, 0.1, 1.0, 2.0, 50.0, 0.0, 0.01, 0.1)
    kept = LatencyProfile(name, "test", "torch", "float32", 16, 2, 1, 128, 64, *costs).save(home / "profiles")
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)

    def call(model: Path, *options: str) -> tuple[int, str, str, list[str]]:
        code, out, err = run("analyze", prompt, "--model", model, "--break-even", "0", *options)
        left = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path != kept]
        return code, out, err.splitlines()[-1], sorted(left)

    return call


def test_the_healthy_model_is_analysed(analyze, tiny_model, tmp_path):
    code, _, _, left = analyze(tiny_model.save(tmp_path / "model"))
    assert code == 0
    assert any(name.endswith("manifest.json") for name in left)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_nan_or_inf_in_a_layer_names_the_layer(analyze, tiny_model, tmp_path, poison):
    code, out, error, left = analyze(tiny_model.save(tmp_path / "model", poison=poison))
    assert (code, out, left) == (2, "", [])
    assert error.startswith("error: layer 1: NaN or Inf in the attention scores")


def test_a_budget_below_the_cost_of_the_probe(analyze, tiny_model, tmp_path):
    model = tiny_model.save(tmp_path / "model")
    code, out, error, left = analyze(model, "--policy", "budgeted", "--budget", "1us")
    assert (code, out, left) == (2, "", [])
    assert "below the probe's" in error
    assert "raise the budget" in error


def test_a_full_disk(analyze, tiny_model, tmp_path, monkeypatch):
    """fsync reports the full disk, as file systems with delayed allocation do."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, out, error, left = analyze(tiny_model.save(tmp_path / "model"))
    assert (code, out, left) == (2, "", [])
    assert "the disk is full" in error
