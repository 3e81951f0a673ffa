"""Failures that only show while a prompt runs: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from routesparse.engine.cli import main as cli

PROMPT = "the quick brown fox jumps over the lazy dog. " * 14


@pytest.fixture
def analyze(tmp_path, monkeypatch, capsys):
    """Analyse PROMPT with a model; returns (exit code, stdout, the error line, files left in the home folder)."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    profile = {
        "schema": 1, "name": "", "device": "test", "backend": "torch", "dtype": "float32", "head_dim": 16, "groups": 2,
        "threads": 1, "block_q": 128, "block_k": 64, "row_us": 1.0, "tile_us": 1.0, "column_us": 0.1,
        "dense_row_us": 1.0, "dense_tile_us": 2.0, "probe_base_us": 50.0, "probe_head_us": 0.0, "probe_key_us": 0.01,
        "median_error": 0.1, "cells": [], "versions": {}, "created_at": "", "command": "",
    }  # fmt: skip
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(PROMPT)

    def call(model: Path, *options: str) -> tuple[int, str, str, list[str]]:
        from routesparse.engine.config import RouterConfig
        from routesparse.engine.profiles import measure

        name = measure._key(torch.device("cpu"), torch.float32, 16, 2, RouterConfig())
        file = tmp_path / "home" / "profiles" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**profile, "name": name}))
        code = cli.main(["analyze", str(prompt), "--model", str(model), "--break-even", "0", *options])
        output = capsys.readouterr()
        left = [str(p.relative_to(tmp_path / "home")) for p in (tmp_path / "home").rglob("*") if p.is_file()]
        return code, output.out, output.err.splitlines()[-1], sorted(set(left) - {f"profiles/{name}.json"})

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
    code, out, error, left = analyze(
        tiny_model.save(tmp_path / "model"), "--policy", "budgeted", "--budget", "1us"
    )
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
