"""Settings are refused before any work: no model is loaded, nothing measured, nothing written. CPU, a tiny model."""

from __future__ import annotations

import errno
import os
import time
from unittest.mock import Mock

import pytest

from routesparse.engine import analyze
from routesparse.engine.cli.checks import writable_folder
from routesparse.engine.prompts.text import MAX_LABEL
from routesparse.engine.store import bundle
from routesparse.engine.store.bundle import read_bundle

SEED = "it must be a whole number from 0 to 9,223,372,036,854,775,807"
LATIN = os.fsdecode(b"caf\xe9")


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model, beside the folder of profiles that the fixture ``home`` wants."""
    root = tmp_path_factory.mktemp("settings")
    (root / "profiles").mkdir()
    return tiny_model.save(root / "tiny")


@pytest.fixture
def refused(refused, home, monkeypatch):
    """A command that must end before work."""
    began = Mock(side_effect=AssertionError("the command began to work"))
    for module in ("models.load.load_model", "profiles.measure.measure", "models.load.shape_of"):
        monkeypatch.setattr(f"routesparse.engine.{module}", began)
    return refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "fast"], "budget 'fast' is not understood; pass a fraction like 0.25"),
        (["--tau", "nan"], "tau_layer is NaN, it must be a number from 0 to 1"),
        (["--tau", "high"], "'--tau'"),
        (["--policy", "best"], "'best' is not one of 'priced', 'certified', 'budgeted', 'strict'"),
        (["--calibration", "poetry"], "no calibration 'poetry'; bundled ones: "),
        (["--profile", "abacus"], "no latency profile is called 'abacus'; pass auto"),
        (["--out", __file__], "is a file; pass a folder"),
        (["--frobnicate"], "No such option"),
        (["--domain", ""], "domain '' is no label; use 1 to 120 printable characters"),
        (["--domain", "x" * 5_000], "domain of 5,000 characters is no label"),
        (["--domain", "a\n\x1b[31m"], "domain 'a\\n\\x1b[31m' is no label"),
        (["--domain", LATIN], "is no label"),
        (["--seed", str(2**63)], f"seed is {2**63}, {SEED}"),
        (["--beta", "1"], "beta 1 needs an error predictor"),
        (["--segment", "128"], "segment 128 tokens is too short to be probed; use at least 768"),
        (["--out", "/proc/nowhere"], "/proc/nowhere is not writable"),
        (["--out", "y" * 300], "is not writable (File name too long); pass another"),
        (["--profile", "x" * 5_000], "is too long; pass a shorter one"),
        (["--calibration", "x" * 5_000], "xxx… can't be read (File name too long)"),
        (["--model", "x" * 5_000], "xxx…' is no folder"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_prompt_is_not_begun_with_wrong_settings(refused, model, prompt, options, message):
    assert message in refused("analyze", prompt, "--model", model, *options)


@pytest.mark.parametrize(
    "shape",
    ["8,2,0", "4,2,3", "8,2,99999999999", "9999,1,64", "²,1,64", "9" * 5_000 + ",1,64", "8,0,64", "6,4,64"],
    ids=lambda shape: shape[:20],
)
def test_a_shape_is_not_measured_that_no_model_has(refused, shape):
    assert "pass query heads (at most 512), KV heads and head size (4 to 512)" in refused(
        "profile", "--quick", "--shape", shape
    )


def test_a_profile_is_not_measured_where_it_can_t_be_written(refused):
    given = ("profile", "--quick", "--shape", "2,1,16", "--out", "/proc/nowhere")
    assert "/proc/nowhere is not writable" in refused(*given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "/proc/nowhere/x.json"], "/proc/nowhere is not writable"),
        (["--out", "folder.json"], "folder.json is a folder; pass a .json file"),
        (["--out", "x.txt"], "x.txt is no .json file"),
        (["--domain", "d" * 400], "is no name; use letters, digits, '-' and '_', at most 64 of them"),
        (["--domain", "prose"], "calibration 'prose' is bundled"),
        (["--seed", "-1"], f"seed is -1, {SEED}"),
        (["--audit-rows", "-1"], "audit_rows -1 must be at least 1, or 0 for all body rows"),
        (["--segment", "0"], "segment 0 tokens must be a positive multiple of 128"),
        (["--policy", "strict"], "policy 'strict' has no calibration; pass priced or certified"),
        (["--tokens", "900", "600"], "tokens 900 600 is no range"),
        (["--tokens", "520", "9000000"], "longer than the model reads"),
        (["--fold-b", "0"], "are too small"),
        (["--processes", "0"], "--processes 0 does nothing"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_a_calibration_is_not_begun_so(refused, model, prompt, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    given = ["calibrate", model, prompt, "--domain", "mine", "--tokens", "512", "512"]
    assert message in refused(*given, *options)


@pytest.mark.parametrize("name", [f"{LATIN}.txt", "a\n[bold]b\x1b.txt", "x" * 250 + ".txt"], ids=repr)
def test_any_file_name_becomes_a_label_that_a_bundle_can_hold(printed, home, model, prompt, tmp_path, name):
    given = ("--model", model, "--break-even", "100000", "--out", tmp_path / "out")
    printed("analyze", prompt.rename(tmp_path / name), *given)
    (folder,) = (tmp_path / "out").iterdir()
    label = read_bundle(folder).run.prompt_name
    assert label.isprintable() and 0 < len(label) <= MAX_LABEL


def test_a_prompt_that_can_t_fit_is_refused_within_seconds_before_loading(refused, model, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("The harbour master writes a ledger. " * 440_000)
    started = time.process_time()
    message = refused("analyze", file, "--model", model)
    assert "'long.txt' is too long: its first 65,536 of 15,840,000 characters alone have 65,536" in message
    assert time.process_time() - started < 10


FILE = "/somewhere/file"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOSPC, "", FILE), 2, f"the disk is full: {FILE} was not written"),
        (OSError(errno.EROFS, "", FILE), 2, f"{FILE} can't be read or written"),
        (OSError(errno.EACCES, "", FILE), 2, "set ROUTESPARSE_HOME"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            1,
            "error: out of memory;",
        ),
    ],
    ids=["full", "read-only", "denied", "memory"],
)
def test_a_failing_machine_is_one_line(run, home, model, prompt, monkeypatch, error, code, message):
    monkeypatch.setattr(analyze, "analyze_prompt", Mock(side_effect=error))
    result, out, err = run("analyze", prompt, "--model", model)
    assert (result, out) == (code, "") and message in err.splitlines()[-1]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_bundle_that_finds_no_room_is_one_line(run, home, factory, tmp_path, monkeypatch, code):
    record = factory.make_record("run0", layers=2, heads=2, tokens=2048)
    folder = bundle.write_bundle(record, tmp_path / "made")
    monkeypatch.setattr(bundle, "publish", Mock(side_effect=OSError(code, os.strerror(code))))
    result, out, err = run("ingest", folder)
    assert (result, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: run run0 was not copied into") and "[" not in err
    assert not list(home.rglob("*run0*"))


def test_the_check_of_a_folder_leaves_nothing_and_takes_nothing(tmp_path):
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.write_text("here")
    assert writable_folder(tmp_path / "kept") == tmp_path / "kept"
    assert writable_folder(tmp_path / "new" / "deep") == tmp_path / "new" / "deep"
    assert sorted(tmp_path.rglob("*")) == [kept.parent, kept]
