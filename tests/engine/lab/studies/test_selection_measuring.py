"""The selection study's prompts and measuring: a tiny model on the CPU, no GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.calibrate import beside_dense
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import ConfigError, InputError
from routesparse.engine.lab.generators.samples import score_all
from routesparse.engine.lab.studies.selection import measure, methods, prompts, rows, run

LENGTH = 600


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Documents whose every character says their split: a in the calibration split, b in the test split."""
    made = tmp_path_factory.mktemp("data")
    for split, letter in (("calibration", "a"), ("test", "b")):
        (made / "prose" / split).mkdir(parents=True)
        for number in range(3):
            words = " ".join(f"{letter * (1 + (7 * i + number) % 5)}" for i in range(900))
            (made / "prose" / split / f"{split}-{number}.txt").write_text(words)
    return made


def arguments(folder, data, out, *more):
    shared = ("--model", str(folder), "--data", str(data), "--out", str(out), "--lengths", str(LENGTH))
    return [*shared, "--tasks", "text:prose", "--windows", "2", *more]


def lines(path):
    return [row for _, row in read_lines(path) if "method" in row]


def test_development_and_reported_windows_share_no_document(loaded, data):
    made = {
        seed: [
            prompts.Prompts(data, loaded.tokenizer, seed).make(prompt)
            for prompt in prompts.items(["text:prose"], [LENGTH], 1, 4, seed)
        ]
        for seed in (0, 1, 2)
    }
    names = {seed: {n for p in found for n in p.about["documents"]} for seed, found in made.items()}
    assert not names[0] & (names[1] | names[2])
    assert {p.about["split"] for p in made[0]} == {"calibration"} and {p.about["split"] for p in made[1]} == {
        "test"
    }
    assert len({tuple(p.ids) for found in made.values() for p in found}) == 12
    for prompt in made[1]:
        assert len(prompt.ids) == LENGTH and "a" not in loaded.tokenizer.decode(prompt.ids[1:])


def test_every_method_gets_its_first_setting_before_any_second_one():
    found = methods.rounds(["window=64,128", "dense", "window=128,256"])
    assert found == [
        [("window", 64.0), ("dense", 1.0)],
        [("window", 128.0)],
        [("window", 256.0)],
    ]
    with pytest.raises(ConfigError, match="no numbers"):
        methods.rounds(["window=wide"])
    with pytest.raises(ConfigError, match="use some of"):
        methods.rounds(["windows=128"])


def test_a_rule_s_other_parameters_stand_behind_its_name():
    ((name, setting),) = methods.rounds(["xattention@stride:16=0.9"])[0]
    assert (name, setting) == ("xattention@stride:16", 0.9)
    rule = methods.find(name, setting).rule
    assert (rule.threshold, rule.stride) == (0.9, 16)
    assert methods.settings(name) == methods.settings("xattention")
    for wrong, told in (
        ("xattention@threshold:8", "no other parameter threshold"),
        ("xattention@rank:8", "parameter rank"),
    ):
        with pytest.raises(ConfigError, match=told):
            methods.find(wrong, 0.9)
    with pytest.raises(ConfigError, match="is not NAME@PARAMETER:NUMBER"):
        methods.rounds(["xattention@stride=16"])
    with pytest.raises(ConfigError, match="use some of"):
        methods.rounds(["xatention@stride:8=16"])


def test_what_a_method_learns_on_stands_behind_its_name(loaded, data, tmp_path):
    assert methods.learnt_on("minference@code/16384") == ("code", 16_384)
    assert methods.learnt_on("xattention@stride:16") is methods.learnt_on("minference") is None
    for wrong in ("window@code/16384", "minference@code/far"):
        with pytest.raises(ConfigError, match="DOMAIN/TOKENS"):
            methods.rounds([f"{wrong}=1"])
    ours = methods.find("routesparse_fitted@tau_head:0.6", 0.25)
    assert (ours.options["tau_head"], ours.options["price"]) == (0.6, 0.25)
    with pytest.raises(ConfigError, match="no other parameter depth"):
        methods.find("routesparse@depth:2", 0.25)
    bench, name = measure.Bench(loaded), f"routesparse_fitted@prose/{LENGTH}"
    first, again = (
        bench.usable(wanted, [LENGTH], data, tmp_path)[0].options["head_floors"]
        for wanted in ([f"{name}=0.25"], [f"{name}=0.5"])
    )
    assert first == again and len(first) == len(loaded.model.model.layers)
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith(f"floors-prose-{LENGTH}")
    kept.write_text('{"head_floors": [[0.5, -0.5], [0, 0.25]]}')  # what is kept is not learnt again
    (again,) = bench.usable([f"{name}=0.25"], [LENGTH], data, tmp_path)
    assert again.options["head_floors"] == ((0.5, -0.5), (0, 0.25))


