"""Scores of an evaluation as ``routesparse evaluate`` writes them: two lengths, two tasks, dense, ours, a control."""

from __future__ import annotations

from typing import Any


def estimate(value: float, half: float) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half, "p": 0.5}


def row(
    length: int, method: str, setting: float, change: float, area: float, half: float = 1.5, **more
) -> dict:
    still = method in ("dense", "dense_kernel")
    tasks = [
        {
            "task": task,
            "n": 24,
            "clusters": 24,
            "few_clusters": False,
            "score": 95.0 + change,
            "dense": 95.0,
            "difference": estimate(change, half),
            "harmed": 0 if still else 6,
        }
        for task in ("niah_single_2", "<b>vt")
    ]
    return {
        "suite": "ruler",
        "length": length,
        "method": method,
        "setting": setting,
        "extras": True,
        "n": 48,
        "clusters": 48,
        "few_clusters": False,
        "area": area,
        "select_ms": 3.0,
        "prefill_ms": 50.0,
        "medians": {"select_ms": 3.0, "prefill_ms": 50.0, "attention_ms": None, "fallback": None},
        "score": 95.0 + change,
        "difference": estimate(change, half),
        "harmed": 0 if still else 12,
        "gained": 0,
        "harmed_share": 0 if still else 0.25,
        "newcombe": None,
        "few_discordant": still,
        "gold_log_likelihood": estimate(-0.1, 0.05),
        "worst_decile": estimate(-1.0, 0.2),
        "tasks_where_dense_reaches_80": ["niah_single_2"],
        "by_task": tasks,
        **more,
    }


def scores() -> dict[str, Any]:
    rows = []
    for length in (16_384, 32_768):
        rows += [
            row(length, "dense", 1.0, 0.0, 1.0, 0.0),
            row(length, "routesparse", 0.5, -0.4, 0.12),
            row(length, "routesparse", 1.0, -2.0, 0.06),
            row(length, "routesparse_no_fallback", 0.5, -0.5, 0.11),
            row(length, "minference", 1.0, -6.0, 0.15),
            row(length, "window", 1024.0, -60.0, 0.04),
        ]
    about = {
        "suite": "ruler",
        "command": "routesparse evaluate ruler --n 24 --seed 23",
        "devices": ["NVIDIA H200"],
        "predicted_by_commits": ["0123456789abcdef"],
        "seed": 23,
        "n": 24,
        "model": "demo",
        "created_at": "2026-11-22T23:00:00+00:00",
        "git_commit": None,
        "versions": {"torch": "2"},
        "resamples": 10_000,
    }
    return {"about": about, "tasks": [], "suite": rows}
