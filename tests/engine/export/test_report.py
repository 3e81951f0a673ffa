"""A run as one HTML page: parsed, what it says is the run's; hostile text stays text; nothing is fetched. No GPU."""

from __future__ import annotations

import base64
import hashlib
import shlex
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import typer

from routesparse.engine.cli.main import app
from routesparse.engine.export import palette, report_page
from routesparse.engine.store import bundle
from routesparse.engine.verdict import SIGNS, WORDS, of_record

SECRET = "the code of Oslo is 4417"
HOSTILE = '</title><script>alert(1)</script><img src=x onerror="alert(2)">\u2028\u202e\u0000&amp;'
VOID = {"wbr", "meta", "img", "br", "link", "input"}


class Page(HTMLParser):
    """Elements, attributes, text by element, and tables as lists of rows."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.tables: list[list[list[str]]] = []
        self.feed(source)
        self.close()
        assert self.open == []  # every element is closed, in order

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.words.setdefault(tag, []).append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def text(self, tag: str = "body") -> str:
        return "".join(self.words.get(tag, ()))

    def table(self, head: str) -> list[list[str]]:
        return next(rows for rows in self.tables if rows[0][0] == head)


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_record(
        "7a71e0f1", layers=4, heads=4, segments=2, tokens=4096, probe_columns=32, hardness=0.9
    )


@pytest.fixture(scope="module")
def page(record):
    return Page(report_page.page(record, words=False))


def test_the_verdict_and_every_finding_stand_on_the_page(record, page):
    found = of_record(record)
    assert f"{SIGNS[found.level]} {WORDS[found.level]}. {found.sentence}." in page.text()
    assert all(finding.text in page.text() for finding in found.findings)


def test_each_segment_has_a_map_with_a_letter_for_every_unit(record, page):
    maps = [rows for rows in page.tables if rows[0][0].startswith("layer ↓")]
    assert len(maps) == record.run.segments
    for choice in record.choices:
        cell = maps[choice.segment][1 + choice.layer][1 + choice.head]
        assert cell.startswith(palette.letter(choice.pattern))
        assert ("■" in cell) == (choice.fallback == "dense")


def test_the_predicted_loss_leads_with_its_stretches_and_the_truth(record):
    made = report_page.page(record, words=True)
    told = f"at most 0.0130 nats (95 % confidence). Dense ran, too: true {record.true_loss:.4f} nats a token"
    assert f"Predicted 0.0060 nats a token, by the model&#x27;s fit on mixed; {told}" in made
    assert made.index("<dt>Predicted loss</dt>") < made.index("<dt>Causal area kept</dt>")
    assert "its text" in made and "its text" not in report_page.page(record, words=False)
    unfitted = replace(record.run, loss_fit=None, loss_alarm=None, loss_target=0.01)
    made = report_page.page(replace(record, run=unfitted, losses=()), words=False)
    assert "by a stated factor; no bound: the model is not fitted; target 0.01 nats." in made
    alarm = replace(record, run=replace(record.run, loss_alarm=True))
    assert "no bound: rows unlike the fit’s" in report_page.page(alarm, words=False)
    none = replace(record, run=replace(record.run, loss_nats=None), losses=())
    made = report_page.page(none, words=False)
    assert "no rows of this run were replayed" in made and "<dt>Mass not certified</dt>" in made


def test_tables_hold_the_numbers_of_the_run(record, page):
    times = page.table("layer")
    assert [row[0] for row in times[1:]] == [f"layer {row.layer}" for row in record.layers]
    ended = {row[0]: row[1] for row in page.table("how it ended")[1:]}
    assert int(ended["dense by fallback"]) == record.run.dense_fallback_units
    assert int(ended["expanded"]) == record.run.expanded_units
    reasons = page.table("reason")[1:]
    assert sum(int(row[2]) for row in reasons) == len(record.fallbacks)
    claims = {row[0]: row for row in page.table("claim")[1:]}
    audited = [audit for audit in record.audits if audit.covered is not None]
    assert claims["in-prompt, of a head"][3] == str(len(audited))
    assert claims["in-prompt, of a head"][4] == f"{100 * record.run.coverage:.1f} %"


def test_everything_is_on_the_page_and_nothing_is_fetched(record):
    source = report_page.page(record, words=True)
    page = Page(source)
    assert {"script", "img", "link", "iframe", "object", "base"}.isdisjoint(tag for tag, _ in page.elements)
    assert not any({"src", "href", "style", "onerror"} & set(attributes) for _, attributes in page.elements)
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.text("style").encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert page.elements.count(("h1", {})) == 1 and ("html", {"lang": "en"}) in page.elements
    assert all("scope" in attributes for tag, attributes in page.elements if tag == "th")


def test_words_of_the_prompt_are_there_only_where_they_were_asked_for(record, tmp_path):
    folder = bundle.write_bundle(record, tmp_path)
    assert "No word of the prompt" in report_page.of_bundle(folder, words=False)
    assert "harbour" not in report_page.of_bundle(folder, words=False)
    assert "harbour" in report_page.of_bundle(folder, words=True)
    assert "token 4417" not in report_page.of_bundle(folder, words=False), "its number is its text"
    continued = "continuations, decoded greedily"
    for words in (False, True):
        source = report_page.of_bundle(folder, words=words)
        assert continued in source
        assert ("by this run</th>" in source.partition(continued)[2].partition("</table>")[0]) == words


def test_hostile_names_and_texts_stay_text(record):
    answers = tuple(replace(row, text=HOSTILE) for row in record.answers)
    text = (HOSTILE * (1 + len(record.prompt.text) // len(HOSTILE)))[: len(record.prompt.text)]
    run = replace(
        record.run,
        **dict.fromkeys(
            ("prompt_name", "model", "device", "domain", "calibration", "profile", "git_commit"), HOSTILE
        ),
        versions_json='{"<b>x</b>": "\\u2028<script>"}',
        calibration_mismatch=HOSTILE,
    )
    hostile = replace(record, run=run, answers=answers, prompt=replace(record.prompt, text=text))
    source = report_page.page(hostile, words=True)
    page = Page(source)
    assert not set("\u2028\u2029\u202e\u0000") & set(source)
    assert {tag for tag, _ in page.elements} == {
        tag for tag, _ in Page(report_page.page(record, words=True)).elements
    }
    assert (
        page.text("h1")
        == '</title><script>alert(1)</script><img src=x onerror="alert(2)">⟨U+2028⟩⟨U+202E⟩␀&amp;'
    )


def test_the_command_is_one_that_the_command_line_reads(record):
    words = shlex.split(report_page.command(record))
    assert words[:2] == ["routesparse", "analyze"]
    context = typer.main.get_command(app).commands["analyze"].make_context("analyze", words[2:])
    assert (context.params["policy"], context.params["seed"]) == (record.run.policy, record.run.seed)
    assert context.params["tau"] == record.run.tau


@pytest.mark.parametrize("kept", ["bare", "untouched", "priced"])
def test_a_run_with_less_in_it_has_a_page_too(factory, record, kept):
    small = {"layers": 2, "heads": 2, "segments": 1, "tokens": 2048, "probe_columns": 16}
    if kept == "bare":
        poor = factory.make_record("b0", **small, audit=False, dense=False, probe=False, prompt=False)
        told = "Not audited"
    elif kept == "untouched":
        empty = dict.fromkeys(("choices", "fallbacks", "audits", "worst_rows", "layers"), ())
        run = replace(record.run, routed=False, units=0, density=None, versions_json="{}", calibration=None)
        poor, told = replace(record, run=run, **empty), "below break-even"
    else:
        poor, told = factory.priced(factory.make_record("b1", hardness=0.9)), "in-prompt, of a layer's mean"
    assert told in Page(report_page.page(poor, words=True)).text()


@pytest.mark.parametrize(
    ("segments", "mass", "claims", "held"),
    [
        (1, 0.99, "", ("4", "100.0 %")),
        (1, 0.0, "", ("4", "0.0 %")),
        (2, 0.99, "", ("0", "not measured")),
        (2, 0.0, "; in 4 layers of several segments one is below the least bound", ("0", "not measured")),
    ],
)
def test_a_layer_s_certificate_is_held_only_where_its_own_claim_is_known(
    factory, segments, mass, claims, held
):
    """Of several segments a run keeps the least claim."""
    shape = {"layers": 4, "heads": 4, "segments": segments, "tokens": 4096, "probe_columns": 16}
    made = factory.priced(factory.make_record("b2", hardness=0.9, **shape), raised=())
    made = replace(made, audits=tuple(replace(a, mass=mass) for a in made.audits))
    _, row, *_ = Page(report_page.page(made, words=False)).table("claim")
    assert row[0] == "in-prompt, of a layer's mean"
    assert ("several" in row[2], row[2].endswith(claims)) == (bool(claims), True)
    assert tuple(row[3:]) == held


def test_a_map_of_a_large_model_is_drawn_once_for_light_and_dark(factory):
    record = factory.make_record(
        "128b", layers=32, heads=32, segments=1, tokens=8192, probe=False, prompt=False
    )
    source = report_page.page(record, words=False)
    assert len(source) < 600_000
    Page(source)


def test_a_run_that_claims_many_prompts_and_segments_has_its_page_at_once(factory):
    record = factory.make_record("5a11a11a11a3", layers=1, heads=2, segments=1, tokens=1024, probe_columns=8)
    claimed = replace(record.run, batch=1 << 16, segments=1 << 20)
    started = time.thread_time()
    page = report_page.page(replace(record, run=claimed), words=False)
    assert "prompt 1 of 65536" in page
    assert time.thread_time() - started < 20, "7e10 pairs of prompt and segment take for ever"


def test_the_alarm_stands_beside_the_conformal_claim(record):
    for change, told in (
        ({"drift_alarm": True}, "conformal, of a head: ignore it, drift alarm"),
        (
            {"calibration_mismatch": "other weights"},
            "conformal, of a head: ignore it, the calibration does not fit",
        ),
        ({"drift_alarm": False}, "conformal, of a head"),
    ):
        shown = Page(report_page.page(replace(record, run=replace(record.run, **change)), words=False))
        assert told in [row[0] for table in shown.tables for row in table]
