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
    for path in keeping_log.logs():
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
    rows = [
        (
            *(getattr(one, name) for name in names),
            one.time[:10],
            one.state.mean,
            one.state.price,
            one.state.alarms,
        )
        for one in log
    ]
    found = pd.DataFrame(rows, columns=[*names, "day", "mean", "next_price", "alarms"])
    return found.assign(
        alarms=found["alarms"].str.join(" "), loss=found["measured"].fillna(found["predicted"])
    )


def by_day(rows: pd.DataFrame) -> pd.DataFrame:
    """Cells of a table, a line a day: losses are means over the day, beside the target."""
    found = []
    for day, own in rows.groupby("day"):
        true, loss = own["measured"].dropna(), own["loss"].mean()
        measured = f"{numbers.kl(true.mean())}, n = {len(true)}" if len(true) else numbers.NOT_MEASURED
        share = numbers.share(loss / own["target"].iloc[0], 0)
        prices = f"{own['price'].min():.3g} to {own['price'].max():.3g}"
        alarmed = f"{int((own['alarms'] != '').sum()):,}"
        found.append((day, f"{len(own):,}", numbers.kl(loss), share, measured, prices, alarmed))
    heads = ("day", "requests", "loss", "of the target", "measured", "prices", "requests in alarm")
    return pd.DataFrame(found, columns=heads)


def alarm_words(last: Any) -> list[str]:
    """What alarms the last request left, as sentences."""
    side = "below" if last["mean"] < last["target"] else "above"
    told = {
        "beyond": f"the mean loss {numbers.small(last['mean'])} lies beyond {MARGIN:g} targets of {last['target']:g}",
        "bounded": f"the price lies on a bound, {last['next_price']:.3g}, and the mean loss {side} the target",
    }
    return [f"For more than {PATIENCE} requests {told[name]}." for name in last["alarms"].split()]


def figure(rows: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """Losses against the target, and the price, over the requests' numbers."""
    drawn = rows.tail(_MOST_DRAWN).reset_index(drop=True)
    target, at = float(drawn["target"].iloc[-1]), list(range(len(drawn)))
    losses, true = drawn["loss"].clip(lower=target / 100), drawn["measured"].notna()
    x = plot.linear("request", 0, max(len(drawn) - 1, 1))
    values = [*losses, *drawn["mean"], target]
    hover = "{0}, {1}\n{2} nats a token, price {3}"
    columns = (drawn["time"], drawn["kind"], map(numbers.small, losses), map("{:.3g}".format, drawn["price"]))
    told = [list(map(visible, map(str, one))) for one in zip(*columns, strict=True)]
    marks = [
        plot.line(x.range, [target] * 2, theme.warn, 1.2, "1.5 3"),
        plot.points(at, losses.where(~true), theme.accent, hover, told, size=4, opacity=0.5),
        plot.points(at, losses.where(true), theme.ink, hover, told, "diamond", size=6),
        plot.line(at, drawn["mean"].tolist(), theme.ink, 1.6),
    ]
    y = plot.logarithmic("nats a token", min(values) / 1.2, max(values) * 1.2)
    prices = plot.steps([*at, len(at)], [*drawn["price"], drawn["price"].iloc[-1]])
    of_price = [plot.line(*prices, theme.accent, 1.6)]
    beside = plot.chart(x, plot.around("price", drawn["price"]), of_price, _HEIGHT, theme)
    return plot.panels([plot.chart(x, y, marks, _HEIGHT, theme), beside])


def _card(path: Path, rows: pd.DataFrame) -> None:
    theme, last = design.current_theme(), rows.iloc[-1]
    key, model = f"kept-{zlib.crc32(path.name.encode()):08x}", visible(last["model"])
    with elements.card(key):
        st.html(f'<div class="rs-h"><bdi>{escape(model)}</bdi>: loss target {last["target"]:g}</div>')
        for told in alarm_words(last):
            st.html(f'<div class="rs-error">▲ {escape(told)}</div>')
        plot.show(figure(rows, theme), key, f"Losses and prices of {model}")
        st.html(
            f'<div class="rs-legend"><span><b style="color:{theme.accent}">●</b> predicted</span>'
            f'<span><b style="color:{theme.ink}">◆</b> measured</span><span>line: mean of recent ones</span>'
            "<span>dotted: target</span></div>" + tables.of_rows(by_day(rows))
        )
        n = f"n = {numbers.several(len(rows), 'request')}, the last {min(len(rows), _MOST_DRAWN):,} drawn"
        note = f"{n} · KL in nats a token · days are UTC · source: keeping/{path.name}"
        exports.chart_foot(path.stem, note, rows, key, chart=key)
