"""``routesparse tune``: from text files to a price that analyze and jobs take; one line per error. CPU."""

import json
import random
import shutil
from dataclasses import replace

import pytest
import torch

from routesparse.engine import paths, route
from routesparse.engine.calibration import tuned
from routesparse.engine.cli import tune
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.jobs.analysis import WarmAnalysis
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import revision_of
from routesparse.engine.models.load import load_model
from routesparse.engine.prompts.text import PromptText
from routesparse.engine.store.bundle import read_bundle

# Six windows bound no loss below 1.6 times the limit at the usual confidence.
SMALL = ("--tokens", 600, "--windows", 6, "--prices", "0.5,0.25", "--confidence", 0.6)


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model with one token per byte, and a home with a latency profile that fits it."""
    return tiny_model.save_profiled(tmp_path_factory.mktemp("tune"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder of two documents."""
    made = tmp_path_factory.mktemp("texts") / "mine"
    made.mkdir()
    for number in range(2):
        rng = random.Random(number)
        (made / f"{number}.txt").write_text(" ".join(rng.choices(("fox", "dog", "over", "a", "lazy"), k=400)))
    return made


def test_a_price_is_measured_chosen_and_used_by_its_name(run, model, home, texts, tmp_path, monkeypatch):
    arguments = ("tune", "mine", "--prompts", texts, "--model", model, "--target", "kl=5", *SMALL, "--json")
    code, out, err = run(*arguments)
    assert code == 0, err
    told = json.loads(out)
    assert told["path"] == str(home / "calibrations" / "tuned" / "mine-kl.json")
    made = tuned.load("mine-kl")
    assert (made.price, made.measure, made.confidence) == (0.5, "kl", 0.6) == (told["price"], "kl", 0.6)
    assert made.parts[0].documents == 2 and made.parts[0].windows == 6 and made.parts[0].unit == "window"
    assert made.model_revision == revision_of(model) and tuned.known() == sorted(["mine-kl", *_bundled()])
    given = f"--prompts {texts.name} --model {model.name} --target kl=5 --tokens 600 --windows 6"
    whole = f"routesparse tune mine {given} --prices 0.5,0.25 --confidence 0.6"
    assert made.command == made.measured[0] == whole
    # The rows stay: another target needs no model.
    rows = home / "tuning" / "mine-kl.jsonl"
    size = rows.stat().st_size
    again = ("--rows", rows, "--target", "agreement=0.01", "--name", "other", "--confidence", 0.6)
    code, out, _ = run("tune", "mine", *again)
    assert code == 0 and rows.stat().st_size == size and "unit: window" in out
    alone = replace(made.parts[0], documents=6)
    assert tune.counted(alone, "windows") == "mine: 6 windows of 6 documents; unit: window"
    assert tuned.load("other").measure == "agreement"
    _only_what_was_measured_is_chosen_from(run, rows)

    prompt = tmp_path / "prompt.txt"
    prompt.write_text((texts / "0.txt").read_text()[:560])
    command = ("analyze", prompt, "--model", model, "--break-even", 0, "--calibration", "mine-kl")
    code, out, err = run(*command)
    assert code == 0, err
    assert "mine-kl: price 0.5: KL to dense at most 5 nats a token on mine" in err
    assert [run.tuned_price for run in _recorded(home)] == ["mine-kl"]
    folder = tmp_path / "given"
    folder.mkdir()
    shutil.copy(prompt, folder / "p.txt")
    of_folder = ("analyze", folder, *command[2:], "--out", tmp_path / "out")
    with monkeypatch.context() as changed:
        changed.setattr(tuned, "MOST_TIMES_LONGER", 0.9)  # the tiny model reads no prompt of twice a window
        code, _, err = run(*command)
        told = "promises nothing here: 'mine-kl' was tuned on windows of up to 600 tokens"
        assert code == 0 and told in " ".join(err.split())
        code, out, err = run(*of_folder, "--json")
        assert code == 0, err
        (made,) = json.loads(out)["runs"]
        assert told in made["warnings"][0]
        assert f"p.txt: warning: price 0.5 is used, but {told}" in " ".join(run(*of_folder)[1].split())
    code, _, err = run(*command, "--price", 1)
    assert code == 2 and "price 1 contradicts 'mine-kl', which says 0.5" in err
    code, _, err = run(*command, "--policy", "certified")
    assert code == 2 and "was tuned with policy 'priced', this run has 'certified'" in err
    code, _, err = run(*command, "--policy", "certified", "--force")
    assert code == 0 and "promises nothing here" in err
    assert sorted(str(run.tuned_price) for run in _recorded(home)) == ["None", "mine-kl", "mine-kl"]
    _routed_by_its_name(model, prompt.read_text())


