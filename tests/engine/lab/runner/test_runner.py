"""``evaluate`` in its three stages on a tiny model of one token a byte. CPU, no GPU."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import InputError
from routesparse.engine.lab.runner import asked, predictions, timing
from routesparse.engine.lab.runner import predict as predicting
from routesparse.engine.lab.runner.asked import config_hash
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.prepare import all_prepared, prepare
from routesparse.engine.lab.runner.score import score
from routesparse.engine.lab.studies.selection import measure, methods
from routesparse.engine.lab.studies.selection.measure import Bench
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.progress import no_progress
from routesparse.engine.results import evaluations
from tests.engine import shipped_profile

LENGTH = 900
DENSE, WINDOW = methods.find("dense", 1), methods.find("window", 128)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    for split in ("test", "calibration"):
        (made / "prose" / split).mkdir(parents=True)
        for name in ("one", "two"):
            text = " ".join(f"Line {i} of {name} in {split} tells of the sea." for i in range(200))
            (made / "prose" / split / f"{name}.txt").write_text(text)
    return made


@pytest.fixture
def job(folder, data, tmp_path):
    def make(suite="infinitebench", tasks=("passkey", "number_string"), **others):
        asked = {"lengths": (LENGTH,), "methods": ("window=128",), "n": 2, "seed": 1, **others}
        return Job(suite, tasks, model=str(folder), data=data, out=tmp_path / "out", **asked)

    return make


def lines(job):
    return [row for _, row in read_lines(job.predictions) if "config_hash" in row]


def evaluated(job):
    prepare(job, no_progress)
    predicting.predict(job, Bench)
    return score(job)


def test_the_stages_follow_one_another_and_each_says_what_is_missing(job):
    made = job()
    with pytest.raises(InputError, match="run the stage prepare first"):
        predicting.predict(made, Bench)
    assert prepare(made, no_progress) == 4
    with pytest.raises(InputError, match="dense has no predictions at 900"):
        score(made)
    predicting.predict(made, Bench)
    found = score(made)
    assert json.loads(made.scores.read_text()) == found
    assert {(r["task"], r["method"], r["n"]) for r in found["tasks"]} == {
        (task, method, 2) for task in made.tasks for method in ("dense", "window")
    }
    dense, window = found["suite"]
    assert dense["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}
    assert dense["area"] == 1 and window["area"] < 1 and window["n"] == 4
    # Several processes write in any order.
    made.predictions.write_text(
        "".join(f"{line}\n" for line in made.predictions.read_text().splitlines()[::-1])
    )
    assert score(made)["suite"] == found["suite"]
    assert window["worst_decile"]["value"] <= window["gold_log_likelihood"]["value"]


def test_a_run_goes_on_where_it_was_cut_off_and_repeats_its_scores(job):
    made = job()
    first = evaluated(made)
    whole = made.predictions.read_text().splitlines()
    made.predictions.write_text("\n".join(whole[:4]) + "\n" + whole[4][:50])  # killed while it wrote
    predicting.predict(made, Bench)
    assert len(lines(made)) == 8
    assert [r["score"] for r in score(made)["tasks"]] == [r["score"] for r in first["tasks"]]
    before = made.predictions.read_text()
    predicting.predict(made, Bench)
    assert len(lines(made)) == 8 and made.predictions.read_text() == before


def test_one_cell_run_twice_from_nothing_gives_the_same_prompts_answers_and_scores(job, tmp_path):
    """Also of methods that draw at random: the rows that ours scores, the control's blocks. Only clocks differ."""
    clocks = {"created_at", "took_s", "select_ms", "prefill_ms", "attention_ms", "medians"}

    def run(name, seed):
        made = job(tasks=("passkey",), methods=("routesparse=0.5", "random_blocks=0.5"), seed=seed)
        made = dataclasses.replace(made, out=tmp_path / name)
        found = evaluated(made)["suite"], lines(made)
        suite, rows = ([{key: one[key] for key in one.keys() - clocks} for one in table] for table in found)
        return made.prompts(LENGTH, "passkey").read_text(), rows, suite

    first, again, other = run("first", 1), run("again", 1), run("other", 2)
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert min(row["area"] for row in first[1] if row["method"] == "random_blocks") < 1


