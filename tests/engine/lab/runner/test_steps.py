"""``evaluate --screen``, ``--answers``, ``--chat`` and what it says of its cost. CPU, one token a byte."""

import dataclasses
import json

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from routesparse.engine.errors import InputError
from routesparse.engine.lab.runner import predict as predicting
from routesparse.engine.lab.runner import prepare as preparing
from routesparse.engine.lab.runner import steps
from routesparse.engine.lab.runner.job import CONTROLS, Job
from routesparse.engine.lab.runner.prepare import all_prepared, prepare
from routesparse.engine.lab.runner.score import score
from routesparse.engine.lab.studies.selection.measure import Bench
from routesparse.engine.lab.suites.source import Example
from routesparse.engine.models.load import LoadedTokenizer
from routesparse.engine.progress import no_progress
from tests.engine.lab.runner.test_runner import LENGTH, data, lines  # noqa: F401

TASKS = ("passkey", "number_string")


@pytest.fixture
def job(folder, data, tmp_path):  # noqa: F811
    def make(**others):
        asked = {"methods": CONTROLS, "n": 4, "seed": 1, "screen": 2, "answers": 1, **others}
        return Job(
            "infinitebench", TASKS, (LENGTH,), model=str(folder), data=data, out=tmp_path / "out", **asked
        )

    return make


def row(task, index, method, nats, answer):
    name, _, setting = method.partition("=")
    written = {"id": index, "prediction": answer, "ground_truth": "7"}
    return {
        **{
            "config_hash": method,
            "sample_id": f"{LENGTH}/{task}/{index}",
            "suite": "infinitebench",
            "seed": 1,
        },
        **{
            "task": task,
            "length": LENGTH,
            "index": index,
            "cluster": f"{task}/{index}",
            "prompt_sha256": "x",
        },
        **{"method": name, "setting": float(setting or 1), "extras": True, "area": 1.0, "gold_nats": nats},
        **{"prefill_ms": 1.0, "select_ms": 0.0, "took_s": 4.0, "row": written},
    }


@pytest.mark.parametrize(
    ("answer", "losses", "tells"),
    [
        ("7", [(5.0, 6.0), (4.0, 5.0)], True),
        ("8", [(5.0, 6.0), (4.0, 5.0)], False),  # dense fails
        ("7", [(5.0, 6.0), (0.2, 0.3)], False),  # random blocks lose nothing
        ("7", [(5.0, 6.0), (0.0, 9.0)], False),  # lose by chance: the bound lies below 0
    ],
)
def test_a_task_tells_where_dense_answers_and_both_controls_lose(job, answer, losses, tells):
    made = job()
    rows = [row("passkey", i, "dense", 1.0, answer) for i in range(2)]
    for control, lost in zip(CONTROLS, losses, strict=True):
        rows += [row("passkey", i, control, 1.0 + lost[i], "8") for i in range(2)]
    # Prompts beyond the screen and other seeds have no say.
    rows += [row("passkey", 3, one, -99.0, "8") for one in ("dense", *CONTROLS)]
    made.out.mkdir(exist_ok=True)
    made.predictions.write_text("".join(json.dumps(one) + "\n" for one in rows))
    (found,) = steps.screened(made)
    assert (found.n, found.tells) == (2, tells)
    assert found.lost[CONTROLS[0]][0] == pytest.approx(5.5)
    # t(1, .95) = 6.314: 5.5 - 6.314 * .7071 / sqrt(2)
    assert found.lost[CONTROLS[0]][1] == pytest.approx(5.5 - 6.3138 * 0.5, abs=1e-3)
    assert steps.told([found]).startswith(f"{LENGTH} passkey: {'tells' if tells else 'does not tell'}; dense")
    assert steps.screened(job(screen=0)) == []


def test_only_tasks_that_tell_go_on_and_only_asked_answers_are_decoded(job, monkeypatch, capsys):
    made = job()
    assert prepare(made, no_progress) == 8
    predicting.predict(made, Bench, estimate=True)
    assert len(lines(made)) == 2 * 3, "two prompts of the length, by dense and the controls"
    assert "where no task tells, " in capsys.readouterr().err
    predicting.predict(made, Bench)
    found = lines(made)
    assert sorted({(one["task"], one["index"]) for one in found}) == [
        (t, i) for t in sorted(TASKS) for i in (0, 1)
    ]
    assert {one["index"] for one in found if "row" in one} == {0}
    assert [one["tells"] for one in score(made)["screen"]] == [False, False]
    monkeypatch.setattr(steps.Screened, "tells", property(lambda self: self.task == "passkey"))
    predicting.predict(made, Bench)
    assert {(one["task"], one["index"]) for one in lines(made)} - {(t, i) for t in TASKS for i in (0, 1)} == {
        ("passkey", 2),
        ("passkey", 3),
    }
    dense, *others = score(made)["suite"]
    assert (dense["n"], dense["decoded"]) == (6, 2)
    assert {one["n"] for one in score(made)["tasks"]} == {1}, "points are of decoded answers"
    assert {
        one["gold_log_likelihood"]["value"] != 0 for one in others if one["method"] == "random_blocks"
    } == {True}
    again = len(lines(made))
    predicting.predict(made, Bench)
    assert len(lines(made)) == again, "nothing is done twice"


