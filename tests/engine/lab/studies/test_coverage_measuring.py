"""The trust study's measuring: plan, lines, what failed. A tiny model on a CPU; no GPU."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.calibrate.prompts import Window
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import CalibrationError, InputError
from routesparse.engine.lab.shipped import ship_calibrations
from routesparse.engine.lab.studies.coverage import measure, plan
from routesparse.engine.lab.studies.coverage.data import load, measures
from routesparse.engine.lab.studies.coverage.plan import Planned
from routesparse.engine.method.latency import LatencyProfile

PROFILE = LatencyProfile("p", "d", "torch", "float32", 16, 2, 1, 128, 64, 10, 10, 1, 0, 20, 0, 0, 0, 0)


def planned(number, part="test", tokens=600, domain="prose"):
    ids = np.random.default_rng(number).integers(0, 250, tokens - 1)
    return Planned(
        number,
        part,
        Window(domain, f"d{number % 2}", f"sha{number % 2}", 0, (256, *ids.tolist())),
        f"c{number % 2}",
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_model):
    return tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def command(model, tmp_path):
    """Arguments of the measuring of some windows, and its output folder."""

    def make(windows, **options):
        plan.write_plan(tmp_path / "plan.jsonl.gz", {"command": "plan", "seed": 0}, windows)
        profile, out = PROFILE.save(tmp_path), tmp_path / "units.jsonl"
        values = {"plan": tmp_path / "plan.jsonl.gz", "profile": profile, "out": out, "model": model}
        return [f"--{name}={value}" for name, value in (values | options).items()], out

    return make


def test_a_plan_reads_as_it_was_written_and_a_damaged_window_is_refused(tmp_path):
    windows = [planned(0), planned(1, "A", 700)]
    plan.write_plan(tmp_path / "plan.gz", {"seed": 4}, windows)
    assert plan.read_plan(tmp_path / "plan.gz") == ({"seed": 4}, windows)
    lines = gzip.decompress((tmp_path / "plan.gz").read_bytes()).decode().splitlines()
    other = json.loads(lines[1]) | {"token_ids": json.loads(lines[2])["token_ids"]}
    (tmp_path / "plan.gz").write_bytes(gzip.compress(f"{lines[0]}\n{json.dumps(other)}\n".encode()))
    with pytest.raises(InputError, match=r"window 0 .* is damaged"):
        plan.read_plan(tmp_path / "plan.gz")


def test_a_plan_follows_the_order_of_need_and_mixes_domains(tmp_path, tiny_model, monkeypatch):
    """Short calibration windows, tests by length, long calibration windows; every domain early in each lot."""
    for name, value in {
        "BUCKETS": ((500, 700), (701, 900)), "TEST_LENGTHS": (500, 600), "LONG": 800, "TESTS": 4, "LONG_NEEDLES": 2,
        "FOLDS": {"A": (2, 1), "B": (4, 2)}, "NEEDLES": {},
    }.items():  # fmt: skip
        monkeypatch.setattr(plan, name, value)
    for domain in plan.TEST_DOMAINS:
        for split in ("calibration", "test"):
            folder = tmp_path / domain / split
            folder.mkdir(parents=True)
            for i in range(3):
                rng = np.random.default_rng([len(domain), len(split), i])
                (folder / f"{domain}{i}.txt").write_text("".join(rng.choice(list("abcdefg \n"), 3_000)))
    with pytest.raises(InputError, match=r"manifest\.jsonl is missing"):
        plan.plan(tiny_model.tokenizer(), tmp_path, seed=0, test_seed=3)
    manifest = [
        {"domain": d, "path": f"data/{d}/x/{d}{i}.txt", "source_repo": f"project/{min(i, 1)} (Lib/)"}
        for d in plan.TEST_DOMAINS
        for i in range(3)
    ]
    (tmp_path / "manifest.jsonl").write_text("\n".join(map(json.dumps, manifest)))
    windows = plan.plan(tiny_model.tokenizer(), tmp_path, seed=0, test_seed=3)
    assert [w.number for w in windows] == list(range(len(windows)))
    lots = [
        (w.part in "AB" and w.window.tokens <= 700, w.part == "test" and w.window.tokens) for w in windows
    ]
    assert [lot for i, lot in enumerate(lots) if lot not in lots[:i]] == [
        (True, False), (False, 500), (False, 600), (False, 800), (False, False),
    ]  # fmt: skip
    assert {w.window.domain for w in windows[:6]} == set(plan.DOMAINS)
    documents = {
        part: {w.window.document_sha256 for w in windows if w.part == part} for part in ("A", "B", "test")
    }
    assert not documents["A"] & documents["B"] and not documents["test"] & (documents["A"] | documents["B"])
    clusters = {d: {w.cluster for w in windows if w.window.domain == d} for d in plan.TEST_DOMAINS}
    assert clusters["code"] == clusters["docs"] == {"project/0", "project/1"}
    assert clusters["dialog"] == {f"dialog/dialog{i}" for i in range(3)}
    again = plan.plan(tiny_model.tokenizer(), tmp_path, seed=0, test_seed=4)
    moved = [(a.window == b.window) for a, b in zip(windows, again, strict=True) if a.part == "test"]
    assert not any(moved)
    assert [w for w in windows if w.part != "test"] == [w for w in again if w.part != "test"]


def test_tests_alone_are_windows_of_each_domain_whose_cluster_is_the_document(tmp_path, tiny_model):
    for domain in plan.TEST_DOMAINS:
        (tmp_path / domain / "test").mkdir(parents=True)
        for name in ("one", "two"):
            (tmp_path / domain / "test" / f"{name}.txt").write_text(f"{domain} {name} goes on. " * 60)
    found = plan.plan_tests(tiny_model.tokenizer(), tmp_path, 5, [256, 512], 3)
    assert len(found) == 4 * 2 * 3 and {one.part for one in found} == {"test"}
    assert {one.window.tokens for one in found} == {256, 512}
    assert {one.cluster for one in found} == {f"{d}/{n}" for d in plan.TEST_DOMAINS for n in ("one", "two")}


def test_numbers_keep_six_digits_and_nan_is_none():
    rows = [{"lower": np.float64(0.123456789), "mass_all": np.array([0.5, np.nan])}, {"chosen": 3}]
    assert measure.columns(rows) == {
        "lower": [0.123457, None], "mass_all": [[0.5, None], None], "chosen": [None, 3]
    }  # fmt: skip


def test_every_window_is_measured_or_recorded_with_the_reason_and_a_second_run_goes_on(command):
    """A window whose token the model does not know fails; the others don't notice."""
    broken = Planned(2, "test", Window("code", "d9", "sha9", 0, (256, *[999] * 599)), "c9")
    argv, out = command([planned(0, "A"), planned(1, "B"), broken, planned(3)])
    measure.main([*argv, "--limit-s=0"])
    with pytest.raises(InputError, match="no window was measured"):
        load([out])
    measure.main(argv)
    found = load([out])
    assert list(found.windows.sort_values("window")["window"]) == [0, 1, 3]
    assert list(found.missing["window"]) == [2] and "index out of range" in found.missing["reason"].iloc[0]
    assert set(found.windows["profile"]) == {"p"}
    told = found.provenance
    assert told["windows_by_device"] == {"cpu": 3} and told["runs"][0]["devices"]["cpu"]
    assert told["missing"][0]["windows"] == 1
    text = out.read_text()
    out.write_text(text[: text.rindex('"units"')])  # killed while it wrote the last one
    measure.main(argv)
    assert [row["window"] for _, row in read_lines(out) if "units" in row] == [0, 1, 3]