def test_several_processes_share_one_job(job, tmp_path):
    made = job(tasks=("passkey",), n=5)
    assert prepare(dataclasses.replace(made, out=tmp_path / "alone"), no_progress) == 5
    alone = (tmp_path / "alone" / "prompts" / str(LENGTH) / "passkey.jsonl").read_text()
    assert prepare(made, no_progress, Processes(2)) == 5, "in chunks of four, in any order"
    assert made.prompts(LENGTH, "passkey").read_text() == alone
    made = job(tasks=("passkey",))
    predicting.predict(made, Bench, Processes(2))
    files = sorted(path.name for path in made.out.glob("predictions*"))
    assert files == ["predictions.jsonl"]
    found = score(made)
    assert [row["n"] for row in found["suite"]] == [2, 2] and found["about"]["processes"] == 2
    assert not found["about"]["timed_alone"]
    # A length that nothing was predicted at yet does not keep the others from their scores.
    longer = job(tasks=("passkey",), lengths=(LENGTH, 800))
    prepare(longer, no_progress)
    assert score(longer)["suite"] == found["suite"]


def test_times_of_one_process_alone_take_the_place_of_those_beside_the_predictions(job, monkeypatch, capsys):
    """Of the first prompts of each task, resumable; what was not timed has no time."""
    ran = []

    class Counting(Bench):
        def timed(self, prompt, method):
            ran.append((prompt.name, method.name))
            # The first run compiles; of the three others the median counts.
            return dict.fromkeys(predictions.NUMBERS, 100.0 if len(ran) % 4 == 1 else float(len(ran) % 4))

    monkeypatch.setattr(timing, "PROMPTS", 1)
    made = job(tasks=("passkey",), methods=("routesparse=0.5",))
    prepare(made, no_progress)
    predicting.predict(made, Bench)
    made.predictions.write_text(made.predictions.read_text().replace('"processes": 1', '"processes": 2'))
    timing.measure_times(dataclasses.replace(made, methods=()), Counting)
    assert ran == [(f"infinitebench/passkey/{LENGTH}/0/1", "dense")] * 4
    ((_, row),) = read_lines(made.times)
    assert (row["prefill_ms"], row["first_ms"], row["attention_ms"]) == (2.0, 100.0, 2.0)
    assert row["spread"] == pytest.approx((3 - 0) / 2) and "remove times.jsonl" in capsys.readouterr().err
    found = score(made)
    dense, ours = found["suite"]
    assert found["about"]["timed_alone"] and dense["medians"]["prefill_ms"] == 2.0
    assert ours["medians"]["prefill_ms"] is None and ours["medians"]["fallback"] is not None
    timing.measure_times(made, Counting)
    assert len(ran) == 8 and {one[1] for one in ran[4:]} == {"routesparse"}
    assert score(made)["suite"][1]["medians"]["prefill_ms"] == 2.0


def test_a_method_that_cannot_be_timed_is_named_and_the_others_are_timed(job, monkeypatch):
    def fail(view):
        raise ZeroDivisionError("no blocks")

    monkeypatch.setitem(methods.INLINE, "broken", (lambda _: fail, (1.0,)))
    made = job(methods=("broken", "window=128"), tasks=("passkey",), n=1)
    prepare(made, no_progress)
    assert timing.measure_times(made, Bench) == 1
    rows = [row for _, row in read_lines(made.times)]
    assert [(row["method"], row.get("failed")) for row in rows] == [
        ("dense", None), ("broken", "ZeroDivisionError: no blocks"), ("window", None)
    ]  # fmt: skip
    assert all(row["prefill_ms"] > row["attention_ms"] > 0 for row in rows if "failed" not in row)
    assert len(predictions.read_times(made)) == 2
    with made.times.open("a") as file:
        file.write(json.dumps({**rows[0], "sample_id": "another", "device": "another"}) + "\n")
    with pytest.raises(InputError, match=r"holds times of .* and .*; remove it"):
        predictions.read_times(made)


def test_more_prompts_and_methods_are_added_to_what_is_there(job):
    evaluated(job())
    grown = job(n=3, methods=("window=128", "window=256"))
    found = evaluated(grown)
    assert {row["n"] for row in found["suite"]} == {6} and len(found["suite"]) == 3
    assert len(lines(grown)) == 18
    assert {row["n"] for row in score(job())["suite"] if row["setting"] != 256} == {4}


def test_prompts_of_another_seed_or_changed_prompts_are_refused(job):
    made = job()
    evaluated(made)
    with pytest.raises(InputError, match="prompts with seed 1, not 2"):
        prepare(job(seed=2), no_progress)
    path = made.prompts(LENGTH, "passkey")
    path.write_text(path.read_text().replace('"sha256": "', '"sha256": "f'))
    with pytest.raises(InputError, match="from another prompt than the prepared one"):
        score(made)


def test_a_method_that_computes_nan_has_failed(job):
    class Broken(Bench):
        def answers(self, prompt, chosen, *rest, **more):
            text, numbers = super().answers(prompt, chosen, *rest, **more)[0]
            return [(text, {**numbers, "gold_nats": float("nan")})] * len(chosen)

    made = job(methods=("window=128",), tasks=("passkey",), n=1)
    prepare(made, no_progress)
    assert predicting.predict(made, Broken) == 2
    assert {row["failed"] for row in lines(made)} == {"gold_nats came out as NaN or Inf"}


