"""A button that copies the address of the whole view; the browser does it (copy_link.js)."""

from __future__ import annotations

from routesparse.app.ui import browser_part

_HTML = (
    '<div class="rs-copy"><button type="button">Copy link</button><span role="status"></span>'
    '<input hidden readonly aria-label="Link to this view"></div>'
)
_link = browser_part.component(__file__, "copy_link", _HTML)


def button() -> None:
    """Draw the button."""
    _link(key="copy-link", width="stretch")