def test_a_price_is_chosen_for_gold_answers_and_used_by_its_name(run, model, home, texts, tmp_path):
    file = tmp_path / "asked.jsonl"
    words = (texts / "0.txt").read_text()
    asked = [{"prompt": words[n : n + 500], "answer": words[n + 500 : n + 504]} for n in range(0, 240, 30)]
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    common = ("tune", "mine", "--prompts", file, "--model", model, *SMALL[4:])
    code, out, err = run(*common, "--target", "answer=9", "--windows", 7)
    assert code == 0, err
    assert "7 of 8 questions are measured" in err and "mine: 7 questions, each its own document" in out
    made = tuned.load("mine-answer")
    assert (made.price, made.measure, made.tokens) == (0.5, "answer", 505)
    rows = [json.loads(line) for line in (home / "tuning" / "mine-answer.jsonl").read_text().splitlines()]
    assert {row["answer_tokens"] for row in rows if "kl" in row} == {4}
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(words[:560])
    code, _, err = run("analyze", prompt, "--model", model, "--break-even", 0, "--calibration", "mine-answer")
    assert code == 0
    assert "rise of the gold answers' loss at most 9 nats a token on mine" in " ".join(err.split()), err
    for change, told in (
        (("--target", "kl=5"), "kl=5 is about texts, and these are questions"),
        (("--tokens", 600), "questions are measured whole; leave --tokens out"),
        (("--prompts", texts), "can't be measured together"),
    ):
        code, _, err = run(*common, "--name", "other", "--windows", 7, *change)
        assert code == 2 and told in err.splitlines()[-1]


