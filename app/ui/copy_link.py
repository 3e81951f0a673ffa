"""A button that copies the address of the whole view; the browser does it (copy_link.js)."""

from __future__ import annotations

from routesparse.app.ui import browser_part

_HTML = (
    '<div class="rs-copy"><button type="button">Copy link</button><span role="status"></span>'
    '<input hidden readonly aria-label="Link to this view"></div>'
)
_CSS = """
.rs-copy { display: flex; flex-wrap: wrap; gap: 4px 10px; align-items: center; }
.rs-copy button { font: inherit; font-size: .93rem; color: inherit; background: none; cursor: pointer;
  padding: .25rem .75rem; border: 1px solid var(--st-border-color, currentcolor); border-radius: 7px;
  min-height: 2.5rem; }
.rs-copy button:hover { border-color: var(--st-primary-color, currentcolor); }
.rs-copy button:focus-visible, .rs-copy input:focus-visible { outline: 2px solid var(--st-primary-color); }
.rs-copy span { font-size: .88rem; flex: 1 1 120px; }
.rs-copy input { flex: 1 1 100%; font: inherit; color: inherit; background: none;
  border: 1px solid var(--st-border-color, currentcolor); border-radius: 7px; padding: .3rem .6rem; }
.rs-copy [hidden] { display: none; }
"""
_link = browser_part.component(__file__, "copy_link", _HTML, _CSS)


def button() -> None:
    """Draw the button."""
    _link(key="copy-link", width="stretch")
