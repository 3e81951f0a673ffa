"""Compiling ahead: what is asked for, once, at which lengths, and what happens to errors. CPU."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
import torch

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.decide import ahead
from routesparse.engine.method.segments import split
from routesparse.engine.profiles.measure import free_settings
from routesparse.engine.runtime.vllm.batch import packed
from routesparse.kernels.compile_ahead import Compiler, Wanted, compile_kernel
from tests.stand_in_gpu import stand_in_gpu

triton = pytest.importorskip("triton")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def a_hopper(monkeypatch):
    """The GPU that meta tensors stand for."""
    stand_in_gpu(monkeypatch, 90)


def layer_at(
    tokens: int, rows: int | None = None, *, limit_us: float | None = None, head_dim: int = 64, **changes
) -> ahead.Layer:
    config = RouterConfig(segment_tokens=131_072, **changes)
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": head_dim}
    inputs = ahead.blank_inputs(tokens, **sizes, dtype=torch.bfloat16, rows=rows)
    segments = split(rows or tokens, tokens, config)
    return ahead.Layer(inputs, segments, free_settings(config), [limit_us] * len(segments))


def wanted_at(*given: int, **changes) -> list[Wanted]:
    return ahead.kernels_of(*layer_at(*given, **changes))


def quiet(*_: object) -> None:
    """Progress of which nobody is told."""


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
    ahead.ready(compiler, layer_at(65_536), quiet)
    monkeypatch.setattr(ahead, "kernels_of", lambda *_: pytest.fail("planned again"))
    ahead.ready(compiler, layer_at(65_536), quiet)
    compiler.stop()
    assert len(compiled) > 20


def test_a_plan_that_fails_is_said_and_fails_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(ahead, "kernels_of", no_plan)
    ahead.ready(Compiler(CPU, compile_kernel), layer_at(65_536), quiet)
    assert "kernels are not compiled ahead (NotImplementedError" in capsys.readouterr().err


def no_plan(*_: object) -> list[Wanted]:
    raise NotImplementedError("no such operation on meta tensors")


def test_what_is_covered_is_compiled_together_and_planned_at_no_length_up_to_the_longest(monkeypatch) -> None:
    """Whatever the price, which a kept loss moves; other layers, and longer or very short prompts, plan as before."""
    together, planned = [], []
    compiler = Compiler(CPU, lambda wanted: None)
    monkeypatch.setattr(ahead, "compile_together", lambda compiler, wanted, report: together.append(wanted))
    ahead.cover(compiler, [layer_at(*chunk) for chunk in ahead.chunks_of_every_kind(16_384, 8_192)], 16_000)
    (wanted,) = together
    assert len(wanted) == len({each.key for each in wanted}) > 50
    monkeypatch.setattr(ahead, "kernels_of", lambda inputs, *_: planned.append(inputs.k.shape[2]) or [])
    for layer in (layer_at(9_001), layer_at(16_000), layer_at(15_999, 700), layer_at(12_345, price=0.25)):
        ahead.ready(compiler, layer, quiet)
    assert planned == []
    others = [
        layer_at(16_385),
        layer_at(6_143),
        layer_at(9_002, head_dim=128),
        layer_at(9_003, limit_us=500.0),
    ]
    floors = layer_at(9_004, head_floors=((0.1,) * 8,))
    padded = layer_at(9_005)
    padded = padded._replace(inputs=replace(padded.inputs, key_start=torch.zeros(1)))
    for layer in (*others, floors, padded, layer_at(9_006, policy="certified")):
        ahead.ready(compiler, layer, quiet)
    assert planned == [16_385, 6_143, *range(9_002, 9_007)]


def test_a_plan_that_fails_covers_nothing_and_is_said_once(monkeypatch, capsys) -> None:
    compiler = Compiler(CPU, lambda wanted: pytest.fail("compiled"))
    monkeypatch.setattr(
        ahead, "kernels_of", lambda inputs, *_: [] if inputs.k.shape[2] == 16_384 else no_plan()
    )
    ahead.cover(compiler, [layer_at(16_384), layer_at(12_293), layer_at(12_283)], 16_384)
    assert not compiler.asked
    assert capsys.readouterr().err.count("kernels are not compiled ahead (NotImplementedError") == 1


@pytest.mark.parametrize("most_rows", [2_048, 8_192, 7_000, 131_072])
def test_chunks_of_every_kind_want_nearly_all_that_any_chunk_wants(most_rows) -> None:
    """As prefix caching and mixed batches make them: any rows behind any keys."""
    known = {w.key for chunk in ahead.chunks_of_every_kind(40_000, most_rows) for w in wanted_at(*chunk)}
    fits = [
        (keys, rows) for keys in (9_001, 13_880, 20_417, 32_768, 39_999) for rows in (700, 1_024, 6_925, keys)
    ]
    missed = {
        w.key for keys, rows in fits if rows <= most_rows for w in wanted_at(keys, rows) if w.key not in known
    }
    assert len(known) > 80 and len(missed) <= 2


@pytest.mark.parametrize("chunk", [(16_384,), (12_293,), (40_016, 8_192), (40_001, 8_187)])
@pytest.mark.parametrize("capability", [90, 100])
def test_rows_as_vllm_packs_them_want_the_same_kernels(monkeypatch, chunk, capability) -> None:
    stand_in_gpu(monkeypatch, capability)
    layer = layer_at(*chunk)
    q, k, v = (packed(x[0].transpose(0, 1)) for x in (layer.inputs.q, layer.inputs.k, layer.inputs.v))
    assert q.stride() != layer.inputs.q.stride()
    as_vllm = layer._replace(inputs=replace(layer.inputs, q=q, k=k, v=v))
    assert {w.key for w in ahead.kernels_of(*as_vllm)} == {w.key for w in ahead.kernels_of(*layer)}
