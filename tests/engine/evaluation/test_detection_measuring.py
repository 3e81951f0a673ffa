"""The detection study's measuring: a tiny model on the CPU, no GPU."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from routesparse.engine.baselines.rule import RuleRouter
from routesparse.engine.certification.certify import Request, certify_attention
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.studies.detection import looking, run
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.runtime.session import RoutingSession

LENGTH = 1_600


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    (made / "prose" / "test").mkdir(parents=True)
    (made / "prose" / "test" / "harbour.txt").write_text("The harbour was quiet in the morning. " * 400)
    return made


@pytest.fixture(scope="module")
def prompt(loaded, data):
    return prompts.Prompts(data, loaded.tokenizer, 7).make(prompts.Item("niah_multivalue", LENGTH, 0, 7))


def test_needles_and_question_are_where_the_text_has_them(loaded, prompt):
    def text(places):
        return loaded.tokenizer.decode([prompt.ids[place] for place in places])

    assert all(f"is: {value}." in text(prompt.needles) for value in prompt.gold)
    assert text(prompt.needles).count("One of the special magic numbers") == len(prompt.gold)
    assert text(prompt.question) == text(range(prompt.question[0], len(prompt.ids)))
    assert text(prompt.question).lstrip().startswith("What are all the special magic numbers")


def test_the_space_before_the_answer_is_read_with_the_prompt(prompt):
    space = prompt.answer[:1]
    made = run.asked_at_once(prompt, space)
    assert (made.ids, made.answer) == ([*prompt.ids, *space], prompt.answer[1:])
    assert made.question == (*prompt.question, len(prompt.ids))
    assert run.asked_at_once(made, space) is made
    with pytest.raises(InputError, match="empty answer"):
        run.asked_at_once(replace(prompt, answer=list(space)), space)


def test_the_claims_are_those_of_certify_on_the_same_rows(oracle):
    inputs = oracle.draw_inputs(3, n_q=389)
    rule = methods.find("window", 64)
    inner = ruled(rule)
    look = looking.Looking(
        inner, lambda: inner.plan, looking.Places((380, 388), (5,)), salt="salt", seed=2, rows=16
    )
    out = look.attend(inputs, layer=0)
    wanted = certify_attention(
        inputs.q,
        inputs.k,
        inputs.v,
        out,
        scale=inputs.scale,
        salt="salt",
        request=Request(rows=16, seed=2, plan=inner.plan),
    )
    found = look.certified("window").run
    for mine, theirs in ((found.output, wanted.run.output), (found.plan, wanted.run.plan)):
        numbers = [
            {name: value for name, value in asdict(claim).items() if value is not None}
            for claim in (mine, theirs)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1e-6)
    assert 0 < wanted.run.plan.mass < 1
    assert set(look.pooled("question")["positions"].flatten()) == {380, 388}
    assert set(look.pooled("needles")["positions"].flatten()) == {5}


def ruled(method):
    return RuleRouter(method.rule, extras=False)


def test_every_method_is_looked_at_in_the_same_rows_and_whole_attention_raises_no_alarm(loaded, prompt):
    bench = looking.LookingBench(loaded, extras=False, rows=8)
    drawn, found = [], {}
    for name, setting in (("dense", 1), ("dense_kernel", 1), ("window", 128), ("routesparse", 1)):
        found[name] = bench.measure(prompt, methods.find(name, setting))
        drawn.append(bench._looking.pooled("random")["positions"])
    assert all(np.array_equal(drawn[0], other) for other in drawn[1:])
    assert [found[name]["alarm"] for name in ("dense", "dense_kernel", "window")] == [0, 0, 1]
    assert found["dense"]["mass"] == pytest.approx(1) and found["dense"]["hit_rate"] == 1
    assert found["window"]["mass"] < 0.99
    assert all(told["disagreement"] < 1e-4 for told in found.values())


def test_a_routing_sessions_own_plan_is_what_is_looked_at(oracle):
    """Another plan than the one that ran would disagree with the output by more than rounding."""
    keeper = looking.PlanKeeper()
    routed = RoutingSession(
        replace(oracle.SMALL, tau=0.4, gate_threshold=0.5, segment_tokens=1_024),
        profile=oracle.PROFILE,
        auditor=keeper,
    )
    look = looking.Looking(routed, lambda: keeper.plan, looking.Places((), ()), salt="", seed=0, rows=32)
    look.attend(oracle.draw_inputs(1, n_q=713), layer=0)
    told = looking.claims(look, "routesparse")
    assert told["alarm"] and told["mass"] < 1 and told["disagreement"] < 1e-4


def test_far_rows_are_those_that_look_back_beyond_the_window():
    """Two rows look far back, one of which keeps its key; one looks at the sink, one is near."""
    scores = {
        "positions": np.array([[3_000, 3_000, 3_000, 3_000]]),
        "largest": np.array([[500, 500, 3, 2_900]]),
        "error": np.array([[0.0, 0.8, 0.1, 0.1]]),
        "deviation": np.array([[0.0, 0.8, 0.1, 0.1]]),
        "finite": np.ones((1, 4), dtype=bool),
        "mass": np.array([[1.0, 0.2, 0.9, 0.9]]),
        "hit": np.array([[True, False, True, True]]),
        "plan_error": np.zeros((1, 4)),
        "disagreement": np.zeros((1, 4)),
    }
    look = looking.Looking(
        ruled(methods.find("window", 64)),
        lambda: None,
        looking.Places((), ()),
        salt="",
        seed=0,
        rows=4,
    )
    tensors = {name: torch.from_numpy(values)[None] for name, values in scores.items()}
    q = torch.zeros(1, 1, 4_000, 16)
    look._scores, look._facts = (
        {0: looking.RowScores(**tensors)},
        looking.facts_of(AttentionInputs(q, q, q, 0.25)),
    )
    told = looking.claims(look, "window")
    assert (told["far_rows"], told["far_hit_rate"], told["far_low_rows"]) == (2, 0.5, 0.5)
    assert told["worst_head_mass"] == pytest.approx(0.75) and told["question_rows"] == 0


def test_a_run_goes_on_where_it_was_cut_off_and_parts_share_the_prompts(folder, data, tmp_path, capsys):
    out = tmp_path / "detection.jsonl"
    base = ["--model", str(folder), "--data", str(data), "--out", str(out), "--lengths", str(LENGTH)]
    base += ["--tasks", "niah_multivalue", "--prompts", "2", "--rows", "4", "--methods", "window=128"]
    run.main([*base, "--seconds", "-1"])
    assert "4 left" in capsys.readouterr().err and not lines(out)
    run.main([*base, "--part", "1/2"])
    assert [(row["method"], row["index"]) for row in lines(out)] == [("dense", 1), ("window", 1)]
    run.main(base)
    found = lines(out)
    assert [(row["method"], row["index"]) for row in found] == [
        *[("dense", 0), ("window", 0), ("dense", 1), ("window", 1)]
    ]
    assert not any("failed" in row for row in found)
    dense, window = found[2:]
    assert dense["nats"] == dense["nats_dense"] == window["nats_dense"] and dense["seed"] == run.SEED
    run.main(base)
    assert len(lines(out)) == 4


def lines(out):
    return [row for path in rows.parts(out) for row in rows.read_lines(path) if "method" in row]
