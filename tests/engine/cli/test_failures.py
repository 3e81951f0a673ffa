"""Failures that only show while a prompt runs: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import os
from unittest.mock import Mock

import pytest


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    return tiny_model.save_profiled(tmp_path_factory.mktemp("failures"))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_nan_or_inf_in_a_layer_names_the_layer(refused, home, tiny_model, tmp_path, prompt, poison):
    sick = tiny_model.save(tmp_path / "sick", poison=poison)
    told = refused("analyze", prompt, "--model", sick, "--break-even", "0")
    assert told.startswith("error: layer 1: NaN or Inf in the attention scores")


def test_a_budget_below_the_cost_of_the_probe(refused, model, home, prompt):
    limit = ("--policy", "budgeted", "--budget", "1us")
    told = refused("analyze", prompt, "--model", model, "--break-even", "0", *limit)
    assert "below the probe's" in told and "raise the budget" in told


def test_a_full_disk(refused, run, model, home, prompt, monkeypatch):
    """fsync reports the full disk, as file systems with delayed allocation do."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", Mock(side_effect=full))
        assert "the disk is full" in refused("analyze", prompt, "--model", model, "--break-even", "0")
    assert run("analyze", prompt, "--model", model, "--break-even", "0")[0] == 0
    assert list(home.glob("spool/*/manifest.json"))