def no_blocks(view):
    raise ZeroDivisionError("no blocks")


@pytest.mark.parametrize("held", [1, 1 << 30], ids=["one by one", "all at once"])
@pytest.mark.parametrize(("suite", "task"), [("infinitebench", "kv_retrieval"), ("ruler", "niah_single_1")])
def test_the_answer_is_that_of_a_routed_prefill_and_dense_decoding_token_by_token(
    job, loaded, suite, task, held, monkeypatch
):
    """Gold answer as a second dense chunk, equal to greedy decoding; RULER's ends past the gold answer's length."""
    monkeypatch.setattr(measure, "HELD_BYTES", held)
    made = job(suite, (task,), n=1)
    prepare(made, no_progress)
    (prepared,) = all_prepared(made)
    prompt, bench = asked.prompt_of(made, prepared, loaded), Bench(loaded)
    bench.profiles = {"exact": shipped_profile.of()}
    chosen = [DENSE, WINDOW, methods.find("random_blocks", 0.2), methods.find("routesparse", 8.0)]
    together = predicting.measured(bench, find(suite), chosen, prepared, prompt)
    answer = prompt.answer
    for method, found in zip(chosen, together, strict=True):
        with torch.no_grad():
            out = bench.forward(prompt, bench.run(prompt, method))
            cache, hidden, text = out.cache, out.hidden[:1], []
            cache.crop(1 - len(answer))
            for place in range(prepared.example.new_tokens):
                token = int(bench.log_p(hidden[-1:]).argmax())
                text.append(token)
                ids = torch.tensor([[token]])
                hidden = loaded.model.model(ids, past_key_values=cache).last_hidden_state[0]
                if suite == "ruler" and place + 1 == len(answer) + 8:
                    break
            nats = -bench.log_p(out.hidden)[np.arange(len(answer)), answer].sum()
        written = loaded.tokenizer.decode(text, skip_special_tokens=True)
        assert found["row"] == find(suite).row(prepared.example, written)
        assert found["gold_nats"] == pytest.approx(float(nats), rel=1e-5)
    assert len({one["gold_nats"] for one in together}) == 4, (
        "the methods must differ for this to tell anything"
    )


def test_pg19_keeps_the_sums_of_the_prefill_s_own_losses(job, loaded):
    made = job("pg19", ("test", "validation"))
    found = evaluated(made)
    (prepared, *_) = all_prepared(made)
    ids = torch.tensor([asked.prompt_of(made, prepared, loaded).ids])
    with torch.no_grad():
        log_p = loaded.model(ids).logits[0].log_softmax(-1)
    nats = -log_p[:-1].gather(-1, ids[0, 1:, None])[:, 0]
    row = next(r for r in lines(made) if r["sample_id"] == prepared.sample_id and r["method"] == "dense")[
        "row"
    ]
    assert row["nll"] == pytest.approx(float(nats.sum()), rel=1e-5)
    assert row["last_nll"] == pytest.approx(float(nats[-1024:].sum()), rel=1e-5)
    assert (row["tokens"], row["bytes"]) == (len(nats), len(prepared.text.encode()))
    assert row["words"] == len(prepared.text.split())
    dense, window = found["suite"]
    assert dense["word_perplexity_ratio"]["value"] == 1 and dense["n"] == 4
    assert window["word_perplexity_ratio"]["value"] != 1
    assert dense["measures"]["word_perplexity"] == pytest.approx(
        np.exp(sum(r["row"]["nll"] for r in lines(made) if r["method"] == "dense")
               / sum(r["row"]["words"] for r in lines(made) if r["method"] == "dense"))
    )  # fmt: skip


def test_a_configuration_s_hash_changes_with_all_that_decides_a_prediction(loaded):
    known = {
        config_hash(DENSE, loaded, True, 131_072),
        config_hash(WINDOW, loaded, True, 131_072),
        config_hash(WINDOW, loaded, False, 131_072),
        config_hash(methods.find("window", 256), loaded, True, 131_072),
        config_hash(methods.find("routesparse", 0.3), loaded, True, 131_072),
        config_hash(methods.find("routesparse_no_fallback", 0.3), loaded, True, 131_072),
        config_hash(WINDOW, dataclasses.replace(loaded, revision="other"), True, 131_072),
        config_hash(WINDOW, dataclasses.replace(loaded, dtype="bfloat16"), True, 131_072),
    }
    assert len(known) == 8
    # Extras change nothing of dense.
    assert config_hash(methods.find("dense", 1), loaded, False, 131_072) in known


