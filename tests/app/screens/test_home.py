"""The first page: what this is, a sample with notes, two buttons, the patterns. No GPU, no browser."""

from dataclasses import replace

import pytest

from routesparse.app.screens.home import pattern_icons
from routesparse.app.shell.access import access
from routesparse.app.ui import design, states
from routesparse.engine.method import families
from routesparse.engine.store import bundle

RUN = "3f9a1c20d4e5b678"


def text_of(page):
    return " ".join(str(element.proto.body) for element in page.get("html"))


def test_it_says_what_this_is_and_shows_an_annotated_run(filled, record, open_page):
    page = open_page("home")
    assert not page.exception
    html = text_of(page)
    assert "RouteSparse reads a long prompt faster" in html and "Every run has a verdict" in html
    assert 'aria-label="Routing map of needles-16k.txt, 4 layers by 4 heads"' in html
    assert "of the causal area kept" in html
    assert "certified, τ 0.90" in html and "d4e5b678</span></td>" in html, (
        "two runs of one prompt are told apart"
    )
    assert html.count('class="ring"') == 1 and "The ring: layer" in html


def test_the_buttons_lead_to_a_tour_and_to_a_new_run(filled, open_page, went):
    open_page("home").button(key="tour").click().run()
    open_page("home").button(key="analyse").click().run()
    assert went == [("map", {"run": "d4e5b678", "tour": 1}), ("new", {})]


def test_an_empty_store_offers_the_own_prompt_and_says_why_no_sample(home, open_page):
    page = open_page("home")
    assert not page.exception
    assert [button.key for button in page.button] == ["analyse"]
    assert "No sample is stored" in text_of(page) and "The patterns" in text_of(page)


def test_pages_without_runs_say_that_deleted_ones_are_in_the_trash(filled, open_page):
    open_page("home")
    store = access().store
    deleted = store.run_ids()
    for run_id in deleted:
        store.delete_run(run_id)
    told = f"{len(deleted)} runs are in the trash"
    assert told in text_of(open_page("home"))
    for name in ("routing_map", "compare"):
        html = text_of(open_page(name))
        assert f"No runs: {told}" in html and 'href="runs?"' in html


def test_a_command_names_the_home_where_it_is_not_the_default(home, monkeypatch):
    assert states.here(states.ANALYZE) == f"ROUTESPARSE_HOME={home} {states.ANALYZE}"
    monkeypatch.delenv("ROUTESPARSE_HOME")
    assert states.here(states.ANALYZE) == states.ANALYZE


def test_names_stay_text(filled, open_page):
    assert "<b>router</b>" not in text_of(open_page("home"))


def test_a_run_that_was_not_routed_is_no_sample(home, record, factory, open_page):
    empty = replace(record, choices=(), candidates=(), fallbacks=(), audits=(), probes=())
    bundle.write_bundle(replace(empty, run=replace(record.run, routed=False, units=0)), home / "spool")
    page = open_page("home")
    assert not page.exception
    assert "No sample is stored" in text_of(page) and "Dense attention ran untouched" in text_of(page)


def test_every_pattern_has_a_meaning_and_one_without_a_picture_is_named_all_the_same():
    html = pattern_icons.html(design.LIGHT)
    assert [name for name in families.in_order() if design.name(name) not in html] == []
    pictures = html.count("data:image/svg+xml")
    stranger = replace(families.registered()[0], name="comb", look=families.Look("comb", "C"))
    with families.using(*families.registered(), stranger):
        html = pattern_icons.html(design.LIGHT)
    assert "<b>comb</b><small>a family of this installation</small>" in html
    assert html.count("data:image/svg+xml") == pictures


@pytest.mark.parametrize(
    ("step", "page", "told"), [("1", "routing_map", "Next: a head"), ("4", "fallbacks", "Analyse my")]
)
def test_the_tour_stands_on_its_pages_and_leads_on(filled, open_page, step, page, told):
    html = text_of(open_page(page, run=RUN, tour=step))
    assert f"Tour, {step} of 4." in html and told in html
    assert "Tour," not in text_of(open_page(page, run=RUN, tour="9"))
    assert "tour=" in html or step == "4"


def test_the_tour_is_of_a_run_with_fallbacks_where_there_is_one(home, record, factory, open_page, went):
    bundle.write_bundle(record, home / "spool")
    calm = factory.rename(record, "ca1mca1mca1m0000")
    later = replace(calm.run, created_at="2027-01-01T00:00:00Z", expanded_units=0, dense_fallback_units=0)
    bundle.write_bundle(replace(calm, run=later), home / "spool")
    assert record.run.expanded_units > 0
    open_page("home").button(key="tour").click().run()
    assert went == [("map", {"run": "d4e5b678", "tour": 1})]
