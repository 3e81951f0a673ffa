"""The command line: contract, exit codes, one line per error, nothing left behind. CPU, a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from routesparse.engine.calibration.artifact import Calibration, stamp_of
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import StoreError
from routesparse.engine.method.families import library_hash
from routesparse.engine.profiles import measure
from routesparse.engine.store.bundle import read_bundle
from routesparse.engine.verdict import of_record
from tests.engine.conftest import files_of

# The contract of --json, in order.
FIELDS = (
    "run_id model tokens layers heads segments policy tau tau_layer price uncertified_units uncertified_layers "
    "layer_certificates choices timings audit loss verdict answer bundle"
)
CHOICE = (
    "batch_index layer head segment pattern budget density mass lower_mass disagreement risk kernel_us fallback "
    "reason gate_threshold uncertified"
)
TIMINGS = "probe_ms index_ms route_ms kernel_ms total_ms"
AUDIT = "rows units coverage nominal certificate mean_error max_error executed_error deviating_units top1_agreement"


class TestAnalyze:
    def test_the_json_object_is_the_contract(self, printed, model, home, prompt):
        given = ("--model", model, "--break-even", 512, "--audit", "rows", "--json")
        found = json.loads(printed("analyze", prompt, *given))
        assert list(found) == FIELDS.split()
        assert (found["model"], found["tokens"], found["layers"], found["heads"]) == ("tiny", 631, 2, 2)
        assert [list(choice) for choice in found["choices"]] == [CHOICE.split()] * 4
        assert {(c["layer"], c["head"]) for c in found["choices"]} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert {c["fallback"] for c in found["choices"]} <= {None, "expand", "dense"}
        assert list(found["timings"]) == TIMINGS.split() and list(found["audit"]) == AUDIT.split()
        assert found["audit"]["nominal"] == 0.95
        assert Path(found["bundle"]) == home / "spool" / found["run_id"]
        record = read_bundle(Path(found["bundle"]))
        assert record.run.prompt_name == "prompt.txt"
        assert record.prompt.text == prompt.read_text()
        assert len(record.choices) == 4
        sentence = found["verdict"]["sentence"]
        assert sentence == of_record(record).sentence == found["verdict"]["findings"][0]["text"]
        assert record.run.top1_agreement == found["answer"]["top1_agreement"] is not None
        assert record.run.dense_ms is not None and len(record.answers) >= 5
        assert [row["text"] for row in found["answer"]["tokens"]] == [row.text for row in record.answers]

    def test_no_dense_prefill_runs_where_none_is_wanted(self, printed, run, model, home, prompt):
        options = ("--model", model, "--break-even", 512, "--no-answer-check")
        code, out, _ = run("analyze", prompt, *options, "--json")
        record = read_bundle(Path(json.loads(out)["bundle"]))
        assert code == 0 and record.run.dense_ms is None and record.answers == ()
        assert (record.run.top1_agreement, record.run.kl_nats) == (None, None)
        out = printed("analyze", prompt, *options)
        assert "verdict amber: Answer not compared" in out

    def test_a_dense_prefill_that_would_take_long_runs_only_where_it_is_asked_for(
        self, run, model, home, prompt, monkeypatch
    ):
        monkeypatch.setattr("routesparse.engine.analyze.DENSE_AFFORDABLE_MS", 0.0)
        options = ("--model", model, "--break-even", 512, "--json")
        found = [
            json.loads(run("analyze", prompt, *options, *more)[1]) for more in ((), ("--measure-dense",))
        ]
        assert [bool(one["answer"]["tokens"]) for one in found] == [False, True]

    def test_without_json_people_read_a_summary(self, printed, model, home, prompt, tmp_path):
        given = (
            "--model",
            model,
            "--break-even",
            512,
            "--out",
            tmp_path / "here",
            "--no-text",
            "--audit",
            "full",
        )
        out = printed("analyze", prompt, *given)
        assert "of the causal area" in out
        (bundle,) = (tmp_path / "here").iterdir()
        assert str(bundle) in out and not (home / "spool").exists()
        record = read_bundle(bundle)
        assert record.prompt is None
        assert [0 <= row.forward_error < 2 for row in record.layers] == [True] * 2, "beside the dense forward"

    def test_a_short_prompt_runs_dense_and_says_so(self, printed, model, home, tmp_path):
        (tmp_path / "short.txt").write_text("short")
        out = printed("analyze", tmp_path / "short.txt", "--model", model)
        assert "6 tokens are below break-even: dense attention ran untouched" in out


def test_a_missing_prompt_is_refused(refused, model, home, tmp_path):
    assert "does not exist" in refused("analyze", tmp_path / "none.txt", "--model", model)


def test_a_calibration_that_does_not_fit_is_refused(refused, model, home, prompt, tmp_path):
    made = Calibration(
        *("mine", "prose", None, 0.5, "other", "0" * 16, library_hash()),
        *(stamp_of(RouterConfig()), (), (), 0, {}),
    )
    told = refused("analyze", prompt, "--model", model, "--calibration", made.save(tmp_path))
    assert "was made for model 'other' revision 0000000000000000" in told


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["runs", "extra"], ["analyze"], ["runs", "--limit", "0"]]
)
def test_wrong_usage_points_to_the_help(refused, home, arguments):
    assert "--help)" in refused(*arguments)


class TestDefects:
    @pytest.fixture(params=[RuntimeError("first\nsecond"), StoreError("layer 3: NaN"), KeyboardInterrupt()])
    def error(self, request, monkeypatch):
        def fail(path):
            raise request.param

        monkeypatch.setattr("routesparse.engine.prompts.jsonl.read_prompt", fail)
        return request.param

    def test_an_error_ends_in_one_line_and_a_traceback_on_disk_or_where_debug_shows_it(
        self, run, home, prompt, error
    ):
        code, out, err = run("analyze", prompt)
        told = {RuntimeError: "RuntimeError: first second", StoreError: "layer 3: NaN"}.get(type(error))
        assert (code, out) == (1, "")
        if told is None:
            assert err.splitlines()[-1] == "error: interrupted"
            return
        (file,) = (home / "errors").iterdir()
        assert err.splitlines()[-1] == f"error: {told} (traceback: {file}; --debug shows it)"
        assert "in fail" in file.read_text()
        for arguments in (["--debug", "analyze", prompt], ["analyze", prompt, "--debug"]):
            code, _, err = run(*arguments)
            assert code == 1 and "Traceback" in err and err.splitlines()[-1] == f"error: {told}"
        assert list((home / "errors").iterdir()) == [file]


@pytest.mark.parametrize("what", ["--model", "--shape"])
def test_profile_measures_and_keeps_a_profile(printed, model, home, tmp_path, monkeypatch, what):
    """Of a model, or of a stated shape, which needs none."""
    monkeypatch.setitem(measure.QUICK, "lengths", (512, 1024))
    named = {"--model": model, "--shape": "2,1,16"}[what]
    found = json.loads(printed("profile", what, named, "--quick", "--out", tmp_path / "p", "--json"))
    assert (found["head_dim"], found["groups"], found["dtype"]) == (16, 2, "float32")
    kept = json.loads(Path(found["path"]).read_text())
    assert kept["name"] == found["name"]
    assert kept["command"] == "routesparse profile" + (f" --shape {named}" if what == "--shape" else "")


class TestDoctor:
    def test_a_healthy_machine(self, run, model, home):
        before = files_of(home)
        code, out, _ = run("doctor", "--model", model, "--json")
        assert files_of(home) == before
        found = json.loads(out)
        by_name = {check["name"]: check for check in found["checks"]}
        assert (code, found["ok"]) == (0, True)
        assert by_name["model"]["status"] == by_name["profile"]["status"] == by_name["home"]["status"] == "ok"
        assert "torch" in by_name["packages"]["detail"]

    def test_a_missing_package_is_a_problem_and_the_lock_mends_it(self, run, model, monkeypatch):
        monkeypatch.setattr("routesparse.engine.doctor.checks.REQUIRED", ("torch", "no-such-package"))
        code, out, _ = run("doctor", "--model", model)
        assert code == 1
        assert "problem packages      missing no-such-package; run in " in out
        assert ": .venv/bin/python .ci/lock.py install" in out and "requirements.txt" not in out

    def test_a_broken_model_is_a_problem_with_a_remedy(self, run, home, tmp_path):
        (tmp_path / "config.json").write_text("{")
        code, out, _ = run("doctor", "--model", tmp_path)
        assert code == 1
        (line,) = (line for line in out.splitlines() if line.startswith("problem"))
        assert line.endswith("is not readable JSON; download the model again")

    def test_a_missing_profile_is_a_note_and_a_corrupt_one_a_problem(self, run, model, home):
        (home / "profiles").unlink()
        assert run("doctor", "--model", model)[:1] == (0,)
        (home / "profiles").mkdir()
        (home / "profiles" / "x.json").write_text("{")
        code, out, _ = run("doctor", "--model", model)
        assert code == 1 and "problem profile       profile x.json is corrupt" in out

    def test_a_home_that_cannot_be_written(self, run, model, monkeypatch):
        monkeypatch.setenv("ROUTESPARSE_HOME", "/proc/nowhere")
        code, out, _ = run("doctor", "--model", model)
        assert code == 1
        assert "/proc/nowhere is not writable (" in out and "; set ROUTESPARSE_HOME" in out


def test_from_a_cold_start_the_first_line_comes_before_torch_which_takes_seconds(model, home, prompt):
    """The installed console script, in a process of its own that also names each module when it is loaded."""
    command = [sys.executable, "-X", "importtime", Path(sys.executable).with_name("routesparse"), "analyze"]
    lines = []
    with subprocess.Popen([*command, prompt, "--model", model], stderr=subprocess.PIPE, text=True) as process:
        while "reading prompt.txt\n" not in lines:
            lines.append(process.stderr.readline())
            assert lines[-1], "it has ended"
        process.kill()
    assert len(lines) > 50 and not [line for line in lines if " torch" in line]


def test_bad_input_is_refused_before_torch_is_imported(model, home, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    code = (
        "import sys; from routesparse.engine.cli.main import main; "
        "assert main(['analyze', sys.argv[1], '--model', 'nonesuch']) == 2; "
        "assert main(['analyze', sys.argv[2], '--model', 'nonesuch']) == 2; "
        "assert main(['analyze', sys.argv[2], '--tau', '2']) == 2; "
        "assert main(['runs']) == 0; assert 'torch' not in sys.modules"
    )
    (tmp_path / "good.txt").write_text("two words")
    subprocess.run([sys.executable, "-c", code, tmp_path / "empty.txt", tmp_path / "good.txt"], check=True)


def test_help_and_version(printed, run):
    out = printed("--help")
    places = [
        out.index(f" {told} ")
        for told in ("Analyse", "analyze", "Measure", "tune", "Share", "runs", "Operate", "doctor")
    ]
    assert places == sorted(places)
    assert run("--version")[:2] == (0, "routesparse 0.1.0\n")
    code, out, _ = run()
    assert code == 2
    assert "Operate" in out