def test_under_one_price_every_rung_of_heads_and_layers_stands_beside_its_truth(command, tmp_path):
    """What a unit kept is a rung of it or dense, its own lambda is its floor's g, and heads make up the layer."""
    argv, out = command([planned(i, "A", 900) for i in range(2)])
    measure.main(argv)
    found = load([out])
    units, config = found.units, found.config
    assert (config.policy, config.tau_layer) == ("priced", 0.3)
    assert units["is_sparse"].any()
    for row in units.itertuples():
        sparse = [rung for rung in row.ladder if rung >= 0]
        assert row.chosen in (*sparse, row.dense)
        assert row.rung_true == [row.true_all[rung] for rung in sparse]
        assert len(row.rung_lower) == len(sparse) and row.rung_true == sorted(row.rung_true)
    sparse = units[units["is_sparse"]]
    assert (sparse["lower_joint"] <= sparse["lower"]).all() and (
        sparse["lower_joint"] < sparse["lower"]
    ).any()
    assert (sparse["lower_sabotaged"] >= sparse["lower"]).all() and sparse["lower_reused"].notna().all()
    for _, heads in units.groupby(["number", "layer", "segment"]):
        one = heads.iloc[0]
        assert len(one["layer_bounds"]) == config.max_tests and one["layer_true"] == pytest.approx(
            heads["true_mass"].mean(), abs=1e-4
        )
        assert one["layer_rung_true"] == sorted(one["layer_rung_true"])
    assert ((units["layer_lower"] <= units["layer_true"]) | units["layer_lower"].isna()).all()
    made = measures(*found.part("A"))
    assert len(made[0].residual) == (units[units["number"] == 0]["is_sparse"]).sum()
    assert [m.tokens for m in made] == [900] * 2 and made[0].truths[0].error is not None


def test_windows_of_another_seed_are_refused(command, tmp_path):
    argv, out = command([planned(0)])
    measure.main(argv)
    plan.write_plan(tmp_path / "other.gz", {}, [planned(1)])
    measure.main([*argv, "--seed=9", f"--out={tmp_path / 'more'}", f"--plan={tmp_path / 'other.gz'}"])
    with pytest.raises(InputError, match="the windows differ in config"):
        load([out, tmp_path / "more"])


def test_calibrations_are_not_shipped_from_windows_of_another_profile(command, tmp_path, model):
    argv, out = command([planned(0, "A"), planned(1, "B")])
    measure.main(argv)
    other = replace(PROFILE, name="other").save(tmp_path)
    with pytest.raises(CalibrationError, match="measured with profile p"):
        ship_calibrations.main(
            [f"--units={out}", f"--profile={other}", f"--model={model}", f"--out={tmp_path / 'made'}"]
        )


def test_the_device_text_is_what_the_devices_said():
    run = {"devices": {"cpu": "Some CPU", "cores": 4, "cuda": ["GPU B", "GPU B", "GPU A"]}}
    told = {"runs": [run], "windows_by_device": {"cuda": 5, "cpu": 3}}
    assert ship_calibrations.device_text(told) == "GPU A, GPU B: 5 windows; Some CPU: 3 windows"
