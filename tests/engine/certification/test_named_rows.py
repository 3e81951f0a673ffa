"""Rows that the caller names: read, found by a phrase, measured exactly, and what they do to a verdict. CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from routesparse.engine import certify
from routesparse.engine.certificate_rows import totals
from routesparse.engine.certification.certify import Request, certify_attention
from routesparse.engine.certification.named_rows import check_within, read_names, rows_of_phrase
from routesparse.engine.certification.report import Settings
from routesparse.engine.errors import ConfigError, PromptError
from routesparse.engine.prompts.text import Prompt
from tests.engine import tiny_shape

N = 200


def made(heads=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, h, N, 16, generator=generator) for h in (heads, 2, 2))
    groups = heads // 2
    logits = q @ k.repeat_interleave(groups, 1).transpose(-1, -2) / 4.0
    logits.masked_fill_(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    return q, k, v, logits.softmax(-1) @ v.repeat_interleave(groups, 1)


def certified(out, *labels, q, k, v, **settings):
    request = Request(Settings(**settings), rows=8, rows_at=read_names(labels))
    return certify_attention(q, k, v, out, request=request)


def test_their_figures_are_those_of_exactly_these_rows():
    q, k, v, exact = made()
    out = exact.clone()
    out[0, 2, 150] *= 1.5  # half of it too much
    out[0, 1, 151] *= 1.25
    found = certified(out, "148:152", "last:10", q=q, k=k, v=v)
    first, last = found.by_name
    assert (first.label, first.tokens, first.rows) == ("148:152", 4, 16)
    assert first.mean_error == pytest.approx((0.5 + 0.25) / 16, rel=1e-4)
    assert first.beyond_rounding == 2 and last.beyond_rounding == 0
    assert (first.worst.position, first.worst.worst_head, first.worst.worst_layer) == (150, 2, 0)
    assert first.worst.largest_error == pytest.approx(0.5, rel=1e-4)
    assert [row.position for row in found.named if row.label == "last:10"] == list(range(190, 200))
    assert first.mass is None and first.beyond_tolerance is None


def test_naming_rows_changes_no_claim():
    q, k, v, exact = made()
    out = exact * 1.01
    plain, named = (certified(out, *labels, q=q, k=k, v=v) for labels in ((), ("last:64",)))
    assert (plain.run, plain.by_head) == (named.run, named.by_head)
    assert plain.verdict.sentence == named.verdict.sentence
    assert plain.verdict.findings == named.verdict.findings[:-1]
    assert "a measurement of these rows, no bound for others" in named.verdict.findings[-1]


@pytest.mark.parametrize(
    ("factor", "settings", "drawn", "level"),
    [
        (1.2, {}, "exact", "differs"),
        (float("nan"), {}, "exact", "broken"),
        (float("nan"), {"tolerance": 1.0, "most_beyond": 0.4}, "exact", "broken"),
        (1.2, {"tolerance": 0.1, "most_beyond": 0.4}, "exact", "differs"),
        (1.2, {"tolerance": 0.5, "most_beyond": 0.4}, "exact", "within"),
        (1.0, {}, "exact", "exact"),
    ],
)
def test_named_rows_make_a_verdict_worse_and_say_so(factor, settings, drawn, level):
    """The two named tokens are wrong in every head, and none of the rows drawn is one of them."""
    q, k, v, exact = made()
    out = exact.clone()
    out[:, :, 120:122] *= factor
    plain = certified(out, q=q, k=k, v=v, **settings)
    assert not {120, 121} & set(plain.scores[0]["positions"].flatten().tolist())
    assert plain.verdict.level == drawn
    verdict = certified(out, "120:122", q=q, k=k, v=v, **settings).verdict
    assert verdict.level == level
    assert ("of the 8 rows named 120:122" in verdict.sentence) == (level != drawn)
    assert (plain.verdict.sentence in verdict.findings) == (level != drawn)


def test_a_tolerance_asks_of_named_rows_what_it_asks_of_all():
    """One of eight rows is beyond it: not with 1 %, but with 20 %."""
    q, k, v, exact = made()
    out = exact.clone()
    out[0, 0, 120] *= 1.2
    for most, level in ((0.1, "differs"), (0.2, "within")):
        found = certified(out, "120:122", q=q, k=k, v=v, tolerance=0.1, most_beyond=0.4)
        settings = replace(found.settings, most_beyond=most)
        (total,) = found.by_name
        assert total.beyond_tolerance == 1 and total.level(settings.most_beyond) == level


def test_good_named_rows_do_not_mend_a_bad_verdict():
    q, k, v, exact = made()
    out = exact * 1.5
    out[:, :, 120:122] = exact[:, :, 120:122]
    assert certified(out, "120:122", q=q, k=k, v=v).verdict.level == "differs"


def test_a_plan_s_mass_and_largest_key_are_those_of_the_named_rows():
    q, k, v, exact = made()
    band = torch.zeros(1, N, N, dtype=torch.bool)
    band[:, :, :32] = True
    band[:, :100] = True
    request = Request(rows=8, plan=band, block=(1, 1), rows_at=read_names(["100:104", "50:54"]))
    far, near = certify_attention(q, k, v, exact, request=request).by_name
    keys = k.repeat_interleave(2, 1)
    weights = q[0, :, 100:104] @ keys[0].transpose(-1, -2) / 4.0
    for row in range(4):
        weights[:, row, 101 + row :] = -torch.inf
    weights = weights.softmax(-1)
    assert far.mass == pytest.approx(float(weights[..., :32].sum(-1).mean()), rel=1e-5)
    assert far.hit_rate == pytest.approx(float((weights.argmax(-1) < 32).double().mean()))
    assert near.mass == pytest.approx(1.0) and near.hit_rate == 1.0


def test_a_chunked_prefill_has_each_named_row_in_its_chunk(tiny):
    model, ids = tiny
    with certify(model, rows=4, rows_at=["10:14", "118:122", "last:3"]) as report:
        cache = model(ids[:, :120], use_cache=True).past_key_values
        model(ids[:, 120:], past_key_values=cache)
    first, second = ([row.position for row in one.named] for one in report.passes)
    assert first == [10, 11, 12, 13, 118, 119, 117, 118, 119]
    assert second == [120, 121, 197, 198, 199]
    assert report.verdict.level == "exact"
    assert totals(report.last.named)[0].rows == 2 * 2 * 4


def test_rows_are_not_named_in_chunks_whose_beginning_a_sliding_window_s_cache_forgot(tiny):
    model, ids = tiny_shape.decoder("Mistral", sliding_window=32), tiny[1]
    with certify(model, rows=4, rows_at=["150:154"]) as whole:
        model(ids)
    assert [row.position for row in whole.last.named] == [150, 151, 152, 153]
    assert whole.about.model == "MistralForCausalLM"
    with (
        pytest.raises(ConfigError, match="run the prompt in one pass"),
        certify(model, rows=4, rows_at=["150:154"]),
    ):
        cache = model(ids[:, :120], use_cache=True).past_key_values
        model(ids[:, 120:], past_key_values=cache)


def test_rows_that_no_prompt_had_and_padded_batches_are_refused(tiny):
    model, ids = tiny
    with (
        pytest.raises(
            PromptError, match="rows 500:510 were in no certified prefill; the last had tokens 0:200"
        ),
        certify(model, rows=4, rows_at=["last:3", "500:510"]),
    ):
        model(ids)
    real = torch.ones(2, N, dtype=torch.long)
    real[1, :70] = 0
    with (
        pytest.raises(ConfigError, match="rows can't be named in a padded batch"),
        certify(model, rows=4, rows_at=["last:3"]),
    ):
        model(ids.expand(2, -1), attention_mask=real)


@pytest.fixture(scope="module")
def tiny():
    model = tiny_shape.decoder().requires_grad_(False)
    return model, torch.randint(3, 97, (1, N), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "label", ["", "17", "5:5", "9:5", "last", "last:0", "a:b", "-3:5", "1:2:3", "last:-1", " 1:2"]
)
def test_what_names_no_rows_is_refused(label):
    with pytest.raises(ConfigError, match="names no rows; write START:STOP"):
        read_names([label])


def test_too_many_rows_and_rows_behind_the_prompt_are_refused():
    with pytest.raises(ConfigError, match="4,097 tokens are named"):
        read_names(["0:4000", "last:97"])
    with pytest.raises(ConfigError, match="rows 90:101 end behind the prompt, which has 100 tokens"):
        check_within(read_names(["last:500", "90:101"]), 100)
    check_within(read_names(["last:500", "90:100"]), 100)


TEXT = "The code of Oslo is 44. Smile \U0001f600 now. What is the code of Oslo?"


def prompt_of(text=TEXT):
    """Words are tokens with the blank before them, the smile is three, and bos stands in front."""
    starts, at = [0], 0
    for word in text.split(" "):
        starts += [at] * (3 if word == "\U0001f600" else 1)
        at += len(word) + (0 if at == 0 else 1)
    return Prompt("oslo.txt", text, "0" * 64, tuple(range(len(starts))), tuple(starts))


@pytest.mark.parametrize(
    ("phrase", "read"),
    [
        ("What is the code", " What is the code"),
        ("hat i", " What is"),
        ("\U0001f600 now", " \U0001f600 now."),
        ("Oslo?", " Oslo?"),
    ],
)
def test_a_phrase_names_the_tokens_that_it_touches(phrase, read):
    prompt = prompt_of()
    start, stop = map(int, rows_of_phrase(prompt, phrase).split(":"))
    assert "".join(prompt.token_text(token) for token in range(start, stop)) == read
    assert stop - start == len(read.split()) + 2 * ("\U0001f600" in read)


def test_a_phrase_that_is_not_there_once_is_an_error_that_names_the_tokens():
    with pytest.raises(
        PromptError, match=r"is in prompt 'oslo.txt' 2 times, at tokens 2:5, 15:18; pass more"
    ):
        rows_of_phrase(prompt_of(), "code of Oslo")
    with pytest.raises(PromptError, match=r"is not in prompt 'oslo.txt'; copy it letter by letter"):
        rows_of_phrase(prompt_of(), "Bergen")
    with pytest.raises(PromptError, match="an empty phrase names no rows"):
        rows_of_phrase(prompt_of(), "")
