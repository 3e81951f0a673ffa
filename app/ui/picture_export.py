"""Two quiet buttons that save a chart of the page as SVG or PNG; the browser draws the file (picture_export.js)."""

from __future__ import annotations

from routesparse.app.ui import browser_part, design

_HTML = (
    '<div class="rs-picture"><button class="svg" title="This chart as SVG">SVG</button>'
    '<button class="png" title="This chart as PNG">PNG</button></div>'
)
_ADVICE = ("click ", "drag ", "scroll ")  # parts of a note that speak of the page
_buttons = browser_part.component(__file__, "picture", _HTML)


def buttons(chart: str, name: str, note: str) -> None:
    """Offer the chart with this widget key under a file name without its ending; ``note`` stands below the picture."""
    shown = " · ".join(part for part in note.split(" · ") if not part.startswith(_ADVICE))
    data = {"chart": chart, "name": name, "note": shown, "background": design.current_theme().panel}
    _buttons(key=f"picture-{chart}", data=data, width="content")
