"""What the pages say of dense heads, full audits, runs without routing, and bounds that are just missed. No GPU."""

from dataclasses import replace

import pytest

from routesparse.app.screens.routing_map import map_figure, map_legend
from routesparse.app.shell.access import access
from routesparse.app.ui import design, numbers
from routesparse.engine.store import bundle, queries

RUN = "3f9a1c20d4e5b678"


def text_of(page):
    return " ".join(str(element.proto.body) for element in page.get("html"))


@pytest.fixture
def dense_unit(record):
    return replace(
        record.choices[0], pattern="dense", budget="all keys", density=1.0, lower_mass=None, fallback=None
    )


@pytest.fixture
def stored(home, record, dense_unit):
    """As the engine writes it: a dense unit has no row in the audit."""
    unit = (dense_unit.layer, dense_unit.head, dense_unit.segment)
    audits = tuple(a for a in record.audits if (a.layer, a.head, a.segment) != unit)
    bundle.write_bundle(
        replace(record, choices=(dense_unit, *record.choices[1:]), audits=audits), home / "spool"
    )


@pytest.mark.parametrize("page", ["routing_map", "head"])
def test_a_dense_head_of_an_audited_run_is_not_called_unaudited(stored, open_page, dense_unit, page):
    html = text_of(open_page(page, run=RUN, layer=str(dense_unit.layer), head=str(dense_unit.head)))
    assert "Not audited" not in html and "not audited" not in html


def test_the_map_of_errors_says_why_a_dense_head_has_none(stored, record, open_page, dense_unit):
    open_page("runs")
    choices = queries.choices(access().store, RUN, 0)
    shape = (record.run.layers, record.run.heads)
    layers = queries.layers(access().store, RUN)
    data, shown = map_figure.drawing(choices, layers, "audited_error", (0, 0), design.LIGHT, shape)
    tip = data["tips"][dense_unit.layer * shape[1] + dense_unit.head]
    assert "audited error none: a dense head reads every key" in tip and "not measured" not in tip
    assert "not measured, or a dense head" in map_legend.scale_legend(shown, "audited_error", design.LIGHT)


def test_a_full_audit_is_not_called_random_rows(home, record, open_page):
    bundle.write_bundle(replace(record, run=replace(record.run, audit_depth="full")), home / "spool")
    html = text_of(open_page("audit", run=RUN))
    assert "audited over all body rows" in html and "random rows, standard error" not in html


@pytest.mark.parametrize(
    ("tau", "shown"), [(0.9, "0.90"), (0.25, "0.25"), (0.895, "0.895"), (0.3, "0.30"), (1.0, "1.00")]
)
def test_a_tau_keeps_its_digits(tau, shown):
    assert numbers.threshold(tau) == shown


def test_a_hundred_percent_passed_means_all():
    assert [numbers.share_passed(v) for v in (1.0, 0.999, 0.57, None)] == [
        "100 %",
        "99 %",
        "57 %",
        "not measured",
    ]


@pytest.mark.parametrize("page", ["audit", "fallbacks"])
def test_a_run_that_was_not_routed_speaks_of_no_filter(home, record, open_page, page):
    empty = replace(record, choices=(), candidates=(), fallbacks=(), audits=(), probes=())
    bundle.write_bundle(replace(empty, run=replace(record.run, routed=False, units=0)), home / "spool")
    for scope in ("run", "all"):
        html = text_of(open_page(page, run=RUN, scope=scope))
        assert "filter" not in html and "Clear the domains" not in html, scope
    assert "No run of these weights was routed" in html


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.89996, "0.899"), (0.9, "0.900"), (0.57, "0.570"), (0.9004, "0.900"), (1.0, "1.000")],
)
def test_a_bound_below_tau_never_reads_as_tau(value, shown):
    assert numbers.bound(value) == shown and numbers.bound(None) == "not measured"


def test_a_head_that_just_misses_tau_shows_a_number_below_it(home, record, open_page):
    unit = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    near = replace(unit, lower_mass=0.89996)
    choices = tuple(near if c is unit else c for c in record.choices)
    bundle.write_bundle(replace(record, choices=choices), home / "spool")
    html = text_of(open_page("head", run=RUN, layer=str(unit.layer), head=str(unit.head)))
    assert "<b>0.899</b>" in html and "0.899, ran uncertified" in html and "<b>0.900</b>" not in html