def test_the_command_says_by_its_exit_code_that_predictions_are_missing(
    run, folder, data, tmp_path, monkeypatch
):
    monkeypatch.setitem(methods.INLINE, "broken", (lambda _: no_blocks, (1.0,)))
    asked = ("evaluate", "infinitebench", "--tasks", "passkey", "--lengths", LENGTH, "--n", 1, "--json")
    where = ("--model", folder, "--data", data, "--out", tmp_path / "o", "--methods", "broken")
    code, out, err = run(*asked, *where)
    assert (code, [row["method"] for row in json.loads(out)["suite"]]) == (1, ["dense"])
    assert "1 measurements failed" in err
    monkeypatch.setitem(methods.INLINE, "broken", (lambda _: lambda view: None, (1.0,)))
    code, out, err = run(*asked, *where)
    assert (code, [row["method"] for row in json.loads(out)["suite"]]) == (0, ["broken", "dense"]), err


def test_the_command_runs_all_stages(printed, run, folder, data, tmp_path):
    shared = ("evaluate", "infinitebench", "--tasks", "passkey,number_string", "--lengths", LENGTH, "--n", 1)
    where = ("--model", folder, "--data", data, "--out", tmp_path / "o", "--methods", "window=128")
    code, out, err = run(*shared, *where, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [row["method"] for row in found["suite"]] == ["dense", "window"]
    assert "min left" in err and json.loads((tmp_path / "o" / "job.json").read_text())["n"] == 1
    out = printed(*shared, *where, "--stage", "score")
    assert "window=128" in out and "passkey" in out and "of few clusters" in out
    # Predictions in the suite's own format.
    file = tmp_path / "o" / "by_method" / "dense-1" / str(LENGTH) / "passkey.jsonl"
    code, out, err = run("score", "infinitebench", "passkey", file, "--json")
    assert code == 0 and json.loads(out)["score"] == found["tasks"][0]["score"], err
    # The folder may lie elsewhere later; predictions are scored anew.
    there = (tmp_path / "o").rename(tmp_path / "elsewhere")
    scored = (there / "scores.json").read_text()
    (there / "scores.json").write_text("{")
    files = {"--out": "page.html", "--markdown": "page.md", "--compact": "page.json"}
    wanted = [part for option, name in files.items() for part in (option, tmp_path / name)]
    out = printed("report", there, *wanted, "--json")
    assert json.loads(out)["evaluations"] == ["infinitebench"]
    assert "window=128" in (tmp_path / "page.html").read_text()
    page = (tmp_path / "page.md").read_text()
    assert "--tasks passkey,number\\_string" in page
    assert str(tmp_path) not in page
    (again,) = evaluations.read(tmp_path / "page.json")
    assert [row.name for row in again.rows] == ["dense", "window=128"] and again.devices
    code, out, err = run("report", there, *wanted)
    assert code == 2 and "page.html exists" in err
    # A report writes nothing into the folders that it reads. Without its predictions a folder still has its scores.
    assert (there / "scores.json").read_text() == "{"
    (there / "scores.json").write_text(scored)
    for path in there.glob("predictions*"):
        path.unlink()
    code, out, err = run("report", there, *wanted, "--force")
    (kept,) = evaluations.read(tmp_path / "page.json")
    assert code == 0 and dataclasses.replace(kept, created_at=again.created_at) == again


def test_a_report_of_evaluations_and_one_of_a_run_are_not_mixed(run, tmp_path):
    code, out, err = run("report", "3f9a", "--markdown", tmp_path / "page.md")
    assert (code, out) == (2, "") and "3f9a is no folder of an evaluation" in err
    (tmp_path / "job.json").write_text("[]")
    (tmp_path / "predictions.jsonl").write_text("")
    code, out, err = run("report", tmp_path, "--out", tmp_path / "page.html")
    assert (code, out) == (2, "") and "holds no evaluation (job.json: the file is []" in err
    code, out, err = run("report", tmp_path, "--text")
    assert (code, out) == (2, "") and "--text is for a run" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rulers",), "unknown suite 'rulers'"),
        (("ruler", "--tasks", "vtx"), "no task 'vtx'"),
        (("ruler", "--methods", "windows"), "use some of dense"),
        (("ruler", "--n", "0"), "pass at least one of each"),
        (("ruler", "--lengths", "8K"), "length '8K' is no number of tokens"),
        (("ruler", "--stage", "score", "--tasks", "vt"), "run the stage prepare first"),
    ],
)
def test_a_wrong_job_ends_in_one_line(run, tmp_path, arguments, said):
    code, out, err = run("evaluate", *arguments, "--out", tmp_path / "o")
    assert (code, out) == (2, "") and said in err
