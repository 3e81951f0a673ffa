"""Both pages filled, empty and in error, as Streamlit AppTests. No GPU, no browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html import escape

import pytest

from routesparse.app.shell.access import access
from routesparse.app.ui import numbers, reason_words, states
from routesparse.app.ui.glossary import CERTIFICATE_SCOPE
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import bundle, spool


def text_of(page) -> str:
    return " ".join(str(element.proto.body) for element in page.get("html"))


def test_runs_page_lists_what_is_in_the_spool(filled, open_runs):
    page = open_runs()
    assert not page.exception
    table = page.dataframe[0].value
    assert list(table["prompt"]) == ["<b>router</b>.txt", "needles-16k.txt"]
    assert table["coverage"].isna().tolist() == [True, False]
    assert table["dense"].isna().tolist() == [True, False]
    assert "2 runs" in text_of(page)


def test_runs_page_filters_by_domain(filled, open_runs):
    page = open_runs()
    page.multiselect(key="domain").select("code").run()
    assert list(page.dataframe[0].value["domain"]) == ["code"]
    page.text_input(key="q").input("no such prompt").run()
    assert "No run passes the filter" in text_of(page)


def test_baseline_in_the_address_is_compared_with_and_can_be_unpinned(filled, open_page):
    page = open_page("runs", baseline="d4e5b678")
    assert not page.exception
    assert "Baseline: <b><bdi>needles-16k.txt</bdi></b>" in text_of(page)
    against = page.dataframe[0].value["against"]
    assert against.isna().tolist() == [True, False], "another prompt takes another time"
    assert against.tolist()[1] == 0
    page.button(key="unpin").click().run()
    assert "against" not in page.dataframe[0].value
    assert "baseline" not in page.query_params


def test_pinned_baseline_leads_what_is_compared(filled, record, open_page):
    from routesparse.app.screens.runs import page as runs

    page = open_page("runs")
    other, pinned = access().store.run_ids() - {record.run.run_id}, record.run.run_id
    assert not page.exception
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "_baseline", lambda opened: record.run)
        assert runs._compared(access(), [*other, pinned]) == [pinned, *other]
        assert runs._compared(access(), []) == []
        patch.setattr(runs, "_baseline", lambda opened: None)
        assert runs._compared(access(), list(other)) == list(other)


def test_deleted_baseline_is_unpinned(filled, open_page):
    page = open_page("runs", baseline="deadbeef")
    assert not page.exception
    assert "against" not in page.dataframe[0].value


def test_empty_runs_page_says_what_to_do(home, open_runs):
    page = open_runs()
    assert not page.exception
    assert "No runs yet" in text_of(page)
    assert page.code[0].value == states.here(".venv/bin/routesparse analyze FILE")


def test_rejected_bundle_is_shown_with_its_reason(waiting, record, factory, open_runs):
    bad = bundle.write_bundle(factory.rename(record, "bad0bad0"), waiting / "spool")
    (bad / "audit.parquet").unlink()
    page = open_runs()
    assert page.expander[-1].label == "1 rejected bundle"
    assert any("audit.parquet is missing" in text.value for text in page.text)
    other_tab = open_runs()
    page.button(key="discard-bad0bad0").click().run()
    assert not page.expander and page.dataframe
    other_tab.button(key="discard-bad0bad0").click().run()
    assert not other_tab.exception and "bad0bad0" in text_of(other_tab)


def test_dashboard_opens_at_the_runs(filled, open_dashboard):
    page = open_dashboard()
    assert not page.exception
    html = text_of(page)
    assert "RouteSparse reads a long prompt faster" in html
    assert "needles-16k.txt" in list(page.dataframe[0].value["prompt"])


def test_unreadable_database_is_explained_and_kept(home, open_dashboard):
    (home / "routesparse.duckdb").write_bytes(b"no database")
    page = open_dashboard()
    assert not page.exception
    assert "The store can't be used" in text_of(page) and "Lost: names, notes" in text_of(page)
    assert (home / "routesparse.duckdb").read_bytes() == b"no database"


def test_map_shows_the_reason_of_the_unit_in_the_address(filled, record, open_map):
    choice = next(c for c in record.choices if (c.layer, c.head, c.segment) == (2, 3, 1))
    page = open_map(run="3f9a1c20", layer="2", head="3", segment="1")
    assert not page.exception
    html = text_of(page)
    assert "Layer 2, head 3: why" in html
    assert reason_words.shown(choice.reason).replace(">", "&gt;") in html
    assert html.count('<tr class="pick">') == 1
    assert "0.9" in html


def test_map_lists_the_certificates_that_failed(filled, record, open_map):
    event = record.fallbacks[0]
    page = open_map(run="3f9a1c20", layer=str(event.layer), head=str(event.head), segment=str(event.segment))
    assert f"certified {numbers.bound(event.lower_mass)} &lt; 0.90" in text_of(page)


def test_map_without_an_address_opens_the_newest_run_at_a_telling_unit(filled, open_map):
    page = open_map()
    assert not page.exception
    assert page.query_params["run"] == "90e1f003"
    assert "why" in text_of(page)


def test_map_escapes_names_from_the_bundle(filled, open_map):
    html = text_of(open_map(run="c0de17aa"))
    assert "<b>router</b>" not in html and "&lt;b&gt;router&lt;/b&gt;.txt" in html


@pytest.mark.parametrize(
    "metric",
    [
        "pattern",
        "density",
        "mass",
        "lower_mass",
        "disagreement",
        "risk",
        "entropy",
        "fallback",
        "audited_error",
        "probe",
    ],
)
@pytest.mark.parametrize("run", ["3f9a1c20", "c0de17aa"])
def test_every_metric_draws_also_where_nothing_was_audited(filled, open_map, metric, run):
    page = open_map(run=run, metric=metric)
    assert not page.exception
    assert page.get("bidi_component")


def test_unaudited_run_says_not_measured(filled, open_map):
    html = text_of(open_map(run="c0de17aa", layer="0", head="0"))
    assert "not measured" in html and "Not audited" in html


def test_moving_on_changes_the_address(filled, open_map):
    page = open_map(run="3f9a1c20", layer="1", head="1")
    page.button(key="move-Right").click().run()
    assert page.query_params["head"] == "2"
    page.button(key="move-Down").click().run()
    assert page.query_params["layer"] == "2"
    assert "Layer 2, head 2" in text_of(page)


def test_moving_stops_at_the_edge(filled, open_map):
    page = open_map(run="3f9a1c20", layer="0", head="3")
    assert page.button(key="move-Right").disabled and page.button(key="move-Up").disabled


def test_metric_and_segment_live_in_the_address(filled, open_map):
    page = open_map(run="3f9a1c20", layer="1", head="1")
    page.slider(key="segment-choice").set_value(2).run()
    assert page.query_params["segment"] == "1"
    assert "Segment 2 of 2" in text_of(page)


@pytest.mark.parametrize(
    "query", [{"layer": "99"}, {"head": "-1"}, {"segment": "x"}, {"metric": "drop table"}, {"layer": "²"}]
)
def test_senseless_addresses_fall_back(filled, open_map, query):
    page = open_map(run="3f9a1c20", **query)
    assert not page.exception
    assert "why" in text_of(page)


@pytest.mark.parametrize("name", ["routing_map", "head"])
def test_a_layer_that_the_run_has_not_is_named_and_not_silently_another(filled, open_page, name):
    html = text_of(open_page(name, run="3f9a1c20", layer="9", head="2", segment="7"))
    assert (
        "This run has no layer 9 (it has 0 to 3) and no segment 7 (it has 0 to 1): another one is shown."
        in html
    )
    assert "This run has no" not in text_of(open_page(name, run="3f9a1c20", layer="3", head="2"))
    assert (
        "<b>"
        not in text_of(open_page(name, run="3f9a1c20", layer="<b>9</b>")).split("This run has no")[1][:20]
    )


def test_link_to_an_unknown_run_says_so(filled, open_map):
    page = open_map(run="deadbeef")
    assert not page.exception
    html = text_of(page)
    assert "This link leads nowhere" in html and "another machine." in html and ">Runs</a>" in html
    assert ">No run" in html, "a sentence begins with a capital"


def test_empty_map_says_what_to_do(home, open_map):
    page = open_map()
    assert not page.exception
    assert page.code[0].value == states.here(".venv/bin/routesparse analyze FILE")
    assert ">New run</a>" in text_of(page)


def test_prompt_card_speaks_of_executed_masks_and_says_where_there_are_none(home, record, open_map):
    bundle.write_bundle(record, home / "spool")
    page = open_map(run="3f9a1c20")
    assert "whose executed plan reads a key block" in text_of(page) and "not recorded" not in text_of(page)
    access().store.delete_run(record.run.run_id)
    older = tuple(replace(p, masks=None, mask_columns=None, mask_pool=None) for p in record.probes)
    bundle.write_bundle(replace(record, probes=older), home / "spool")
    spool.ingest_spool(access()._store)
    page = open_map(run="3f9a1c20")
    assert not page.exception
    assert '<div class="rs-unknown">not recorded' in text_of(page)
    assert "ledger" in shown_text(page), "the text is still there"


@pytest.mark.parametrize("name", ["audit", "head", "terms"])
def test_what_a_certificate_speaks_about_stands_beside_it(filled, record, open_page, name):
    unit = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    page = open_page(name, run=record.run.run_id, layer=str(unit.layer), head=str(unit.head))
    assert not page.exception
    assert text_of(page).count(escape(CERTIFICATE_SCOPE)) == 1


def test_prompt_text_is_shown_in_its_block_only(filled, open_map):
    page = open_map(run="3f9a1c20")
    assert "ledger of the harbour" in shown_text(page)
    assert text_of(page).count("ledger of the harbour") == shown_text(page).count("ledger of the harbour")
    assert not page.markdown


def shown_text(page):
    """What stands in the block that shows the prompt's text."""
    (block,) = re.findall(r'<pre class="rs-block"[^>]*>(.*?)</pre>', text_of(page), re.DOTALL)
    return block


def test_the_web_process_imports_no_engine_library():
    code = (
        "import sys; import routesparse.app.main; "
        "print([m for m in ('torch', 'triton', 'transformers') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert result.stdout.strip().endswith("[]"), result.stderr


def test_page_with_a_defect_says_where_the_log_has_it_and_quotes_nothing(filled, open_dashboard, monkeypatch):
    def broken():
        raise ValueError("the prompt says heliotrope")

    monkeypatch.setattr("routesparse.app.screens.runs.page.render", broken)
    page = open_dashboard()
    assert not page.exception
    (state,) = [element.proto.body for element in page.get("html") if 'class="rs-state' in element.proto.body]
    (line,) = (filled / "logs" / "worker.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["error"]) == ("page_failed", "ValueError")
    assert entry["log_id"] in state and "unexpected ValueError" in state
    assert any("broken" in frame for frame in entry["frames"])
    assert "heliotrope" not in state + line