def test_a_task_s_haystack_may_be_another_domain_than_prose(loaded, data):
    maker = prompts.Prompts(data, loaded.tokenizer, 1)
    plain, named = (
        maker.make(prompts.Item(task, 1_500, 0, 1)) for task in ("niah_single_2", "niah_single_2:prose")
    )
    assert plain.about["documents"] == named.about["documents"]
    assert plain.about["documents"][0].startswith("test-")
    made = prompts.Item("vt", 6_000, 0, 1)  # no document's text is in it
    assert maker.make(made).about["documents"] == [made.name]
    with pytest.raises(InputError, match="no test documents of 'code'"):
        maker.make(prompts.Item("niah_single_2:code", 1_500, 0, 1))
    with pytest.raises(InputError, match="unknown task"):
        maker.make(prompts.Item("maze:prose", 1_500, 0, 1))


def test_texts_are_joined_and_repeat_a_token_as_their_names_say(loaded, data):
    maker = prompts.Prompts(data, loaded.tokenizer, 1)
    plain, joined, repeated = (
        maker.make(prompts.Item(f"text:{name}", LENGTH, 0, 1))
        for name in ("prose", "prose+prose", "prose*0.4")
    )
    assert len(plain.ids) == len(joined.ids) == len(repeated.ids) == LENGTH
    half = (LENGTH - 1) // 2
    assert joined.ids[1 : 1 + half] == joined.ids[1 + half : -1] != plain.ids[1 + half : -1]
    most = max(set(plain.ids), key=plain.ids.count)
    others, left = (LENGTH - made.ids.count(most) for made in (plain, repeated))
    assert 0.4 * others < left < 0.8 * others


@pytest.mark.parametrize("index", range(4))
def test_a_fact_stands_at_an_edge_and_returns_at_the_end(loaded, data, index):
    length = 2 * prompts.EDGE
    made = prompts.Prompts(data, loaded.tokenizer, 1).make(prompts.Item("edge", length, index, 1))
    assert len(made.ids) == length
    number = [made.ids[place] for place in made.asked]
    assert (
        loaded.tokenizer.decode(number).strip().isdigit()
        and made.asked[-1] - made.asked[0] == len(number) - 1
    )
    at = prompts.EDGE + index % 3 - 1
    assert made.ids[at : at + len(number)] == number and made.asked[0] > 0.9 * length
    with pytest.raises(InputError, match="6,144 tokens or more"):
        prompts.Prompts(data, loaded.tokenizer, 1).make(prompts.Item("edge", 5_000, index, 1))


