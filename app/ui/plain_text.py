"""A prompt's text for people, as pages and reports show it (engine/export/plain_text.py)."""

from __future__ import annotations

from routesparse.engine.export.plain_text import MARKED, TAB, mark, visible

__all__ = ["MARKED", "TAB", "mark", "visible"]
