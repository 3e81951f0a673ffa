"""One run full of nonsense breaks no page of another run, whatever it holds: such runs may be stored from before."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from routesparse.app.shell.access import access
from routesparse.engine.store import bundle, run_checks, tables

GOOD = "d4e5b678"
VALUES = {
    "largest": {pa.int64(): 2**31 - 1, pa.float64(): math.inf, pa.string(): "<b>x</b>"},
    "least": {pa.int64(): -1, pa.float64(): -1.0, pa.string(): ""},
    "none": {pa.int64(): 0, pa.float64(): math.nan, pa.string(): "\0\n"},
}
KEPT = {"run_id", "owner", "model_revision", "confidence", "config_json", "versions_json", "rows", "columns"}
PAGES = [
    ("runs", {}),
    ("audit", {"run": GOOD, "scope": "all"}),
    ("audit", {"run": GOOD}),
    ("fallbacks", {"run": GOOD, "scope": "all"}),
    ("compare", {"runs": GOOD}),
    ("calibration", {}),
    ("new_run", {}),
    ("sweep", {}),
    ("fleet", {}),
    ("routing_map", {"run": GOOD}),
    ("head", {"run": GOOD, "layer": "0", "head": "0"}),
]


@pytest.fixture
def nonsense(waiting, record, factory, monkeypatch):
    """A home with two good runs, and one run for every table and kind of nonsense in all its columns."""
    monkeypatch.setattr(run_checks, "check", lambda tables: None)
    for table in set(tables.TABLES) - {"prompt"}:
        schema = tables.arrow_schema(table)
        for kind, values in VALUES.items():
            path = bundle.write_bundle(factory.rename(record, f"{kind}-{table}"), waiting / "spool")
            wrong = {f.name: values[f.type] for f in schema if f.type in values and f.name not in KEPT}
            factory.rewrite(path, table, **wrong)
    # All are waited for, on a busy machine too.
    for name, most in (("_FEW", 100), ("_FEW_PATIENCE_S", 300.0)):
        monkeypatch.setattr(f"routesparse.app.shell.access.{name}", most)
    opened = access()
    opened.look_into_spool()
    assert len(opened.store.run_ids()) == 2 + 3 * 11


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # inf - inf is NaN, which pages show as not measured
def test_no_page_fails_for_the_sake_of_another_run(nonsense, open_page):
    for name, query in PAGES:
        page = open_page(name, **query)
        assert not page.exception, (name, query, page.exception[0].stack_trace)
        assert not any("can't be drawn" in str(part.proto.body) for part in page.get("html")), name
