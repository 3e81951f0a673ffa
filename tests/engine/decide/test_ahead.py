"""Compiling ahead: what is asked for, once, at which lengths, and what happens to errors. CPU."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.decide import ahead
from routesparse.engine.method.segments import split
from routesparse.engine.profiles.measure import free_settings
from routesparse.kernels.compile_ahead import Compiler, Wanted, compile_kernel
from tests.stand_in_gpu import stand_in_gpu

triton = pytest.importorskip("triton")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def a_hopper(monkeypatch):
    """The GPU that meta tensors stand for."""
    stand_in_gpu(monkeypatch, 90)


def wanted_at(tokens: int, *, limit_us: float | None = None, head_dim: int = 64, **changes) -> list[Wanted]:
    config = RouterConfig(segment_tokens=131_072, **changes)
    inputs = ahead.blank_inputs(tokens, heads=8, kv_heads=2, head_dim=head_dim, dtype=torch.bfloat16)
    segments = split(tokens, tokens, config)
    settings = free_settings(config)
    return ahead.kernels_of(inputs, segments, settings, [limit_us] * len(segments))


def names(wanted: list[Wanted]) -> set[str]:
    return {each.kernel.__name__ for each in wanted}


@pytest.mark.parametrize("policy", ["priced", "certified"])
def test_a_layer_wants_every_kernel_of_a_decision_and_the_attention_first(policy) -> None:
    wanted = wanted_at(65_536, policy=policy)
    assert wanted[0].kernel.__name__ == "hopper_attention_kernel"
    assert {"block_lse_kernel", "block_score_kernel", "score_levels_kernel", "lower_kernel"} < names(wanted)
    route = {"route_kernel", "climb_kernel" if policy == "priced" else "certify_kernel"}
    assert names(wanted) & {"route_kernel", "climb_kernel", "certify_kernel"} == route
    assert len({each.key for each in wanted}) == len(wanted) > 20


def test_a_layer_too_large_for_one_program_climbs_by_tensors() -> None:
    assert not names(wanted_at(65_536, certificate_rows=4_096)) & {"route_kernel", "climb_kernel"}


def test_where_loads_are_measured_both_ways_are_wanted(monkeypatch) -> None:
    stand_in_gpu(monkeypatch, 100)
    attention = [w for w in wanted_at(65_536) if w.kernel.__name__ == "sparse_attention_kernel"]
    assert {each.options["DESCRIPTOR"] for each in attention} == {True, False}


@pytest.mark.parametrize(
    "changes",
    [
        {"probe": "pooled"},
        {"policy": "budgeted", "budget": LatencyBudget.parse("0.3"), "limit_us": 500.0},
        {"bound": "bernstein"},
        {"launch": "per_head"},
    ],
    ids=["pooled", "budgeted", "bernstein", "per-head"],
)
def test_other_settings_ask_without_reading_a_value(changes) -> None:
    assert "block_lse_kernel" in names(wanted_at(40_000, **changes)) or changes.get("probe") == "pooled"


def test_what_counts_as_one_compilation_is_one_to_triton(monkeypatch) -> None:
    """The binder gives the key under which Triton keeps what it compiled."""
    stand_in_gpu(monkeypatch, 90, compiles=True)

    def of_triton(wanted: Wanted) -> str:
        binder = wanted.kernel.device_caches[90][-1]
        _, specialization, options = binder(*wanted.args, **wanted.options)
        return f"{wanted.kernel.__name__}{id(wanted.kernel)} {specialization} {sorted(options.items())}"

    every = [w for tokens in (65_536, 131_072, 70_001, 100_003, 40_016) for w in wanted_at(tokens)]
    pairs = {(each.key, of_triton(each)) for each in every}
    assert len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs})


def test_a_launch_under_the_interpreter_or_on_a_gpu_is_no_question() -> None:
    from routesparse.kernels.common import variant
    from routesparse.kernels.row_mass.kernel import row_mass_kernel

    assert variant(row_mass_kernel, key_blocks=1_024) is row_mass_kernel
    generic = variant(row_mass_kernel, key_blocks=1_023)
    assert generic.do_not_specialize == ["key_blocks"] and variant(row_mass_kernel, key_blocks=7) is generic
    with pytest.raises(ValueError, match="has no argument keys"):
        variant(row_mass_kernel, keys=7)


def test_each_is_compiled_once_and_progress_ends_at_all() -> None:
    compiled: list[str] = []
    compiler = Compiler(CPU, lambda wanted: compiled.append(wanted.kernel.__name__))
    reports: list[tuple[str, int, int]] = []
    wanted = wanted_at(65_536)
    for _ in range(2):
        result = ahead.compile_together(compiler, wanted, lambda *report: reports.append(report))
    compiler.stop()
    assert sorted(compiled) == sorted(each.kernel.__name__ for each in wanted)
    assert (result.kernels, result.failed) == (len(wanted), 0)
    assert all(stage == "compile" and done <= total == len(wanted) for stage, done, total in reports)


def test_a_kernel_that_cannot_be_compiled_is_said_and_left(capsys) -> None:
    def fail(wanted: Wanted) -> None:
        if wanted.kernel.__name__ == "band_kernel":
            raise RuntimeError("no registers left")

    compiler = Compiler(CPU, fail)
    result = ahead.compile_together(compiler, wanted_at(65_536), lambda *_: None)
    compiler.stop()
    assert result.failed == 1
    assert "1 are left to their first launch (RuntimeError: no registers left)" in capsys.readouterr().err


def test_a_job_that_is_cancelled_stops_waiting_but_not_the_compiling() -> None:
    go_on = threading.Event()
    compiler = Compiler(CPU, lambda wanted: go_on.wait(30))

    def cancel(*_: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        ahead.compile_together(compiler, wanted_at(65_536), cancel)
    go_on.set()
    assert ahead.compile_together(compiler, wanted_at(65_536), lambda *_: None).failed == 0
    compiler.stop()


def test_a_process_that_ends_gives_up_what_waits(monkeypatch) -> None:
    # A thread a core: with as many cores as kernels nothing would wait.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    go_on, begun = threading.Event(), threading.Event()

    def compile(wanted: Wanted) -> None:
        begun.set()
        go_on.wait(30)

    compiler = Compiler(CPU, compile)
    futures = compiler.start(wanted_at(65_536))
    assert begun.wait(30)
    compiler.stop()
    go_on.set()
    assert any(future.cancelled() for future in futures)


def test_what_was_asked_for_is_not_planned_again(monkeypatch) -> None:
    compiled: list[Wanted] = []
    compiler = Compiler(CPU, compiled.append)
    config = RouterConfig(segment_tokens=131_072)
    inputs = ahead.blank_inputs(65_536, heads=8, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    settings = free_settings(config)
    asking = (inputs, split(65_536, 65_536, config), settings, [None], lambda *_: None)
    ahead.ready(compiler, *asking)
    monkeypatch.setattr(ahead, "kernels_of", lambda *_: pytest.fail("planned again"))
    ahead.ready(compiler, *asking)
    compiler.stop()
    assert len(compiled) > 20


def test_a_plan_that_fails_is_said_and_fails_nothing(monkeypatch, capsys) -> None:
    def fail(*_: object) -> list[Wanted]:
        raise NotImplementedError("no such operation on meta tensors")

    monkeypatch.setattr(ahead, "kernels_of", fail)
    config = RouterConfig(segment_tokens=131_072)
    inputs = ahead.blank_inputs(65_536, heads=8, kv_heads=2, head_dim=64, dtype=torch.bfloat16)
    settings = free_settings(config)
    ahead.ready(
        Compiler(CPU, compile_kernel),
        inputs,
        split(65_536, 65_536, config),
        settings,
        [None],
        lambda *_: None,
    )
    assert "kernels are not compiled ahead (NotImplementedError" in capsys.readouterr().err
