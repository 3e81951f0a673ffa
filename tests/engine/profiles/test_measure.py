"""Profiles: the fit finds planted costs, and the right file is taken. Nothing is timed: a fake clock counts work."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine import paths
from routesparse.engine.calibrate import prompt_plans
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import begin
from routesparse.engine.errors import CalibrationError, ProfileError
from routesparse.engine.method.segments import split
from routesparse.engine.models.load import load_model
from routesparse.engine.profiles import measure, plans
from routesparse.engine.profiles.shape import AttentionShape

CONFIG = RouterConfig(block_q=32, block_k=16, tail_tokens=32)
CPU = torch.device("cpu")
SHAPE = AttentionShape(CPU, torch.float32, head_dim=8, heads=4, kv_heads=2)
LENGTHS = (512, 1_000, 1_536)
REALLY = measure.profile_for  # other tests have one that measures nothing (conftest.py)
PLANTED = {"row": 3.0, "tile": 2.0, "column": 0.25, "dense_row": 40.0, "dense_tile": 1.5}


@pytest.fixture(autouse=True)
def own_folders(home, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    monkeypatch.setattr(measure, "profile_for", REALLY)


@pytest.fixture
def fake_clock(monkeypatch):
    """Every call takes what the planted model says about the work that it was given, times ``factor``."""
    taken, attention = {"factor": 1.0}, measure.dense_attention

    def tiles(n, rows):
        return sum(-(-min(n, (i + 1) * 32) // 16) for i in rows)

    def sparse(q, k, v, plan, scale):
        whole = plan.dense_rows.all(-1)
        body = ~plan.dense_rows & ~whole[..., None]
        dense = sum(tiles(plan.n_q, np.flatnonzero(head)) for head in plan.dense_rows.flatten(0, 1).numpy())
        taken["us"] = taken["factor"] * (
            PLANTED["row"] * body.sum() + PLANTED["tile"] * plan.block_count.sum()
            + PLANTED["column"] * plan.column_count.sum() + PLANTED["dense_tile"] * dense
            + PLANTED["dense_row"] * whole.sum()
        ).item()  # fmt: skip

    def dense(inputs, window):
        n = inputs.q.shape[2]
        taken["us"] = 4 * (PLANTED["dense_row"] + PLANTED["dense_tile"] * tiles(n, range(-(-n // 32))))
        return attention(inputs, window)

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
    return taken


@pytest.mark.parametrize("count", [measure.FULL_PLANS, measure.QUICK_PLANS], ids=["full", "quick"])
def test_the_fit_finds_the_planted_costs(fake_clock, count):
    found = measure.measure(SHAPE, CONFIG, lengths=LENGTHS, plans=count)
    for name, value in PLANTED.items():
        assert getattr(found, f"{name}_us") == pytest.approx(value, rel=0.02), name
    assert found.probe_base_us == pytest.approx(500.0, rel=0.02)
    assert found.probe_key_us == pytest.approx(0.1, rel=0.02)
    assert found.median_error < 0.01 and found.validation_error < 0.01
    checked = [c for c in found.cells if c.get("fitted") is False]
    assert len(checked) == 2 * len(LENGTHS) and all(c["source"] == "synthetic" for c in checked)


def test_with_prompts_the_fit_is_on_the_routers_plans_and_checked_on_other_prompts(
    fake_clock, tiny_model, tmp_path, monkeypatch
):
    """Plans of prompts cost double: the fit follows them, and an error on the prompts of the check is seen."""
    loaded = load_model(str(tiny_model.save(tmp_path / "tiny")), device="cpu")
    config = replace(CONFIG, tau=0.1, gate_threshold=0.2)
    draw = np.random.default_rng(0).integers(0, 250, (5, 1_500)).tolist()
    factors, begun = [], prompt_plans.RoutingSession

    def session(config, *, profile, auditor):
        factors.append((fake_clock["factor"], profile))
        return begun(config, profile=profile, auditor=auditor)

    class Prompts(prompt_plans.ModelPrompts):
        def run(self, fitted, *arguments):
            fake_clock["factor"] = 2.0 if fitted else 3.0
            super().run(fitted, *arguments)

    monkeypatch.setattr(prompt_plans, "RoutingSession", session)
    prompts = Prompts(loaded, tuple(draw[:3]), tuple(draw[3:]))
    found = measure.measure(tiny_model.SHAPE, config, lengths=LENGTHS, plans=3, prompts=prompts)
    cells = [c for c in found.cells if c["mix"] == "recorded"]
    assert [c["fitted"] for c in cells] == [True] * 6 + [False] * 4, "two layers a prompt"
    assert found.plans == "recorded" and found.median_error < 0.05
    assert found.column_us == pytest.approx(PLANTED["column"], rel=0.02), "not that of the prompts' plans"
    # A third is missing where plans cost 3 and the profile says 2.
    assert found.validation_error == pytest.approx(1 / 3, abs=0.05)
    assert [f for f, _ in factors] == [2.0] * 3 + [3.0] * 2
    # The prompts of the check are routed by what was fitted on the others.
    assert factors[3][1].costs == found.costs != factors[0][1].costs


def test_prompts_are_windows_of_texts_that_are_in_one_half_alone(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_plans, "FIT_TOKENS", {"cpu": (300, 600)})
    monkeypatch.setattr(prompt_plans, "CHECK_TOKENS", {"cpu": (400, 5_000)})
    loaded = load_model(str(tiny_model.save(tmp_path / "tiny")), device="cpu")
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, letter in enumerate("abcd"):
        (folder / f"{i}.txt").write_text(letter * 700)
    found = prompt_plans.read_prompts(loaded, [folder], "cpu", seed=0)
    assert [len(p) for p in found.fit] == [300, 600] and [len(p) for p in found.check] == [400]
    assert not {p[-1] for p in found.fit} & {p[-1] for p in found.check}
    with pytest.raises(CalibrationError, match="pass longer ones"):
        monkeypatch.setattr(prompt_plans, "CHECK_TOKENS", {"cpu": (5_000,)})
        prompt_plans.read_prompts(loaded, [folder], "cpu", seed=0)


def test_synthetic_plans_are_those_of_the_library_on_inputs_with_structure():
    """The mix of a number is the same at every length, and what the floor keeps is neither little nor everything."""
    generator = torch.Generator().manual_seed(0)
    shares = []
    for n in (1_024, 2_048):
        inputs = plans.random_inputs(n, AttentionShape(CPU, torch.float32, 64, 8, 4), generator)
        segment = split(n, n, replace(CONFIG, segment_tokens=n))[-1]
        settings = LayerSettings(CONFIG, 0.9, measure.free_profile(CONFIG))
        cases = plans.synthetic(inputs, begin(inputs, segment, 0, settings), 6, 0)
        works = [plans.work_of(case) for case in cases]
        shares.append([(w.rows > 0, w.dense_heads, w.columns > 0) for w in works])
        full = 8 * segment.causal_tiles()
        assert all(0.03 * full < w.tiles < 0.7 * full for w in works)
        assert any(w.columns for w in works) and any(w.dense_heads for w in works)
        for case, work in zip(cases, works, strict=True):
            assert work.dense_heads == int(case.plan.dense_rows.all(-1).sum())
            assert work.tiles == int(case.plan.block_count[:, :, : segment.body_blocks].sum())
    assert shares[0] == shares[1]


def test_a_column_costs_no_less_than_its_share_of_a_block(fake_clock, monkeypatch):
    monkeypatch.setitem(PLANTED, "column", 0.0)
    found = measure.measure(SHAPE, CONFIG, lengths=LENGTHS)
    assert found.column_us == found.tile_us / CONFIG.block_k == pytest.approx(PLANTED["tile"] / 16, rel=0.02)


def test_measuring_really_runs_dense_sparse_and_probe():
    found = measure.measure(SHAPE, CONFIG, lengths=(512,))
    assert {c["n"] for c in found.cells} == {512}
    assert all(0 < c["median_us"] <= c["p95_us"] for c in found.cells)
    work = {c["mix"]: (c["tiles"], c["columns"]) for c in found.cells if "tiles" in c}
    assert len(work) == len(found.cells) - 1, "all but the probe say what they read"
    assert all(tiles < work["dense"][0] for mix, (tiles, _) in work.items() if mix != "dense")
    assert 0 <= found.validation_error < 10 and found.plans == "synthetic"
    assert (found.head_dim, found.groups, found.block_q, found.backend) == (8, 2, 32, "torch")


def test_auto_measures_once_and_takes_the_cached_profile_afterwards(fake_clock):
    assert measure.NamedProfile().known(SHAPE, CONFIG) is None
    first = measure.profile_for("auto", SHAPE, CONFIG)
    assert [p.stem for p in paths.profiles().iterdir()] == [first.name]
    assert measure.NamedProfile().known(SHAPE, CONFIG) == first

    fake_clock.clear()  # measuring again would fail
    assert measure.profile_for("auto", SHAPE, CONFIG) == first
    assert measure.profile_for(first.name, SHAPE, CONFIG) == first
    assert measure.profile_for(str(paths.profiles() / f"{first.name}.json"), SHAPE, CONFIG) == first


@pytest.mark.parametrize("damage", ["{", '{"schema": 1}', "other name"])
def test_auto_measures_again_where_the_cached_profile_can_not_be_read(fake_clock, damage):
    """One bad file in the home keeps nobody from analysing."""
    first = measure.profile_for("auto", SHAPE, CONFIG)
    file = paths.profiles() / f"{first.name}.json"
    good = file.read_text()
    file.write_text(good.replace(first.name, "other") if damage == "other name" else damage)
    assert measure.profile_for("auto", SHAPE, CONFIG).name == first.name
    assert file.read_text() != damage and first.name in file.read_text()
    file.write_text(damage if damage != "other name" else "{")
    with pytest.raises(ProfileError, match="is corrupt"):
        measure.profile_for(first.name, SHAPE, CONFIG)


def test_auto_takes_a_shipped_profile_that_fits(fake_clock):
    shipped = measure.measure(SHAPE, CONFIG, lengths=LENGTHS)
    shipped.save(paths.DATA / "profiles")
    fake_clock.clear()
    assert measure.profile_for("auto", SHAPE, CONFIG) == shipped


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
    made = measure.profile_for("auto", SHAPE, CONFIG)
    config = change.get("config", CONFIG)
    shape = SHAPE if "config" in change else replace(SHAPE, **change)
    with pytest.raises(ProfileError, match=r"was measured for .*; this run needs .*; run `routesparse"):
        measure.profile_for(made.name, shape, config)


def test_the_number_of_heads_does_not_bind_a_profile(fake_clock):
    made = measure.profile_for("auto", SHAPE, CONFIG)
    assert measure.profile_for(made.name, replace(SHAPE, heads=8, kv_heads=4), CONFIG) == made


def test_an_unknown_name_is_refused(fake_clock):
    with pytest.raises(ProfileError, match="no latency profile is called 'fast'; pass auto"):
        measure.profile_for("fast", SHAPE, CONFIG)


def test_a_dtype_without_a_kernel_is_refused(fake_clock):
    with pytest.raises(ProfileError, match=r"dtype torch.float64 has no kernel"):
        measure.profile_for("auto", replace(SHAPE, dtype=torch.float64), CONFIG)
