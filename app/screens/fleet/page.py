"""Fleet: the requests that servers recorded, by model and day (UTC), and the days that differ from those before."""

from __future__ import annotations

import datetime
import zlib
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.fleet import figures, kept
from routesparse.app.shell import address, identity, navigate, switch, verdict_bar
from routesparse.app.shell.access import access
from routesparse.app.ui import design, elements, exports, grid, numbers, states
from routesparse.engine.export.plain_text import visible
from routesparse.engine.stats import fleet_alarms
from routesparse.engine.store import fleet_queries, queries

_SPANS = {"7": "7 days", "14": "14 days", "30": "30 days"}
_SPAN = "14"  # where the address names none
_MOST_ALARMS = 12
_FIRST_DAY = "2000-01-01"  # what was recorded before it was by a wrong clock
_SERVER = queries.SOURCES[1]


@address.names("days until model alarm")
def render() -> None:
    """Draw the page."""
    store = access().store
    st.html(
        '<div class="rs-title">Fleet</div><div class="rs-sub">The requests that servers recorded, by model and day '
        "(UTC), and the days on which something changed. Prompts that were not routed leave no record.</div>"
    )
    recorded = fleet_queries.recorded_days(store)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if recorded is None:
        if identity.owner() is None:
            kept.cards(_FIRST_DAY, today)
        _nothing()
        return
    oldest, newest = recorded
    newest = min(newest, today)  # a wrong clock must not hide the others
    oldest = min(max(oldest, _FIRST_DAY), newest)
    span = switch.chosen("days", [_SPAN, *_SPANS])
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        fields = st.container(horizontal=True, gap="medium")
        until = st.date_input("Until", newest, oldest, newest, key="until", bind="query-params", width=150)
        last = until.isoformat()
        switch.buttons("days", _SPANS, span)
    found = fleet_queries.requests(store, last, int(span) + fleet_alarms.DAYS_BEFORE)
    with fields:
        models = switch.several("model", "Model", sorted(found["model"].unique()) if len(found) else [], 260)
        kinds = switch.several("alarm", "Alarms about", list(figures.NAMES.values()), 260)
    columns = [(until - datetime.timedelta(back)).isoformat() for back in reversed(range(int(span)))]
    elements.sub(f"{columns[0]} to {last}; recorded are {oldest} to {newest}.")
    if identity.owner() is None:
        kept.cards(columns[0], today if last == newest else last)  # few requests are recorded
    if models:
        found = found[found["model"].isin(models)]
    if found.empty or found["day"].max() < columns[0]:
        states.empty(
            f"No request was recorded from {columns[0]} to {last}", ["Choose other days or other models."]
        )
        return
    tests = fleet_alarms.judge(found)
    tests = tests[tests["day"] >= columns[0]]
    days = fleet_queries.by_day(found[found["day"] >= columns[0]])
    _alarms_card(tests[tests["figure"].map(figures.NAMES).isin(kinds)] if kinds else tests, today)
    for model, own in days.groupby("model"):
        _model_card(str(model), own, tests[tests["model"] == model], columns)


def _nothing() -> None:
    lines = [
        "A vLLM server with the plug-in records one in so many of the prompts that it routes "
        "(ROUTESPARSE_VLLM_RECORD_EVERY) and leaves them in this dashboard’s spool: see engine/README.md, the section "
        "about serving. To try it with the bundled model: make serve-vllm.",
        "With ROUTESPARSE_VLLM_LOSS and ROUTESPARSE_VLLM_KEEP=1 it keeps a loss target by itself; losses, prices and "
        "alarms of servers with this home are then shown here.",
        "A server of your own does the same with route(): give its trace a RunInfo with served=Served(…).",
    ]
    if identity.owner() is not None:
        lines.append(
            "Requests that a server records belong to nobody who logs in: a dashboard without a login shows them."
        )
    states.empty("No server has recorded a request here", lines)


