"""Units that ran uncertified are counted, named and marked on every page. No GPU, no browser."""

from dataclasses import replace

import pytest

from routesparse.app.screens.routing_map import map_figure
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.store import bundle, queries

RUN = "3f9a1c20d4e5b678"
OTHER = "abcdabcd00001111"


@pytest.fixture
def strict(home, record, factory):
    """A run whose heads 0 and 1 had no time to expand, and the same run where every certificate reached tau."""

    def unit(choice, missed):
        if choice.pattern == "dense":
            return choice
        mass = record.run.tau - 0.05 if missed else record.run.tau
        return replace(choice, fallback=None, lower_mass=mass, unmet=missed)

    def write(base, heads):
        choices = tuple(unit(c, c.head in heads) for c in base.choices)
        made = replace(base, choices=choices, fallbacks=())
        bundle.write_bundle(replace(made, run=replace(base.run, policy="strict")), home / "spool")
        return made

    write(factory.rename(record, OTHER), ())
    return write(record, (0, 1))


def text_of(page):
    return " ".join(str(element.proto.body) for element in page.get("html"))


def words(record):
    return f"{len(record.uncertified)} of {record.run.units} units ran uncertified"


def of(record, segment=0):
    return {(c.layer, c.head) for c in record.uncertified if c.segment == segment}


def test_trust_counts_them_and_a_certified_run_says_nothing_of_the_kind(strict, open_page):
    assert len(strict.uncertified) > 4
    html = text_of(open_page("trust", run=RUN))
    assert words(strict) in html and "That their mass reaches τ is not certified" in html
    sparse = sum(c.pattern != "dense" for c in strict.choices)
    assert (
        f"{sparse - len(strict.uncertified)} of {sparse} sparse units, a head in a segment each, keep" in html
    )
    assert f"Nothing fell back, but {len(strict.uncertified)} units ran uncertified." in html
    html = text_of(open_page("trust", run=OTHER))
    assert "units ran uncertified" not in html and f"{sparse} of {sparse} sparse units" in html
    assert "Nothing fell back: every certificate reached its τ, the nearest with 0 to spare." in html
    assert words(strict) in text_of(open_page("routing_map", run=RUN))


def test_the_map_marks_them_and_gives_them_a_step_of_their_own(strict, open_page):
    open_page("runs")
    choices = queries.choices(access().store, RUN, 0)
    shape = strict.run.layers, strict.run.heads
    layers = queries.layers(access().store, RUN)
    data, shown = map_figure.drawing(choices, layers, "fallback", (0, 0), design.LIGHT, shape)
    marked = {divmod(at, shape[1]) for at, mark in enumerate(data["marks"]) if mark == "u"}
    assert marked == of(strict)
    assert {map_figure.FALLBACK_STEPS[int(shown.values[at])] for at in marked} == {"ran uncertified"}
    assert all(
        ("ran uncertified" in tip) == (divmod(at, shape[1]) in marked) for at, tip in enumerate(data["tips"])
    )
    assert "units ran uncertified" in data["times"]["rows"][0]["tip"]


def test_the_head_says_it_beside_the_certified_mass(strict, open_page):
    layer, head = min(of(strict))
    mark = '<span class="rs-warn">ran uncertified</span>'
    html = text_of(open_page("routing_map", run=RUN, layer=str(layer), head=str(head), segment="0"))
    assert f"<td>{strict.run.tau - 0.05:.3f}</td>" in html and mark in html
    assert mark not in text_of(open_page("routing_map", run=OTHER, layer=str(layer), head=str(head)))


def test_the_runs_table_counts_them(strict, open_page, home):
    table = open_page("runs").dataframe[0].value
    found = dict(zip(table["run"], table["uncertified"], strict=True))
    assert found == {RUN[-8:]: len(strict.uncertified), OTHER[-8:]: 0}


def test_compare_has_them_side_by_side(strict, open_page):
    html = text_of(open_page("compare", runs=f"{RUN},{OTHER}"))
    assert "<th>uncertified</th>" in html
    assert f"<td>{len(strict.uncertified)}</td>" in html and "<td>0</td>" in html
