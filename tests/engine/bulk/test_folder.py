"""``routesparse analyze FOLDER``: a run each, once; what fails does not stop the others. CPU, a tiny model."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from routesparse.engine import analyze, shared_folder
from routesparse.engine.bulk import folder as bulk
from routesparse.engine.bulk.asked import Asked
from routesparse.engine.config import RouterConfig
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import ModelError
from routesparse.engine.store import spool
from routesparse.engine.store.bundle import read_bundle
from routesparse.engine.store.duckdb_store import Store

WORDS = "the quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model with one token per byte, and a home with a latency profile that fits it."""
    return tiny_model.save_profiled(tmp_path_factory.mktemp("bulk"))


@pytest.fixture
def prompts(tmp_path):
    """Three prompts, one of them in a folder of its own, and what is none."""
    folder = tmp_path / "prompts"
    (folder / "more").mkdir(parents=True)
    for number, name in enumerate(("a.txt", "b.md", "more/c.txt")):
        (folder / name).write_text(f"{number} {WORDS * 13}")
    (folder / "notes.pdf").write_bytes(b"%PDF\0")
    (folder / ".hidden.txt").write_text(WORDS)
    return folder


def arguments(model, prompts, *more):
    return ("analyze", prompts, "--model", model, "--break-even", 512, "--no-answer-check", *more)


def bundles(home):
    return sorted(path for path in (home / "spool").iterdir() if not path.name.startswith("."))