def test_several_processes_measure_what_one_does(run, model, home, texts, tmp_path, monkeypatch):
    """Each with as many threads as one, on which a CPU's sums depend; a second command finds all of it."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    common = ("tune", "mine", "--prompts", texts, "--model", model, "--target", "kl=5", *SMALL)
    found = {}
    for name, more in (("one", ()), ("two", ("--processes", 2))):
        file = tmp_path / f"{name}.jsonl"
        code, _, err = run(*common, "--rows", file, "--name", name, *more)
        assert code == 0, err
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [line for line in lines if "kl" in line]
        measured = [{k: v for k, v in line.items() if k != "commit" and k[-3:] != "_ms"} for line in lines]
        found[name] = sorted(measured, key=lambda row: (row["index"], row["document"], row["price"]))
    assert len(found["one"]) == 12 and found["one"] == found["two"]
    assert "--processes" not in tuned.load("two").command
    size = len(file.read_text().splitlines())
    code, _, err = run(*common, "--rows", file, "--name", "two")
    assert code == 0 and len(file.read_text().splitlines()) == size + 1, "a header, and no row again"


def _recorded(home):
    return [read_bundle(path).run for path in (home / "spool").iterdir() if path.is_dir()]


def _routed_by_its_name(folder, text):
    """``with route(model, calibration=NAME)`` takes the price, names it in the record, and checks the model."""
    loaded = load_model(str(folder), device="cpu")
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    config = RouterConfig(break_even_tokens=0)
    for named in ("mine-kl", tuned.load("mine-kl")):
        with torch.no_grad(), route(loaded.model, config, calibration=named) as trace:
            loaded.model(ids)
        made = trace.record().run
        assert (made.tuned_price, made.price, made.calibration) == ("mine-kl", 0.5, None)
    for asked, named, told in (
        (replace(config, price=0.3), "mine-kl", r"price 0\.3 contradicts 'mine-kl', which says 0\.5"),
        (config, "prose-kl", "was tuned for model"),
    ):
        with pytest.raises(CalibrationError, match=told), route(loaded.model, asked, calibration=named):
            pytest.fail("the block was entered")
    with torch.no_grad(), route(loaded.model, replace(config, price=0.3)) as trace:
        loaded.model(ids)
    assert trace.record().run.tuned_price is None


def _only_what_was_measured_is_chosen_from(run, rows):
    again = ("--rows", rows, "--target", "kl=5", "--confidence", 0.6, "--name", "again")
    assert run("tune", "mine", *again, "--prices", 0.25)[0] == 0
    assert [row.price for row in tuned.load("again").tested] == [0.25]
    for changed, told in (
        (("mine", "--prices", "0.25,0.3"), "price 0.3 was not measured on mine"),
        (("mine", "--windows", 9, "--seed", 1), "--windows, --seed can't change what was measured"),
        (("mine", "--model", "demo"), "--model can't change what was measured"),
        (("mien",), "domain 'mien' was not measured, only mine"),
    ):
        code, out, err = run("tune", changed[0], *again, *changed[1:])
        assert (code, out) == (2, "") and told in err
    assert run("tune", "mixed", *again)[0] == 0


def test_texts_that_were_edited_since_are_not_chosen_from(run, model, home, texts, tmp_path):
    folder = shutil.copytree(texts, tmp_path / "mine")
    command = ("tune", "mine", "--prompts", folder, "--model", model, "--target", "kl=5", *SMALL)
    assert run(*command)[0] == 0
    stale = set(tuned.load("mine-kl").documents)
    (folder / "0.txt").write_text((folder / "0.txt").read_text().upper())
    assert run(*command)[0] == 0
    made = tuned.load("mine-kl")
    assert len(made.documents) == 2 and len(stale & set(made.documents)) == 1
    assert made.parts[0].windows == 6


def _bundled():
    return sorted(path.stem for path in (paths.DATA / "calibrations" / "tuned").glob("*.json"))


def test_a_job_that_names_a_tuned_price_runs_at_it(run, model, home, texts):
    out = home / "calibrations" / "tuned" / "mine.json"
    common = ("--prompts", texts, "--model", model, "--target", "kl=5", *SMALL, "--out", out)
    assert run("tune", "mine", *common)[0] == 0
    seen = []

    def analyse(prompt, loaded, config, **others):
        seen.append((config.price, others["calibration"], others["tuned_price"]))

    request = RunRequest(model=str(model), calibration="mine")
    work = WarmAnalysis(analyse)
    prompt = PromptText("x", "a fox " * 90, "0" * 64)
    work(request, prompt, "run", lambda *_: None)
    work(RunRequest(model=str(model), quality="mine", price=0.5), prompt, "run", lambda *_: None)
    work(RunRequest(model=str(model), price=0.5), prompt, "run", lambda *_: None)
    assert seen == [(0.5, None, "mine"), (0.5, None, "mine"), (0.5, None, None)]
    with pytest.raises(CalibrationError, match="contradicts"):
        work(replace(request, price=1.0), prompt, "run", lambda *_: None)
    # A calibration of that name was meant: the tuned price does not hide it.
    (home / "calibrations" / "mine.json").write_text("{}")
    with pytest.raises(CalibrationError, match="mine"):
        work(request, prompt, "run", lambda *_: None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--target", "kl=none"), "pass kl=0.01"),
        (("--target", "answer=0.05"), "is about gold answers, and these are texts"),
        (("--prices", "a"), "prices 'a' are no numbers"),
        (("--prices", "0"), "price is 0.0, it must be a number"),
        (("--tokens", 5_000), "longer than the model reads"),
        (("--windows", 1), "use at least 2 windows"),
        (("--name", "a/b"), "'a/b' is no name"),
        (("--out", "x.txt"), "x.txt is no .json file"),
        (("--prompts", "/nowhere"), "does not exist"),
        (("--rows", "x.jsonl.gz"), "x.jsonl.gz is compressed and can't be appended to"),
        (("--name", "prose"), "'prose' is the name of a bundled tuned price or of a calibration"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(refused, model, home, texts, change, told):
    assert told in refused("tune", "mine", "--prompts", texts, "--model", model, *SMALL, *change)


def test_too_few_windows_a_document_are_refused_before_the_model_is_loaded(run, model, home, tmp_path):
    """Three documents, which two windows each would take; the error says how many that is."""
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number} lazy fox and a dog " * 100)
    given = ("--prompts", tmp_path, "--model", model, "--tokens", 600, "--windows", 3, "--target", "kl=5")
    code, out, err = run("tune", "mine", *given)
    assert (code, out) == (2, "")
    assert "need at least 2 windows each; pass --windows 6" in err and "loading model" not in err