def _alarms_card(tests: pd.DataFrame, today: str) -> None:
    alarms = tests[tests["state"] == "alarm"].sort_values(["day", "p"], ascending=[False, True])
    judged = tests[tests["state"].isin(["alarm", "no alarm"])].drop_duplicates(["model", "day"])
    every = tests.drop_duplicates(["model", "day"])
    with elements.card("alarms", "Alarms"):
        if not len(judged):
            states.note(
                f"No day can be judged yet: it takes {fleet_alarms.FEWEST} requests on a day and as many in the "
                f"{fleet_alarms.DAYS_BEFORE} days before."
            )
        elif alarms.empty:
            elements.sub("No alarm: no judged day was found to differ from those before.")
        for alarm in alarms.head(_MOST_ALARMS).to_dict("records"):
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                st.html(
                    f'<div class="rs-error">▲ {escape(visible(figures.sentence(alarm)))}</div>',
                    width="stretch",
                )
                navigate.link("Its runs", "runs", **_query(alarm["model"], alarm["day"], alarm["figure"]))
        if len(alarms) > _MOST_ALARMS:
            elements.sub(f"And {len(alarms) - _MOST_ALARMS} earlier ones: see the CSV.")
        exports.chart_foot(
            "fleet-alarms",
            f"n = {numbers.several(len(judged), 'judged day')} of a model, {len(every) - len(judged)} too few or with "
            f"nothing before · Fisher’s exact test against the {fleet_alarms.DAYS_BEFORE} days before · "
            f"{_correction()}{_expected(judged, today)} · source: run",
            tests,
            "alarms",
        )


def _correction() -> str:
    """What the level of an alarm is kept over, and what not."""
    return (
        f"Holm’s correction over the {len(fleet_alarms.FIGURES)} figures of one day of one model, none over days or "
        f"models: where nothing changed, at most 1 day of a model in {1 / fleet_alarms.LEVEL:,.0f} raises an alarm"
    )


def _expected(judged: pd.DataFrame, today: str) -> str:
    """False alarms to expect of the judged days that are over; "" where none is.

    A day that goes on is judged at each look, and raises more than the level.
    """
    over = int((judged["day"] < today).sum())
    if not over:
        return ""
    left_out = "" if over == len(judged) else " (today left out)"
    days = "this 1 judged day" if over == 1 else f"these {over:,} judged days"
    return (
        f" · Over {days}{left_out}, expect at most {fleet_alarms.LEVEL * over:.2g} false alarms if requests are "
        "independent; a day that is not over counts more"
    )


def _model_card(model: str, days: pd.DataFrame, tests: pd.DataFrame, columns: list[str]) -> None:
    theme = design.current_theme()
    key = f"fleet-{zlib.crc32(model.encode()):08x}"
    with elements.card(key):
        st.html(f'<div class="rs-h"><bdi>{escape(visible(model))}</bdi></div>')
        drawn = figures.cells(days, tests, columns, theme)
        picked = grid.show(drawn, key, f"Figures of {model}, a column a day", picks=True)
        if picked is not None:
            row = list(figures.ROWS)[picked[0]]
            navigate.go("runs", **_query(model, columns[picked[1]], row))
        st.html(_legend(theme))
        rate = figures.rate_words(days["least_one_in"].min(), days["most_one_in"].max())
        exports.chart_foot(
            f"fleet-{model}",
            f"n = {numbers.several(int(days['requests'].sum()), 'request')}, {rate} · shares of units over all units "
            "of a day · days are UTC · click a cell to open its runs · scroll sideways to "
            "days that a narrow window has no room for · –: not measured · source: run, head_choice",
            days,
            key,
            chart=key,
        )


def _legend(theme: design.Theme) -> str:
    words = {
        "alarm": "▲ alarm",
        "no alarm": "compared, no alarm",
        "too few": f"fewer than {fleet_alarms.FEWEST} requests: few, not judged",
        "": "not compared",
    }
    entries = "".join(
        f'<span><i style="background:{figures.color(state, theme)};border:1px solid {theme.line}"></i>{word}</span>'
        for state, word in words.items()
    )
    return f'<div class="rs-legend">{entries}<span><i style="background:{theme.null}"></i>none recorded</span></div>'


def _query(model: str, day: str, figure: str) -> dict[str, Any]:
    """The address of Runs with the requests behind a figure."""
    query = {"model": model, "day": day, "source": _SERVER}
    if figure in verdict_bar.WORDS:
        query["level"] = verdict_bar.WORDS[figure]  # type: ignore[index]
    if figure in ("drift", "drift_alarms"):
        query["reason"] = "drift alarm"
    return query
