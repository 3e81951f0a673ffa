"""Profiles: the fit finds planted costs, and the right file is taken. Nothing is timed: a fake clock counts work."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ProfileError
from routesparse.engine.profiles import measure

CONFIG = RouterConfig(block_q=32, block_k=16, tail_tokens=32)
SHAPE = {"head_dim": 8, "heads": 4, "kv_heads": 2, "config": CONFIG}
CPU = torch.device("cpu")
LENGTHS = (512, 1_000, 1_536)
PLANTED = {"row": 3.0, "tile": 2.0, "column": 0.25, "dense_row": 40.0, "dense_tile": 1.5}


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")


@pytest.fixture
def fake_clock(monkeypatch):
    """Every call takes what the planted model says about the work that it was given."""
    taken = {}

    def sparse(q, k, v, plan, scale):
        live = ~plan.dense_rows
        tail = sum(
            -(-(min(plan.n_q, (i + 1) * 32)) // 16) for i in range(plan.query_blocks) if not live[0, 0, i]
        )
        taken["us"] = (
            PLANTED["row"] * live.sum() + PLANTED["tile"] * plan.block_count.sum()
            + PLANTED["column"] * plan.column_count.sum() + PLANTED["dense_tile"] * 4 * tail
        ).item()  # fmt: skip

    def dense(inputs, window):
        n = inputs.q.shape[2]
        tiles = sum(-(-min(n, (i + 1) * 32) // 16) for i in range(-(-n // 32)))
        taken["us"] = 4 * (PLANTED["dense_row"] + PLANTED["dense_tile"] * tiles)

    def probe(inputs, segment, *_):
        taken["us"] = 500.0 + 4 * 0.1 * segment.keys

    def clock(call, device, in_a_row=1):
        call()
        return dict.fromkeys(("best_us", "median_us", "p20_us", "p80_us"), taken["us"])

    monkeypatch.setattr(measure, "sparse_attention", sparse)
    monkeypatch.setattr(measure, "dense_attention", dense)
    monkeypatch.setattr(measure, "_probe_once", probe)
    monkeypatch.setattr(measure, "_time_us", clock)
    monkeypatch.setitem(measure.QUICK, "lengths", LENGTHS)


@pytest.mark.parametrize("mixes", [measure.FULL_MIXES, measure.QUICK_MIXES], ids=["full", "quick"])
def test_the_fit_finds_the_planted_costs(fake_clock, mixes):
    found = measure.measure(CPU, torch.float32, **SHAPE, lengths=LENGTHS, mixes=mixes)
    for name, value in PLANTED.items():
        assert getattr(found, f"{name}_us") == pytest.approx(value, rel=0.02), name
    assert found.probe_base_us == pytest.approx(500.0, rel=0.02)
    assert found.probe_key_us == pytest.approx(0.1, rel=0.02)
    assert found.median_error < 0.01


def test_costs_are_never_negative():
    g = np.random.default_rng(0)
    design = g.random((12, 3))
    assert (measure._fit(design, design @ np.array([1.0, 0.0, 2.0]) * g.uniform(0.5, 1.5, 12)) >= 0).all()


def test_progress_counts_every_measurement_to_the_end(fake_clock):
    seen = []
    found = measure.measure(
        CPU, torch.float32, **SHAPE, lengths=LENGTHS, progress=lambda *step: seen.append(step)
    )
    total = len(found.cells)
    assert seen == [("profile", done, total) for done in range(total + 1)]


def test_measuring_really_runs_dense_sparse_and_probe(monkeypatch):
    monkeypatch.setattr(measure, "REPEATS", 1)
    found = measure.measure(CPU, torch.float32, **SHAPE, lengths=(512,))
    assert {c["n"] for c in found.cells} == {512}
    assert all(0 < c["median_us"] <= c["p95_us"] for c in found.cells)
    work = {c["mix"]: (c["tiles"], c["columns"]) for c in found.cells if "tiles" in c}
    assert len(work) == len(found.cells) - 1, "all but the probe say what they read"
    assert all(tiles < work["dense"][0] for mix, (tiles, _) in work.items() if mix != "dense")
    assert (found.head_dim, found.groups, found.block_q, found.backend) == (8, 2, 32, "torch")


def test_auto_measures_once_and_takes_the_cached_profile_afterwards(fake_clock, monkeypatch):
    first = measure.profile_for("auto", CPU, torch.float32, **SHAPE)
    assert [p.stem for p in paths.profiles().iterdir()] == [first.name]

    def never(*_, **__):
        raise AssertionError("measured again")

    monkeypatch.setattr(measure, "measure", never)
    assert measure.profile_for("auto", CPU, torch.float32, **SHAPE) == first
    assert measure.profile_for(first.name, CPU, torch.float32, **SHAPE) == first
    assert (
        measure.profile_for(str(paths.profiles() / f"{first.name}.json"), CPU, torch.float32, **SHAPE)
        == first
    )


def test_auto_takes_a_shipped_profile_that_fits(fake_clock, monkeypatch):
    shipped = measure.measure(CPU, torch.float32, **SHAPE, lengths=LENGTHS)
    shipped.save(paths.DATA / "profiles")
    monkeypatch.setattr(measure, "measure", None)
    assert measure.profile_for("auto", CPU, torch.float32, **SHAPE) == shipped


@pytest.mark.parametrize(
    "change",
    [
        {"head_dim": 16},
        {"kv_heads": 4},
        {"config": replace(CONFIG, block_q=64)},
        {"config": replace(CONFIG, probe="pooled")},
        {"dtype": torch.bfloat16},
    ],
    ids=["head-size", "groups", "blocks", "probe", "dtype"],
)
def test_a_profile_of_another_shape_is_refused(fake_clock, change):
    made = measure.profile_for("auto", CPU, torch.float32, **SHAPE)
    other = {**SHAPE, **change}
    dtype = other.pop("dtype", torch.float32)
    with pytest.raises(
        ProfileError, match=r"was measured for .*; this run needs .*; run `routesparse profile`"
    ):
        measure.profile_for(made.name, CPU, dtype, **other)


def test_the_number_of_heads_does_not_bind_a_profile(fake_clock):
    made = measure.profile_for("auto", CPU, torch.float32, **SHAPE)
    assert measure.profile_for(made.name, CPU, torch.float32, **{**SHAPE, "heads": 8, "kv_heads": 4}) == made


def test_an_unknown_name_is_refused(fake_clock):
    with pytest.raises(ProfileError, match="no latency profile is called 'fast'; pass auto"):
        measure.profile_for("fast", CPU, torch.float32, **SHAPE)


def test_a_dtype_without_a_kernel_is_refused(fake_clock):
    with pytest.raises(ProfileError, match=r"dtype torch.float64 has no kernel"):
        measure.profile_for("auto", CPU, torch.float64, **SHAPE)
