"""Both pages filled, empty and in error, as Streamlit AppTests. No GPU, no browser."""

from __future__ import annotations

import json

from routesparse.app.ui import states
from routesparse.engine.store import bundle


def test_runs_page_lists_what_is_in_the_spool(filled, open_page):
    page = open_page("runs")
    table = page.dataframe[0].value
    assert list(table["prompt"]) == ["<b>router</b>.txt", "needles-16k.txt"]
    assert table["coverage"].isna().tolist() == [True, False]
    assert table["dense"].isna().tolist() == [True, False]
    assert "2 runs" in page.told


def test_empty_runs_page_says_what_to_do(home, open_page):
    page = open_page("runs")
    assert "No runs yet" in page.told
    assert page.code[0].value == states.here(".venv/bin/routesparse analyze FILE")


def test_rejected_bundle_is_shown_with_its_reason(waiting, record, factory, open_page):
    bad = bundle.write_bundle(factory.rename(record, "bad0bad0"), waiting / "spool")
    (bad / "audit.parquet").unlink()
    page = open_page("runs")
    assert page.expander[-1].label == "1 rejected bundle"
    assert any("audit.parquet is missing" in text.value for text in page.text)
    other_tab = open_page("runs")
    page.button(key="discard-bad0bad0").click().run()
    assert not page.expander and page.dataframe
    other_tab.button(key="discard-bad0bad0").click().run()
    assert not other_tab.exception and "bad0bad0" in other_tab.told


def test_dashboard_opens_at_the_runs(filled, open_dashboard):
    page = open_dashboard()
    html = page.told
    assert "RouteSparse reads a long prompt faster" in html
    assert "needles-16k.txt" in list(page.dataframe[0].value["prompt"])


def test_unreadable_database_is_explained_and_kept(home, open_dashboard):
    (home / "routesparse.duckdb").write_bytes(b"no database")
    page = open_dashboard()
    assert "The store can&#x27;t be used" in page.told and "Lost: names, notes" in page.told
    assert (home / "routesparse.duckdb").read_bytes() == b"no database"


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
