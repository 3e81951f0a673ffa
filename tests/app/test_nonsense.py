"""A damaged run breaks no page of another run, nor its own: such may be stored from before, or a disk lost rows."""

from __future__ import annotations

import itertools
import json
import math
import re

import pyarrow as pa
import pytest

from routesparse.app.shell.access import access
from routesparse.engine.store import bundle, checks, tables, verdicts

GOOD = "d4e5b678"
VALUES = {
    "largest": {pa.int64(): 2**31 - 1, pa.float64(): math.inf, pa.string(): "<b>x</b>"},
    "least": {pa.int64(): -1, pa.float64(): -1.0, pa.string(): ""},
    "none": {pa.int64(): 0, pa.float64(): math.nan, pa.string(): "\0\n"},
}
KEPT = {"run_id", "owner", "model_revision", "confidence", "config_json", "versions_json", "rows", "columns"}
LOST = ("layer_run", "head_choice", "candidate_score", "audit", "probe", "worst_row", "block_reads")
PAGES = [
    ("runs", {}),
    ("trust", {"run": GOOD, "scope": "all", "details": "true"}),
    ("trust", {"run": GOOD, "details": "true"}),
    ("compare", {"runs": GOOD}),
    ("domains", {"tuned": ""}),
    ("new_run", {}),
    ("compare", {"sweep": ""}),
    ("fleet", {}),
    ("routing_map", {"run": GOOD}),
]


@pytest.fixture
def nonsense(waiting, record, factory, monkeypatch):
    """A home with two good runs, and one run for every table and kind of nonsense in all its columns."""
    monkeypatch.setattr(checks, "check", lambda tables: None)
    for table in set(tables.TABLES) - {"prompt"}:
        schema = tables.arrow_schema(table)
        for kind, values in VALUES.items():
            path = bundle.write_bundle(factory.rename(record, f"{kind}-{table}"), waiting / "spool")
            wrong = {f.name: values[f.type] for f in schema if f.type in values and f.name not in KEPT}
            factory.rewrite(path, table, **wrong)
    # All are waited for, on a busy machine too.
    opened = access()
    opened.FEW, opened.FEW_PATIENCE_S = 100, 300.0
    opened.look_into_spool()
    assert len(opened.store.run_ids()) == 2 + 3 * 13


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # inf - inf is NaN, which pages show as not measured
def test_no_page_fails_for_the_sake_of_another_run(nonsense, open_page):
    for name, query in PAGES:
        assert "can't be drawn" not in open_page(name, **query).words, (name, query)


@pytest.fixture
def damaged(filled, record, factory, monkeypatch):
    """What writes a third good run, but for what ``change`` does to its tables, and takes it in unchecked."""
    monkeypatch.setattr(checks, "check", lambda tables: None)

    def write(run_id, change, only=(*tables.TABLES,)):
        path = bundle.write_bundle(factory.rename(record, run_id), filled / "spool")
        for table in set(only) - {"prompt", "run"}:
            factory.replace_rows(path, table, change)
        access().look_into_spool()

    return write


def no_number(word):
    """NaN and infinity, which Python writes into JSON and no browser reads."""
    raise AssertionError(f"{word} in a chart")


def broken_values(table):
    """Every third value of every column becomes infinite, of texts a long or an empty one."""
    for place, field in enumerate(table.schema):
        values = {pa.float64(): [math.inf, -math.inf, math.nan, 1e15], pa.string(): ["x" * 180, "", "\0\n"]}
        if field.type in values and field.name not in KEPT:
            wrong = itertools.cycle(values[field.type])
            mixed = [next(wrong) if i % 3 == 1 else old for i, old in enumerate(table[place].to_pylist())]
            table = table.set_column(place, field, pa.array(mixed, field.type))
    return table


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_pages_of_a_run_with_nonsense_in_its_rows_are_drawn(damaged, open_page):
    damaged("bad0bad0", broken_values)
    for name in ("routing_map", "text", "trust", "compare", "candidates"):
        query = {"runs": f"bad0bad0,{GOOD}"} if name == "compare" else {"run": "bad0bad0"}
        query |= {"detail": "candidates"} if name == "candidates" else {}
        page = open_page("routing_map" if name == "candidates" else name, **query)
        assert "can't be drawn" not in page.words, name
        assert not re.findall(r".{0,80}>[^<]*\bnan\b", page.told), name
        drawn = [json.loads(part.proto.json, parse_constant=no_number) for part in page.get("bidi_component")]
        assert all(len(one["letters"]) == len(one["cells"]) for one in drawn if "letters" in one), name