@pytest.fixture
def same_threads(monkeypatch):
    """Processes of a pool with as many threads as this one, so that they take the same latency profile."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))


def test_every_text_is_one_run_and_the_same_command_makes_none_again(run, model, home, prompts):
    code, out, err = run(*arguments(model, prompts, "--json"))
    assert code == 0, err
    found = json.loads(out)
    assert [row["prompt"] for row in found["runs"]] == ["a.txt", "b.md", "more/c.txt"]
    assert found["failed"] == found["same"] == {} and sum(found["verdicts"].values()) == 3
    records = {read_bundle(path).run.run_id: read_bundle(path).run for path in bundles(home)}
    assert {row["run_id"]: row["tokens"] for row in found["runs"]} == {
        name: record.tokens for name, record in records.items()
    }
    assert sorted(record.prompt_name for record in records.values()) == ["a.txt", "b.md", "c.txt"]

    code, out, err = run(*arguments(model, prompts))
    assert code == 0 and "3 of 3 prompts were done before" in err and len(bundles(home)) == 3
    assert "3 runs (3 done before): " in out and out.count("(done before)") == 3
    (prompts / "b.md").write_text(WORDS * 12)
    assert run(*arguments(model, prompts))[0] == 0 and len(bundles(home)) == 4
    assert run(*arguments(model, prompts, "--price", 0.7))[0] == 0 and len(bundles(home)) == 7


def test_what_the_dashboard_has_taken_in_is_not_made_again_and_what_is_damaged_is(run, model, home, prompts):
    assert run(*arguments(model, prompts))[0] == 0
    with closing(Store(home / "routesparse.duckdb")) as store:
        assert len(spool.ingest_spool(store, home / "spool").ingested) == 3
    assert bundles(home) == []
    assert "3 runs (3 done before)" in run(*arguments(model, prompts))[1] and bundles(home) == []
    next((home / "bundles").iterdir()).joinpath("run.parquet").write_bytes(b"")
    assert "3 runs (2 done before)" in run(*arguments(model, prompts))[1] and len(bundles(home)) == 1


def test_a_folder_of_all_hosts_that_goes_away_half_way_gets_no_run_until_it_is_back(
    run, model, home, prompts, tmp_path, monkeypatch
):
    shared, away, write = tmp_path / "shared", tmp_path / "away", bulk.write_bundle
    monkeypatch.setenv("ROUTESPARSE_SHARED", str(shared))
    (shared / "spool").mkdir(parents=True)
    code, out, err = run(*arguments(model, prompts))
    assert code == 1 and "is the shared folder mounted" in err and "loading" not in err

    def then_unmounted(record, out):
        made = write(record, out)
        shared.rename(away)
        (shared / "spool").mkdir(parents=True)
        return made

    shared_folder.mark()
    monkeypatch.setattr(bulk, "write_bundle", then_unmounted)
    code, out, err = run(*arguments(model, prompts))
    assert code == 1 and "is the shared folder mounted" in err
    assert list((shared / "spool").iterdir()) == [] and len(bundles(away)) == 1

    monkeypatch.setattr(bulk, "write_bundle", write)
    (shared / "spool").rmdir()
    shared.rmdir()
    away.rename(shared)
    code, out, err = run(*arguments(model, prompts))
    assert code == 0 and "3 runs (1 done before)" in out and len(bundles(shared)) == 3, err


def test_a_prompt_that_fails_is_named_and_the_others_are_done(run, model, home, prompts, monkeypatch):
    (prompts / "bad.txt").write_bytes(b"ab\0")
    (prompts / "copy.txt").write_bytes((prompts / "a.txt").read_bytes())
    (prompts / "long.txt").write_text(WORDS * 200)
    (prompts / "folder.txt").mkdir()
    original = analyze.analyze_prompt

    def one_fails(prompt, *others, **options):
        if prompt.name == "b.md":
            raise RuntimeError("no luck")
        return original(prompt, *others, **options)

    monkeypatch.setattr(analyze, "analyze_prompt", one_fails)
    code, out, err = run(*arguments(model, prompts, "--json"))
    found = json.loads(out)
    assert code == 1 and [row["prompt"] for row in found["runs"]] == ["a.txt", "more/c.txt"]
    assert found["same"] == {"copy.txt": "a.txt"}
    assert list(found["failed"]) == ["b.md", "bad.txt", "folder.txt", "long.txt"]
    told = {
        "b.md": "no luck",
        "bad.txt": "is binary",
        "folder.txt": "is a folder",
        "long.txt": "tokens, the model",
    }
    assert all(what in found["failed"][name] for name, what in told.items())
    assert "b.md failed: RuntimeError: no luck" in err
    monkeypatch.setattr(analyze, "analyze_prompt", original)
    code, out, _ = run(*arguments(model, prompts))
    assert code == 1 and "3 runs (2 done before)" in out and "3 failed" in out and "bad.txt failed: " in out


def test_what_was_done_when_ctrl_c_came_is_kept(run, model, home, prompts, monkeypatch):
    original, calls = analyze.analyze_prompt, []

    def interrupted(prompt, *others, **options):
        calls.append(prompt.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(prompt, *others, **options)

    monkeypatch.setattr(analyze, "analyze_prompt", interrupted)
    code, out, err = run(*arguments(model, prompts))
    assert (code, out) == (1, "") and err.splitlines()[-1] == "error: interrupted"
    assert "1 runs are kept; the same command goes on from here" in err and len(bundles(home)) == 1
    monkeypatch.setattr(analyze, "analyze_prompt", original)
    assert "3 runs (1 done before)" in run(*arguments(model, prompts))[1]


def test_a_command_that_is_killed_goes_on_where_it_was_and_several_processes_decide_as_one(
    run, model, home, prompts, tmp_path, same_threads
):
    """A process of its own, killed after its first run."""
    for number in range(3, 5):
        (prompts / f"{number}.txt").write_text(f"{number} {WORDS * 13}")
    asked = arguments(model, prompts, "--audit", "rows")
    command = [sys.executable, "-m", "routesparse.engine.cli.main", *map(str, (*asked, "--processes", 2))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    patience = time.monotonic() + 240
    while not (home / "spool").is_dir() or not bundles(home):
        assert process.poll() is None and time.monotonic() < patience, process.stderr.read()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    kept = {path.name for path in bundles(home)}
    assert 1 <= len(kept) < 5
    code, out, err = run(*asked, "--json")
    assert code == 0, err
    found = json.loads(out)["runs"]
    assert {row["run_id"] for row in found if row["earlier"]} == kept and len(found) == 5
    assert run(*asked, "--out", tmp_path / "alone")[0] == 0
    several, one = decisions(home / "spool"), decisions(tmp_path / "alone")
    assert len(one) == 5 and several == one


def decisions(folder):
    """By prompt: what was decided of each unit."""
    records = [read_bundle(path) for path in folder.iterdir() if not path.name.startswith(".")]
    return {
        record.run.prompt_sha256: [(c.layer, c.head, c.pattern, c.mass, c.lower_mass) for c in record.choices]
        for record in records
    }


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda folder: (), "holds no .txt or .md file"),
        (lambda folder: ("--processes", 0), "--processes 0 does nothing"),
        (lambda folder: ("--calibration", "none-such"), "no calibration 'none-such'"),
        (lambda folder: ("--out", folder / "x.pdf"), "is a file; pass a folder"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run, model, home, tmp_path, make, told):
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "x.pdf").write_text("x")
    code, out, err = run(*arguments(model, folder, *make(folder)))
    assert (code, out) == (2, "") and told in err.splitlines()[-1]


def test_a_prompt_that_changes_while_others_run_fails(model, home, prompts):
    asked = Asked(str(model), RouterConfig(break_even_tokens=512), check_answer=False)

    def changing(prompt, *others, **options):
        (prompts / "b.md").write_text(WORDS * 15)
        return analyze.analyze_prompt(prompt, *others, **options)

    made = bulk.analyze_folder(prompts, asked, home / "spool", changing, Processes(), lambda text: None)
    assert list(made.failed) == ["b.md"] and "was changed meanwhile" in made.failed["b.md"]
    assert [run.prompt for run in made.runs] == ["a.txt", "more/c.txt"] and asdict(made)["same"] == {}


def test_a_model_that_is_not_there_is_told_at_once(home, prompts, tmp_path):
    asked = Asked(str(tmp_path), RouterConfig())
    with pytest.raises(ModelError):
        bulk.analyze_folder(prompts, asked, Path(home, "spool"), analyze.analyze_prompt, Processes(), print)
