"""Loss targets that servers of this machine keep by themselves: their logs, by model, target and day (UTC)."""

from __future__ import annotations

import zlib
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.ui import design, elements, exports, numbers, plot, states, tables
from routesparse.engine.calibration import keeping_log
from routesparse.engine.calibration.keeping import MARGIN, PATIENCE, Kept
from routesparse.engine.errors import CalibrationError
from routesparse.engine.export.plain_text import visible

_MOST_DRAWN = 600  # requests, the last ones
_HEIGHT = 220


def cards(first: str, last: str) -> None:
    """A card for each log that has a request from one day to another."""
    for path in keeping_log.paths_here():
        try:
            rows = frame(keeping_log.read(path))
        except (CalibrationError, OSError) as error:
            states.note(str(error))
            continue
        rows = rows[(rows["day"] >= first) & (rows["day"] <= last)]
        if len(rows):
            _card(path, rows)


def frame(log: list[Kept]) -> pd.DataFrame:
    """A row a request, in the log's order."""
    names = ("time", "request", "model", "kind", "target", "price", "predicted", "measured")
    return pd.DataFrame(
        [
            {
                **{name: getattr(one, name) for name in names},
                "day": one.time[:10],
                "mean": one.state.mean,
                "next_price": one.state.price,
                "alarms": " ".join(one.state.alarms),
            }
            for one in log
        ],
        columns=[*names, "day", "mean", "next_price", "alarms"],
    )


def by_day(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells of a table, a line a day: losses are means over the day, beside the target."""
    found = []
    for day, own in rows.groupby("day"):
        true, loss = own["measured"].dropna(), own["measured"].fillna(own["predicted"]).mean()
        found.append(
            {
                "day": day,
                "requests": f"{len(own):,}",
                "loss": numbers.kl(loss),
                "of the target": numbers.share(loss / own["target"].iloc[0], 0),
                "measured": f"{numbers.kl(true.mean())}, n = {len(true)}"
                if len(true)
                else numbers.NOT_MEASURED,
                "prices": f"{own['price'].min():.3g} to {own['price'].max():.3g}",
                "requests in alarm": f"{int((own['alarms'] != '').sum()):,}",
            }
        )
    return pd.DataFrame(found)


def alarm_words(last: Any) -> list[str]:
    """What alarms the last request left, as sentences."""
    told = {
        "beyond": f"the mean loss {numbers.small(last['mean'])} lies beyond {MARGIN:g} targets of {last['target']:g}",
        "bounded": f"the price lies on a bound, {last['next_price']:.3g}: the target would need another",
    }
    return [f"For more than {PATIENCE} requests {told[name]}." for name in last["alarms"].split()]


def figure(rows: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Losses against the target, and the price, over the requests' numbers."""
    drawn = rows.tail(_MOST_DRAWN).reset_index(drop=True)
    target, at = float(drawn["target"].iloc[-1]), list(range(len(drawn)))
    losses = drawn["measured"].fillna(drawn["predicted"]).clip(lower=target / 100)
    x = plot.linear("request", 0, max(len(drawn) - 1, 1))
    values = [*losses, *drawn["mean"], target]
    hover = "{0}, {1}\n{2} nats a token, price {3}"
    columns = (drawn["time"], drawn["kind"], map(numbers.small, losses), map("{:.3g}".format, drawn["price"]))
    told = [list(map(visible, map(str, one))) for one in zip(*columns, strict=True)]
    true = drawn["measured"].notna()
    marks = [
        plot.line(x.range, [target] * 2, theme.warn, 1.2, "1.5 3"),
        plot.points(at, losses.where(~true), theme.accent, hover, told, size=4, opacity=0.5),
        plot.points(at, losses.where(true), theme.ink, hover, told, "diamond", size=6),
        plot.line(at, drawn["mean"].tolist(), theme.ink, 1.6),
    ]
    y = plot.logarithmic("nats a token", min(values) / 1.2, max(values) * 1.2)
    price = plot.line(
        *plot.steps([*at, len(at)], [*drawn["price"], drawn["price"].iloc[-1]]), theme.accent, 1.6
    )
    losses_chart = plot.chart(x, y, marks, _HEIGHT, theme)
    return plot.panels(
        [losses_chart, plot.chart(x, plot.around("price", drawn["price"]), [price], _HEIGHT, theme)]
    )


def _card(path: Path, rows: pd.DataFrame) -> None:
    theme, last = design.current_theme(), rows.iloc[-1]
    key = f"kept-{zlib.crc32(path.name.encode()):08x}"
    with elements.card(key):
        st.html(
            f'<div class="rs-h"><bdi>{escape(visible(last["model"]))}</bdi>: loss target {last["target"]:g}</div>'
        )
        for told in alarm_words(last):
            st.html(f'<div class="rs-error">▲ {escape(told)}</div>')
        plot.show(figure(rows, theme), key, f"Losses and prices of {visible(last['model'])}")
        st.html(
            f'<div class="rs-legend"><span><b style="color:{theme.accent}">●</b> predicted</span>'
            f'<span><b style="color:{theme.ink}">◆</b> measured</span><span>line: mean of recent ones</span>'
            "<span>dotted: target</span></div>" + tables.of_rows(by_day(rows))
        )
        shown = min(len(rows), _MOST_DRAWN)
        exports.chart_foot(
            path.stem,
            f"n = {numbers.several(len(rows), 'request')}, the last {shown:,} drawn · KL in nats a token · days "
            f"are UTC · source: keeping/{path.name}",
            rows,
            key,
            chart=key,
        )