def test_a_run_that_lost_rows_says_so_on_its_pages(damaged, open_page):
    damaged("bad2bad2", lambda table: table.filter(pa.array([i % 3 > 0 for i in range(len(table))])), LOST)
    for name in ("routing_map", "text", "trust"):
        html = open_page(name, run="bad2bad2").words
        told = re.search(r'rs-verdict red" role="status">.*?Rows of this run were lost: (.*?)\.', html)
        assert told and told[1].startswith("21 of its 32 decisions and 2 of its 4 layers are stored"), name
        assert "can't be drawn" not in html, name
        assert ("not recorded" in html) == (name == "routing_map"), name
    whole = open_page("routing_map", run=GOOD).words
    assert "were lost" not in whole and "not recorded" not in whole


def test_a_run_that_lost_all_its_decisions_does_not_look_like_one_that_was_not_routed(damaged, open_page):
    damaged("bad4bad4", lambda table: table.slice(len(table)), ["head_choice"])
    for name in ("routing_map", "text", "trust"):
        html = open_page(name, run="bad4bad4").words
        assert "0 of its 32 decisions are stored" in html and "can't be drawn" not in html, name
        assert "Its decisions are not stored" in html and "Nothing was routed" not in html, name
        assert "break-even" not in html, name


def test_what_a_part_of_the_decisions_says_is_not_called_certified(damaged, open_page):
    damaged("bad5bad5", lambda table: table.slice(11), ["head_choice"])
    html = open_page("routing_map", run="bad5bad5").told
    figure = re.search(r"Mass not certified.*?<b[^>]*>(.*?)</b><small>decisions are missing", html)
    assert figure and figure[1] == "not measured"


def test_runs_tells_a_run_that_lost_rows_as_its_pages_do(damaged, open_page):
    damaged("bad3bad3", lambda table: table.slice(11), ["head_choice"])
    page = open_page("runs")
    (table,) = [part.value for part in page.dataframe if "verdict" in part.value]
    told = dict(zip(table["run"], table["verdict"], strict=True))
    assert told.pop("bad3bad3") == "✕ 11 of 32 rows lost"
    assert all(word.startswith(("✓", "!")) for word in told.values()), told
    assert table.set_index("run").loc["bad3bad3", ["certified"]].isna().all(), "nobody knows it of lost ones"
    assert verdicts.of_run(access().store, "bad3bad3").short == "11 of 32 rows lost"


@pytest.mark.parametrize(
    "file", ["probe.parquet", "prompt.parquet", "candidate_score.parquet", "head_choice.parquet"]
)
def test_a_file_that_a_disk_damaged_costs_a_page_one_card(filled, open_page, file):
    access().look_into_spool()
    damaged = next((filled / "bundles").glob(f"*{GOOD}")) / file
    damaged.write_bytes(damaged.read_bytes()[:1000])
    for name, card in (
        ("routing_map", "Certificates and the truth"),
        ("text", "Text"),
        ("trust", "Evidence"),
    ):
        details = ("probe", "certificates") if name == "routing_map" else ("",)
        pages = [open_page(name, run=GOOD, layer="1", head="1", detail=detail) for detail in details]
        html = "".join(page.words for page in pages)
        assert "can't be drawn" not in html and card in html, name
        assert str(filled) not in html, "a place on the server's disk"
        assert f"This run’s bundle is damaged ({file}): shown is what the store took in" in html
        if file == "probe.parquet" and name == "routing_map":
            assert "can't be read (Arrow" in html, name