def test_the_cost_is_that_of_what_is_left_by_the_times_that_are_known(job):
    made = job()
    prepare(made, no_progress)
    prompts = all_prepared(made)
    place = prompts[0].sample_id.split("/")[1:]
    rows = [row(place[0], int(place[1]), one, 0.0, "") for one in ("dense", CONTROLS[0])]
    # 4 s a prediction: of 8 prompts by dense and a window 16, of which two are made; of the screen's half.
    said = steps.cost(made, rows, prompts, 1)
    assert "about 0.4 min where no task tells, 0.9 min where all do, on 1 process" in said
    assert said.endswith("14 predictions of 900 tokens at 4.00 s"), "nothing is known of random blocks' time"
    assert "about 0.5 min on 2 processes" in steps.cost(job(screen=0), rows, prompts, 2)
    every = [row(*one.sample_id.split("/")[1:], "dense", 0.0, "") for one in prompts]
    assert "7 predictions" in steps.cost(made, [*every, rows[1]], prompts, 1), (
        "a prompt by dense alone is not done"
    )
    assert steps.cost(made, [], prompts, 1) == "" == steps.cost(made, every, prompts, 1)


def test_a_chat_template_stands_around_prompts_and_counts(job, loaded, monkeypatch):
    made = dataclasses.replace(job(screen=0), chat=True)
    with pytest.raises(InputError, match="has no chat template; leave out --chat"):
        prepare(made, no_progress)
    tokenizer = preparing.load_tokenizer(made.model)
    asked, says = (
        "<user>{{ messages[0]['content'] }}</user>",
        "{% if add_generation_prompt %}<says>{% endif %}",
    )
    tokenizer.tokenizer.chat_template = "{{ bos_token or '' }}" + asked + says
    monkeypatch.setattr(preparing, "load_tokenizer", lambda model: tokenizer)
    prepare(made, no_progress)
    plain = dataclasses.replace(job(screen=0), out=made.out / "plain")
    prepare(plain, no_progress)
    for chatted, bare in zip(all_prepared(made), all_prepared(plain), strict=True):
        assert chatted.text.startswith("<user>") and "</user><says>" in chatted.text
        assert chatted.text.endswith(chatted.example.answer_prefix)
        assert bare.tokens - 110 < chatted.tokens <= LENGTH - chatted.example.new_tokens
        for start, end in chatted.example.more.get("evidence", ()):
            assert chatted.example.gold[0] in chatted.text[start:end]
    with pytest.raises(InputError, match="prompts with chat True, not None"):
        prepare(dataclasses.replace(made, chat=False), no_progress)


def test_a_full_prompt_that_takes_over_its_answers_space_is_made_shorter_and_no_other(job, monkeypatch):
    def make(request, source):
        for index in range(request.first, request.n):
            room = request.length - source.special_tokens - 6 - index
            yield Example("passkey", index, "x" * room, "", "71432", " 71432", 6, f"passkey/{index}")

    suite = dataclasses.replace(preparing.find("infinitebench"), make=make)
    monkeypatch.setattr(preparing, "find", lambda name: suite)
    made = dataclasses.replace(job(screen=0), tasks=("passkey",))
    prepare(made, no_progress)
    found = {one.example.index: one for one in all_prepared(made)}
    assert {one.text[-2:] for one in found.values()} == {"x "}
    full = LENGTH - 6
    assert [found[i].tokens for i in range(4)] == [full + 1 - preparing.SPARE, full, full - 1, full - 2]


def test_texts_that_take_more_tokens_where_they_meet_leave_room_for_the_answer(folder, tmp_path, monkeypatch):
    """Where template, prompt and prefix meet, a pair of bytes parts a token of three: together one token more."""
    meet = [(">", "A"), ("r", ">"), ("e", "r>"), ("?", "<"), ("y", "?"), ("e", "y?")]
    meet += [(">", "Ġ"), ("s", ">"), ("y", "s>")]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: i for i, text in enumerate(["<s>", *letters, *map("".join, meet)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=meet))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    tokenizer.chat_template = "<user>{{ messages[0]['content'] }}</user><says>"
    monkeypatch.setattr(preparing, "load_tokenizer", lambda model: LoadedTokenizer(tokenizer, "own"))
    file = tmp_path / "benchmarks" / "infinitebench" / "passkey.jsonl"
    file.parent.mkdir(parents=True)
    rows = [
        {"id": i, "context": "x" * (720 + i), "input": "Which key?", "answer": "71432"} for i in range(40)
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    asked = {"n": len(rows), "seed": 1, "chat": True, "model": str(folder), "data": tmp_path}
    made = Job("infinitebench", ("passkey",), (LENGTH,), CONTROLS, out=tmp_path / "out", **asked)
    assert prepare(made, no_progress) == len(rows)
    found = all_prepared(made)
    assert {one.example.more["truncated"] for one in found} == {True, False}
    assert LENGTH - preparing.SPARE < max(one.tokens + one.example.new_tokens for one in found) <= LENGTH
