"""The Head page filled, empty and in error, and what feeds it. No GPU, no browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from routesparse.app.screens.terms.page import EQUATIONS
from routesparse.app.shell.access import access
from routesparse.app.ui import design, reason_words
from routesparse.app.ui.glossary import TERMS, mark
from routesparse.app.unit import charts, masks, probe
from routesparse.engine.store import bundle, head_queries, queries

REPOSITORY = Path(__file__).resolve().parents[3]
RUN = "3f9a1c20d4e5b678"


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


def test_head_shows_probe_candidates_and_reason(filled, record, open_page):
    choice = next(c for c in record.choices if (c.layer, c.head, c.segment) == (2, 3, 1))
    page = open_page("head", run=RUN[:8], layer="2", head="3", segment="1")
    assert not page.exception
    html = text_of(page)
    assert "Layer 2, head 3" in html and reason_words.shown(choice.reason).replace(">", "&gt;") in html
    stored = next(p for p in record.probes if (p.layer, p.head, p.segment) == (2, 3, 1))
    assert f"Probe, {stored.rows} rows × {stored.columns * stored.pool} key blocks" in html
    assert not page.get("plotly_chart"), "Plotly takes longer to load than the page to draw"
    assert f"max over one row × {stored.pool} key block" in html, "the pool factor is printed"


@pytest.mark.parametrize("name", ["head", "routing_map"])
def test_pooled_probe_has_as_many_key_blocks_as_the_prompt(home, factory, open_page, name):
    odd = factory.make_record(layers=2, heads=2, segments=1, tokens=260 * 64, probe_columns=260)
    bundle.write_bundle(odd, home / "spool")
    assert "rows × 260 key blocks" in text_of(open_page(name, run=RUN, layer="0", head="0"))


def test_claims_stand_beside_the_audited_truth(filled, record, open_page):
    sparse = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    audit = next(a for a in record.audits if (a.layer, a.head, a.segment) == (sparse.layer, sparse.head, 0))
    html = text_of(open_page("head", run=RUN, layer=str(sparse.layer), head=str(sparse.head)))
    assert f"<b>{sparse.lower_mass:.3f}</b>" in html and f"<b>{audit.mass:.3f}</b>" in html
    holds = audit.mass >= sparse.lower_mass
    assert ("the bound holds" in html) is holds and ("below the bound" in html) is not holds


def test_a_missed_bound_says_by_how_much_and_that_some_may_be_missed(home, record, open_page):
    """Beside a green verdict "below the bound" alone puzzled: one bound in twenty may be too high by chance."""
    sparse = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    unit = (sparse.layer, sparse.head, 0)
    audits = tuple(
        replace(a, mass=sparse.lower_mass - 0.004, covered=False)
        if (a.layer, a.head, a.segment) == unit
        else a
        for a in record.audits
    )
    bundle.write_bundle(replace(record, audits=audits), home / "spool")
    html = text_of(open_page("head", run=RUN, layer=str(sparse.layer), head=str(sparse.head)))
    assert (
        "0.004 below the bound" in html
        and "At 95 % confidence one bound in 20 may be too high by chance" in html
    )
    audit = text_of(open_page("audit", run=RUN))
    assert re.search(r"y = x: 1 of \d+; at 95 % confidence one bound in 20 may be too high by chance", audit)


def test_dense_unit_has_no_certificate(home, factory, open_page):
    hard = factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=1.0, seed=11)
    choices = tuple(replace(c, pattern="dense", lower_mass=None) for c in hard.choices)
    bundle.write_bundle(replace(hard, choices=choices), home / "spool")
    assert "no certificate applies" in text_of(open_page("head", run=RUN, layer="0", head="0"))


def test_unit_without_audit_and_probe_says_so(filled, open_page):
    page = open_page("head", run="c0de17aa", layer="0", head="0")
    assert not page.exception
    html = text_of(page)
    assert "Not recorded for this unit" in html
    assert "not audited" in html or "no certificate applies" in html


def test_without_a_calibration_the_conformal_claim_is_not_made(home, record, open_page):
    bare = replace(
        record,
        run=replace(record.run, calibration=None),
        choices=tuple(replace(c, conformal_lower_mass=None) for c in record.choices),
    )
    bundle.write_bundle(bare, home / "spool")
    sparse = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    html = text_of(open_page("head", run=RUN, layer=str(sparse.layer), head=str(sparse.head)))
    assert '<b class="none">no calibration</b>' in html


def test_segments_link_to_each_other(filled, open_page):
    html = text_of(open_page("head", run=RUN, layer="1", head="1"))
    assert "over the segments" in html
    assert "head?run=d4e5b678&amp;layer=1&amp;head=1&amp;segment=1" in html


def test_other_runs_of_the_same_weights_are_compared(waiting, record, factory, open_page):
    other = factory.rename(record, "abcdabcd00001111")
    bundle.write_bundle(other, waiting / "spool")
    html = text_of(open_page("head", run=RUN, layer="1", head="1"))
    assert "head?run=00001111&amp;layer=1&amp;head=1&amp;segment=0" in html


def test_another_checkpoint_is_another_head(home, record, factory, open_page):
    other = factory.rename(record, "abcdabcd00001111")
    bundle.write_bundle(record, home / "spool")
    bundle.write_bundle(replace(other, run=replace(other.run, model_revision="other")), home / "spool")
    open_page("head", run=RUN)
    rows = head_queries.over_runs(access().store, queries.Unit(RUN, 0, 0, 0))
    assert list(rows["run_id"]) == [RUN]


def test_moving_changes_the_address(filled, open_page):
    page = open_page("head", run=RUN, layer="1", head="1")
    page.button(key="move-Right").click().run()
    page.button(key="move-Down").click().run()
    assert (page.query_params["layer"], page.query_params["head"]) == ("2", "2")
    assert "Layer 2, head 2" in text_of(page)


def test_head_without_an_address_opens_a_telling_unit(filled, open_page):
    assert "why" in text_of(open_page("head"))


@pytest.mark.parametrize("query", [{"layer": "99"}, {"head": "x"}, {"segment": "-1"}])
def test_senseless_addresses_fall_back(filled, open_page, query):
    page = open_page("head", run=RUN, **query)
    assert not page.exception
    assert "why" in text_of(page)


def test_link_to_an_unknown_run_says_so(filled, open_page):
    assert "This link leads nowhere" in text_of(open_page("head", run="deadbeef"))


def test_empty_head_says_what_to_do(home, open_page):
    page = open_page("head")
    assert not page.exception
    assert "No runs yet" in text_of(page)


def test_run_below_break_even_says_so(home, record, open_page):
    unrouted = replace(record.run, routed=False, units=0)
    bundle.write_bundle(
        replace(record, run=unrouted, choices=(), candidates=(), fallbacks=(), audits=(), probes=()),
        home / "spool",
    )
    assert "Nothing was routed" in text_of(open_page("head", run=RUN))


def test_damaged_probe_is_explained_and_names_stay_text(filled, open_page):
    open_page("runs")
    (access().store.bundle(RUN) / "probe.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(Exception, match="copy the bundle again"):
        queries.probe_full(access().store, queries.Unit(RUN, 0, 0, 0))


@pytest.mark.parametrize("chosen", range(4))
def test_the_choice_is_drawn_over_candidates_of_the_same_place(chosen):
    candidates = candidates_of("a_shape", "a_shape", "floor", "dense")
    candidates = candidates.assign(
        kernel_us=10.0, risk=0.1, gate_statistic=0.9, admissible=True, reason="", chosen=False
    )
    candidates.loc[chosen, "chosen"] = True
    marks = charts.scatter(candidates, 0.9, 0.9, design.LIGHT)["marks"]
    *_, last, ring = [mark for mark in marks if mark["kind"] == "points"]
    assert ring["color"] == "none" and last["told"][-1][0] == f"budget {chosen}"
    kinds = [mark["kind"] for mark in marks]
    assert kinds == sorted(kinds, key=["line", "points", "label"].index), "no line lies over a candidate"


def test_wide_probe_is_max_pooled_and_says_by_how_much():
    mass = np.zeros((3, 5_000), np.float32)
    mass[1, 4_321] = 0.7
    wide = queries.Heatmap(mass, np.array([5, 9, 9]), np.array([1, 2, 4], np.uint8), 3, 1, 2)
    shown = probe.limited(wide)
    assert shown.mass.shape == (3, 1_000) and shown.block_pool == 10
    assert shown.mass[1, 864] == np.float32(0.7), "a single key block survives"
    assert "3 rows" not in probe.legend(shown, design.LIGHT)
    chart = probe.figure(shown, design.LIGHT, 64, 300)
    assert len(set(chart["marks"][0]["rows"])) == 3, "repeated positions stay rows of their own"


def test_a_large_probe_stays_small_on_the_wire():
    mass = np.random.default_rng(0).random((272, 1_024), np.float32)
    kinds = np.full(272, 2, np.uint8)
    chart = probe.figure(queries.Heatmap(mass, np.arange(272), kinds, 272, 1, 1), design.DARK, 64, 300)
    assert len(json.dumps(chart)) < 800_000


@pytest.mark.parametrize("term", TERMS)
def test_every_term_is_escaped_and_names_its_place_in_the_paper(term):
    assert mark(term).count("<") == 2
    assert re.search(r"\(.*(equation|section|abstract|ours)[^)]*\)", TERMS[term]), TERMS[term]


def test_question_mark_leads_to_the_term_and_its_equation(home, open_page):
    assert 'href="terms?term=risk"' in mark("risk")
    page = open_page("terms", term="risk")
    assert not page.exception
    html = text_of(page)
    assert html.count("α u + β e") >= 3, "the term, its equation, and the equation in the list"
    assert html.count('<tr class="pick">') == 1


@pytest.mark.parametrize("term", ["", "no such <b>term</b>"])
def test_terms_page_lists_everything_also_for_an_unknown_term(home, open_page, term):
    page = open_page("terms", term=term)
    assert not page.exception
    assert text_of(page).count("<tr") == len(TERMS) and "no such" not in text_of(page)


@pytest.mark.parametrize("equation", EQUATIONS, ids=lambda row: f"equation {row[0]}")
def test_terms_names_files_that_exist(equation):
    assert (REPOSITORY / equation[-1]).is_file()


def candidates_of(*patterns):
    frame = pd.DataFrame({"candidate": range(len(patterns)), "pattern": patterns})
    return frame.assign(budget=[f"budget {i}" for i in range(len(patterns))])


@pytest.fixture
def masked():
    """Two rows over four mask cells of 2 x 64 tokens; the first row ends in cell 1."""
    levels = {"a_shape": np.array([[0, 0, 15, 15], [0, 15, 1, 0]], np.uint8)}
    levels["block_sparse"] = np.array([[0, 0, 15, 15], [0, 0, 15, 0]], np.uint8)
    return queries.Heatmap(
        np.ones((2, 8), np.float32), np.array([200, 511]), np.array([2, 2], np.uint8), 2, 1, 1, levels, 2
    )


def test_mask_greys_what_a_budget_does_not_read_and_nothing_after_the_row(masked):
    candidates = candidates_of("a_shape", "a_shape", "block_sparse", "dense")
    grey, clear = masks.NEITHER, masks.BOTH
    cells = [masks.overlay(masked, candidates, 64, i, None).cells.tolist() for i in (0, 1, 3)]
    assert cells[0] == [[clear] * 4, [clear, grey, grey, clear]]
    assert cells[1] == [[clear] * 4, [clear, grey, clear, clear]]
    assert cells[2] == [[clear] * 4] * 2


def test_two_masks_differ_where_only_one_reads(masked):
    candidates = candidates_of("a_shape", "a_shape", "block_sparse", "dense")
    shown = masks.overlay(masked, candidates, 64, 1, 2)
    assert shown.cells[1].tolist() == [
        masks.BOTH,
        masks.OTHER,
        masks.ONE,
        masks.BOTH,
    ]
    assert "only A · budget 1" in probe.legend(masked, design.LIGHT, shown)


def test_mask_of_the_choice_is_shown_and_the_address_names_another(filled, record, open_page):
    page = open_page("head", run="3f9a1c20", layer="1", head="1")
    chosen = next(c.candidate for c in record.choices if (c.layer, c.head, c.segment) == (1, 1, 0))
    assert page.selectbox(key="mask-choice").value == chosen
    other = (chosen + 1) % 20
    page.selectbox(key="against-choice").set_value(other).run()
    assert not page.exception
    assert page.query_params["against"] == str(other)
    assert "neither reads a key" in text_of(page)
    page.selectbox(key="mask-choice").set_value(None).run()
    assert page.query_params["mask"] == "none" and "reads no key" not in text_of(page)


def test_run_without_masks_says_so(home, record, open_page):
    bare = tuple(replace(p, masks=None, mask_columns=None, mask_pool=None) for p in record.probes)
    bundle.write_bundle(replace(record, probes=bare), home / "spool")
    page = open_page("head", run=RUN, layer="1", head="1")
    assert not page.exception
    assert "is not stored for this run" in text_of(page)
