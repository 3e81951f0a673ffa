"""The page Fleet filled, empty and in error, and the way to the runs behind a figure. No GPU, no browser."""

from __future__ import annotations

import datetime
import shutil

import pytest

from routesparse.app.screens.fleet import figures
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.stats import fleet_alarms
from routesparse.engine.store import bundle, fleet_queries, queries, spool
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.verdict import LEVELS

BEFORE, BAD, QUIET = "2026-11-18", "2026-11-19", "2026-11-20"


@pytest.fixture(scope="module")
def served_home(factory, tmp_path_factory):
    """A home with a model's requests: 20 on a good day, 20 on a bad one, 3 on the next; and an analysis made here."""
    home = tmp_path_factory.mktemp("served")
    made = factory.small_record()
    bundle.write_bundle(factory.rename(made, "a-analysis"), home / "spool")
    counts = {BEFORE: 20, BAD: 20, QUIET: 3}
    for day, count in counts.items():
        for place in range(count):
            request = factory.served(
                factory.rename(made, f"{day}-{place:04d}"),
                f"{day}T23:{place:02d}:00+00:00",
                model="<b>served</b>",
                density=0.2 if day == BEFORE else 0.6,
                drift_alarm=day == BAD and place < 18,
            )
            bundle.write_bundle(request, home / "spool")
    store = Store(home / "routesparse.duckdb")
    assert len(spool.ingest_spool(store, home / "spool").ingested) == 1 + sum(counts.values())
    store.close()
    return home


@pytest.fixture
def served(home, served_home):
    """The store of a copy of it."""
    shutil.copytree(served_home, home, dirs_exist_ok=True)
    return access().store


def test_days_have_their_figures_and_analyses_are_left_out(served):
    assert fleet_queries.recorded_days(served) == (BEFORE, QUIET)
    found = fleet_queries.by_day(fleet_queries.requests(served, QUIET, 14)).set_index("day")
    assert list(found["requests"]) == [20, 20, 3] and set(found["most_one_in"]) == {50}
    assert found.loc[BAD, ["drift_alarms", "drift_assessed"]].tolist() == [18, 20]
    assert found.loc[BEFORE, "median_density"] == pytest.approx(0.2)
    levels = found[list(LEVELS)].sum(axis=1)
    assert list(levels) == [20, 20, 3]


def test_an_alarm_names_model_day_figure_and_leads_to_its_runs(served, open_page):
    page = open_page("fleet")
    html = page.words
    assert "<b>served</b>, 2026-11-19: 18 of 20 requests raised a drift alarm" in html
    assert "against 0 of 20 (0.0 %) in the 7 days before" in html
    assert "1 in 50 recorded" in html and "n = 1 judged day of a model, 2 too few" in html
    assert "4 figures of one day of one model, none over days or models" in html
    told = "Over this 1 judged day, expect at most 0.001 false alarms if requests are independent"
    assert f"{told}; a day that is not over counts more" in html
    assert "day=2026-11-19" in html and "reason=drift+alarm" in html
    assert "<b>served</b>" not in page.told


def test_the_view_is_in_the_address(served, open_page):
    html = open_page("fleet", alarm="area kept", model="<b>served</b>", days="7").words
    assert "raised a drift alarm" not in html and "requests kept more than" in html


def recorded(home, factory, days):
    """Requests on each day: ``days`` is the time they were recorded -> how many."""
    made = factory.small_record()
    for day, count in days.items():
        for place in range(count):
            name = factory.rename(made, f"{day}-{place}")
            bundle.write_bundle(factory.served(name, f"{day}T00:00:{place:02d}+00:00"), home / "spool")
    opened = access()
    while len(opened.store.run_ids()) < sum(days.values()):
        opened.look_into_spool()


def test_today_is_left_out_of_the_false_alarms_to_expect(home, factory, open_page):
    today = datetime.datetime.now(datetime.UTC).date()
    days = [(today - datetime.timedelta(back)).isoformat() for back in (2, 1, 0)]
    recorded(home, factory, dict.fromkeys(days, 20))
    html = open_page("fleet").words
    assert "n = 2 judged days of a model" in html
    assert "Over this 1 judged day (today left out), expect at most 0.001 false alarms" in html


def test_runs_lists_the_requests_of_a_day(served, open_page):
    page = open_page("runs", source=queries.SOURCES[1], day=QUIET)
    assert not page.exception and len(page.dataframe[0].value) == 3
    assert len(open_page("runs", source=queries.SOURCES[0]).dataframe[0].value) == 1


def test_a_day_of_few_requests_says_so(served):
    found = fleet_queries.requests(served, QUIET, 14)
    tests, days = fleet_alarms.judge(found), fleet_queries.by_day(found)
    drawn = figures.cells(days, tests, [BEFORE, BAD, QUIET], design.LIGHT)
    few = {cell[3] for cell in drawn["cells"] if cell[1] == 2}
    assert few == {"3", figures.TOO_FEW}
    assert [cell[3] for cell in drawn["cells"] if cell[1] == 1 and cell[4]] == ["▲60.0%", "▲18"]


def test_without_requests_the_page_says_how_to_get_them(filled, open_page):
    page = open_page("fleet")
    assert "No server has recorded a request here" in page.words
    assert "make serve-vllm" in page.words


@pytest.mark.parametrize(
    ("created_at", "day"),
    [
        ("2026-11-23T01:00:00+02:00", "2026-11-22"),
        ("2026-11-23T23:30:00.5-0100", "2026-11-24"),
        ("2026-11-23T01:00:00", "2026-11-23"),
    ],
)
def test_days_are_utc(served, created_at, day):
    assert served.rows("SELECT utc_day(?)", [created_at]) == [(day,)]


@pytest.mark.parametrize("wrong", ["1970-01-01", "2200-01-05"])
def test_a_clock_that_was_wrong_hides_no_other_day(home, factory, open_page, wrong):
    recorded(home, factory, {wrong: 1, QUIET: 1})
    page = open_page("fleet", days="7", until=QUIET)
    assert "n = 1 request, 1 in 50 recorded" in page.words
    oldest = "2000-01-01" if wrong < QUIET else QUIET
    assert page.date_input(key="until").min.isoformat() == oldest


@pytest.mark.parametrize("day", ["yesterday", "0001-01-03", "2000-01-01"])
def test_a_day_that_is_none_or_has_no_request_breaks_nothing(served, open_page, day):
    page = open_page("fleet", until=day)
    assert "recorded are 2026-11-18 to 2026-11-20" in page.words
