"""The Fallbacks page filled, empty and in error, and the queries behind it. No GPU, no browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from routesparse.app.shell.access import access
from routesparse.app.shell.scope import length_bucket
from routesparse.app.ui import numbers, plot
from routesparse.engine.store import bundle, fallback_queries

RUN = "3f9a1c20d4e5b678"


@pytest.fixture(scope="session")
def record(factory):
    """A hard prompt: some units expanded, some dense by fallback, some dense by the router."""
    return factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=1.5)


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


def test_events_show_trigger_target_and_price(filled, record, open_page):
    page = open_page("fallbacks", run=RUN)
    assert not page.exception
    table = page.dataframe[0].value
    assert len(table) == len(record.fallbacks)
    dearest = max(record.fallbacks, key=lambda event: event.paid_us)
    first = table.iloc[0]
    assert first["paid"] == round(dearest.paid_us)
    assert (first["layer"], first["head"], first["certified"]) == (
        dearest.layer,
        dearest.head,
        numbers.rounded_down(dearest.lower_mass),
    )
    assert table["deficit"].gt(0).all()
    scores = {(c.layer, c.head, c.segment, c.candidate): c for c in record.candidates}
    target = scores[dearest.layer, dearest.head, dearest.segment, dearest.to_candidate]
    assert first["to"].endswith(target.budget)


def test_a_single_event_is_counted_in_the_singular(home, record, open_page):
    bundle.write_bundle(replace(record, fallbacks=record.fallbacks[:1]), home / "spool")
    html = text_of(open_page("fallbacks", run=RUN))
    assert "n = 1 event ·" in html and "n = 1 run of model" in html


def test_three_kinds_are_kept_apart_and_add_up(filled, record, open_page):
    open_page("fallbacks", run=RUN)
    kinds = fallback_queries.kinds_by_layer(access().store, [RUN]).groupby("kind")["units"].sum()
    run = record.run
    assert kinds["dense by fallback"] == run.dense_fallback_units
    assert kinds["expanded"] == run.expanded_units
    assert kinds["dense by the router"] == run.dense_router_units
    assert kinds.sum() == run.units


def test_rate_above_the_limit_is_called_a_failure(filled, record, open_page):
    rate = 100 * record.run.dense_fallback_units / record.run.units
    assert 2 < rate < 98
    low = text_of(open_page("fallbacks", run=RUN, limit=str(int(rate) - 1)))
    high = text_of(open_page("fallbacks", run=RUN, limit=str(int(rate) + 1)))
    assert "Failure:" in low and "a high fallback rate a failure" in low
    assert "by the run’s own limit, 25 %" in low, "the verdict above may be green"
    assert "Failure:" not in high


def test_limit_starts_as_the_run_was_configured(filled, open_page):
    page = open_page("fallbacks", run=RUN)
    assert page.number_input(key="limit-choice").value == 25
    page.number_input(key="limit-choice").set_value(40).run()
    assert page.query_params["limit"] == "40"


@pytest.mark.parametrize("by", ["units", "time"])
def test_the_limit_of_the_whole_run_is_said_and_not_drawn_over_layers(filled, open_page, by, monkeypatch):
    drawn = {}
    monkeypatch.setattr(plot, "show", lambda chart, key, *rest: drawn.update({key: chart}))
    html = text_of(open_page("fallbacks", run=RUN, by=by))
    assert {mark["kind"] for mark in drawn["fallback-layers"]["marks"]} == {"bars"}
    assert "limit for dense by fallback: 25 % of all layers’ units together" in html


def test_over_budget_and_unmet_are_counted(home, record, open_page):
    strict = replace(
        record,
        run=replace(record.run, policy="strict", unmet_units=2),
        choices=tuple(replace(c, unmet=i < 2) for i, c in enumerate(record.choices)),
        layers=tuple(replace(row, over_budget=row.layer == 1) for row in record.layers),
    )
    bundle.write_bundle(strict, home / "spool")
    html = text_of(open_page("fallbacks", run=RUN))
    assert f"1 of {record.run.layers}" in html
    assert '<b class="">2</b><small>escalations' in html


def test_unmet_of_an_older_run_is_not_measured(home, record, open_page):
    older = replace(record, choices=tuple(replace(c, unmet=None) for c in record.choices))
    bundle.write_bundle(older, home / "spool")
    assert '<b class="none">not measured</b><small>escalations' in text_of(open_page("fallbacks", run=RUN))


def test_all_runs_cover_the_same_weights_only(waiting, record, factory, open_page):
    other = factory.rename(record, "abcdabcd00001111")
    bundle.write_bundle(replace(other, run=replace(other.run, model_revision="other")), waiting / "spool")
    page = open_page("fallbacks", run=RUN, scope="all")
    assert not page.exception
    assert "2 runs, 2 prompts" in text_of(page)
    assert set(page.dataframe[0].value["run"]) <= {"d4e5b678", "90e1f003"}


def test_scope_and_measure_live_in_the_address(filled, open_page):
    page = open_page("fallbacks", run=RUN, scope="all", by="time", domain="code")
    assert not page.exception
    assert "share of a layer&#x27;s predicted kernel time" in text_of(page)
    assert list(page.multiselect(key="domain").value) == ["code"]


def test_names_stay_text(filled, open_page):
    html = text_of(open_page("fallbacks", run="c0de17aa"))
    assert "<b>router</b>" not in html


def test_run_without_fallback_says_so(home, record, open_page):
    calm = replace(
        record,
        fallbacks=(),
        choices=tuple(replace(c, fallback=None) for c in record.choices),
    )
    bundle.write_bundle(calm, home / "spool")
    page = open_page("fallbacks", run=RUN)
    assert not page.exception
    assert "nothing fell back" in text_of(page) and not page.dataframe


def test_run_below_break_even_says_so(home, record, open_page):
    dense = replace(
        record,
        run=replace(record.run, routed=False, units=0),
        choices=(),
        candidates=(),
        fallbacks=(),
        audits=(),
        probes=(),
    )
    bundle.write_bundle(dense, home / "spool")
    html = text_of(open_page("fallbacks", run=RUN))
    assert "Nothing was routed in this run" in html and "below break-even" in html


def test_link_to_an_unknown_run_says_so(filled, open_page):
    assert "This link leads nowhere" in text_of(open_page("fallbacks", run="deadbeef"))


def test_empty_page_says_what_to_do(home, open_page):
    page = open_page("fallbacks")
    assert not page.exception
    assert "No runs yet" in text_of(page)


@pytest.mark.parametrize("query", [{"limit": "x"}, {"limit": "900"}, {"by": "²"}, {"scope": "x"}])
def test_senseless_addresses_fall_back(filled, open_page, query):
    page = open_page("fallbacks", run=RUN, **query)
    assert not page.exception
    assert page.number_input(key="limit-choice").value == 25


@pytest.mark.parametrize(
    ("tokens", "bucket"), [(4096, "2,049–4,096"), (4097, "4,097–8,192"), (7345, "4,097–8,192"), (1, "1–1")]
)
def test_length_buckets_are_powers_of_two(tokens, bucket):
    assert length_bucket(tokens) == bucket