def test_numbers_are_those_of_a_plain_computation_in_float64(loaded, monkeypatch):
    """Chunks of positions change nothing, nor does their number divide the positions."""
    monkeypatch.setattr(beside_dense, "CHUNK", 7)
    torch.manual_seed(0)
    dense = torch.randn(40, 32)
    hidden = dense + 0.3 * torch.randn(40, 32)
    targets = torch.randint(0, 260, (40,))
    found = measure.Bench(loaded).compare(dense, hidden, targets)
    head = loaded.model.lm_head.weight.double().numpy()
    p, q = (x.double().numpy() @ head.T for x in (dense, hidden))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    at, goal = np.arange(40), targets.numpy()
    assert found["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-4)
    assert found["nats"] == pytest.approx(-q[at, goal].mean(), rel=1e-5)
    assert found["nats_dense"] == pytest.approx(-p[at, goal].mean(), rel=1e-5)
    assert found["agree"] == (p.argmax(1) == q.argmax(1)).mean()
    assert found["right"] == (q.argmax(1) == goal).mean()


def test_text_is_measured_at_every_position_but_the_first(loaded, data):
    prompt = prompts.Prompts(data, loaded.tokenizer, 1).make(prompts.Item("text:prose", LENGTH, 0, 1))
    bench, ids = measure.Bench(loaded), torch.tensor([prompt.ids])
    found = bench.measure(prompt, methods.find("dense", 1))
    with torch.no_grad():
        log_p = loaded.model(ids).logits[0].log_softmax(-1)
    assert found["nats"] == pytest.approx(float(-log_p[:-1].gather(-1, ids[0, 1:, None]).mean()), rel=1e-5)
    assert found["area"] == 1 and found["kl"] == 0 and found["agree"] == 1
    kernel = bench.measure(prompt, methods.find("dense_kernel", 1))
    assert kernel["area"] == pytest.approx(1) and abs(kernel["kl"]) < 1e-6
    window = bench.measure(prompt, methods.find("window", 128))
    assert 0.5 < window["area"] < 0.99 and window["kl"] > 1e-6


@pytest.mark.parametrize(("gold_tokens", "limit"), [(1, 9), (6, 14)])
def test_the_greedy_answer_is_that_of_decoding_token_by_token(loaded, gold_tokens, limit):
    """Whatever the gold answer, along which the first choices are read; past it too, where it is the greedy one."""
    rng = np.random.default_rng(gold_tokens)
    ids = [256, *rng.integers(0, 250, 300).tolist()]
    prompt = prompts.Prompt("vt", 1, ids, [], rng.integers(0, 250, gold_tokens).tolist(), ("gold",))
    bench, dense = measure.Bench(loaded), methods.find("dense", 1)
    text = list(ids)
    with torch.no_grad():
        for _ in range(limit):
            text.append(int(loaded.model(torch.tensor([text])).logits[0, -1].argmax()))
    expected, gold = text[len(ids) :], text[len(ids) : len(ids) + gold_tokens]
    right = replace(prompt, answer=gold)
    for asked, past_gold, told in ((prompt, True, expected), (right, True, expected), (right, False, gold)):
        ((answer, _),) = bench.answers(asked, [dense], limit, past_gold=past_gold)
        assert answer == loaded.tokenizer.decode(told, skip_special_tokens=True)
    said = loaded.tokenizer.decode(gold, skip_special_tokens=True)
    for wanted in ((said,), ("neither",)):
        assert bench.measure(replace(right, gold=wanted), dense)["score"] == score_all(said, wanted)


def test_a_run_goes_on_where_it_was_cut_off(folder, data, tmp_path, capsys):
    out = tmp_path / "selection.jsonl"
    run.main(arguments(folder, data, out, "--methods", "window=128,256", "--seed", "1"))
    first = lines(out)
    assert [(r["method"], r["setting"], r["index"]) for r in first] == [
        *[("dense", 1, 0), ("window", 128, 0), ("dense", 1, 1), ("window", 128, 1)],
        *[("window", 256, 0), ("window", 256, 1)],
    ]
    assert all(row["reported"] and row["split"] == "test" for row in first)
    whole = out.read_text().splitlines()
    out.write_text("\n".join(whole[:-1]) + "\n" + whole[-1][:40])  # killed while it wrote
    again = arguments(folder, data, out, "--methods", "window=128,256", "--seed", "1")
    run.main(again)
    same = [{k: v for k, v in row.items() if not k.endswith("_ms")} for row in (lines(out)[-1], first[-1])]
    assert len(lines(out)) == len(first) and same[0] == same[1]
    run.main(again)
    assert len(lines(out)) == len(first)
    run.main([*again, "--limit-s", "0", "--prompts", "1", "--windows", "3"])
    assert len(lines(out)) == len(first) and "goes on from here" in capsys.readouterr().err


def test_what_is_foretold_stands_beside_the_kl(folder, data, tmp_path):
    out = tmp_path / "rows.jsonl"
    shared = ("--seed", "1", "--foretold", "6", "--methods", "window=128", "dense_kernel")
    run.main(arguments(folder, data, out, *shared))
    for row in lines(out):
        exact = row["method"] != "window"
        assert len(row["replayed"]) == len(row["dense"]) == 4
        assert row["entropy"] > 0 and row["surprise"] > 0
        assert (row["replayed"][-1] < 1e-6) == exact == (row["dense"][-1] < 1e-6)


def test_a_method_that_fails_leaves_a_row_and_the_others_go_on(folder, data, tmp_path, monkeypatch):
    def fail(view):
        raise ZeroDivisionError("no blocks")

    monkeypatch.setitem(methods.INLINE, "broken", (lambda _: fail, (1.0,)))
    out = tmp_path / "selection.jsonl"
    assert run.main(arguments(folder, data, out, "--methods", "broken", "window=128")) == 2
    found = lines(out)
    assert [row["method"] for row in found] == ["dense", "broken", "window"] * 2
    assert found[1]["failed"] == "ZeroDivisionError: no blocks" and not found[1]["reported"]
    measured, failed = rows.read_rows([out])
    assert len(measured) == 4 and len(failed) == 2
    monkeypatch.setitem(methods.INLINE, "broken", (lambda _: lambda view: None, (1.0,)))
    assert run.main(arguments(folder, data, out, "--methods", "broken")) == 0
    assert len(rows.read_rows([out])[0]) == 6 and not rows.read_rows([out])[1]
