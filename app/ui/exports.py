"""The line under every chart: n, unit and source on the left, one menu with its picture and rows on the right."""

from __future__ import annotations

from functools import partial
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.ui import browser_part, design
from routesparse.app.ui.numbers import several
from routesparse.engine.export.csv_text import as_csv

# Columns that pages need apart from those of the choice, under the names that they have in the bundle's tables.
_NAMES = {"audited_error": "mean_error", "audited_max_error": "max_error"}

_ADVICE = ("click ", "drag ", "scroll ")  # parts of a note that speak of the page
_picture = browser_part.component(
    __file__,
    "picture",
    '<div class="rs-picture"><button class="svg">Chart as SVG</button>'
    '<button class="png">Chart as PNG</button></div>',
)
_link = browser_part.component(
    __file__,
    "copy_link",
    '<div class="rs-copy"><button type="button">Copy link</button><span role="status"></span>'
    '<input hidden readonly aria-label="Link to this view"></div>',
)


def chart_foot(name: str, note: str, rows: pd.DataFrame, key: str, chart: str | None = None) -> None:
    """Say what a chart shows, offer its rows, and the chart with widget key ``chart`` as SVG and PNG.

    Files are made when they are asked for.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"foot-{key}"):
        st.html(f'<div class="rs-note">{escape(note)}</div>', width="stretch")
        with st.popover("Save", key=f"save-{key}", type="tertiary"):
            if chart is not None:
                _picture_buttons(chart, name, note)
            downloads(name, rows, key)


def downloads(name: str, rows: pd.DataFrame, key: str) -> None:
    """Two quiet buttons, CSV and Parquet."""
    for kind, mime in {"CSV": "text/csv", "Parquet": "application/vnd.apache.parquet"}.items():
        st.download_button(
            f"{several(len(rows), 'row')} as {kind}",
            partial(_content, kind, rows),
            file_name=f"{name}.{kind.lower()}",
            mime=mime,
            key=f"{kind.lower()}-{key}",
            type="tertiary",
            on_click="ignore",
        )


def _content(kind: str, rows: pd.DataFrame) -> bytes:
    named = rows.rename(columns=_NAMES)
    return as_csv(named).encode() if kind == "CSV" else bytes(named.to_parquet(index=False))


def _picture_buttons(chart: str, name: str, note: str) -> None:
    """Offer the chart with this widget key under a file name without its ending; ``note`` stands below the picture."""
    shown = " · ".join(part for part in note.split(" · ") if not part.startswith(_ADVICE))
    data = {"chart": chart, "name": name, "note": shown, "background": design.current_theme().panel}
    _picture(key=f"picture-{chart}", data=data, width="content")


def copy_link_button() -> None:
    """A button that copies the address of the whole view."""
    _link(key="copy-link", width="stretch")
