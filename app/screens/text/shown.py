"""What the page Text is about, as its address says."""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.rows import RunRow

SCOPES = {"head": "This head", "layer": "This layer", "all": "All heads"}
SHADES = {"reads": "What later rows read", "lost": "Attention lost"}


@dataclass(frozen=True)
class Shown:
    """What the page is about. at: (layer, head); segment None: the rows of all segments; row: a token."""

    run: RunRow
    at: tuple[int, int]
    segment: int | None
    batch_index: int
    scope: str
    shade: str
    row: int | None
    below: float

    @property
    def name(self) -> str:
        """The heads in words."""
        layer, head = self.at
        named = {"head": f"layer {layer}, head {head}", "layer": f"layer {layer}", "all": "all heads"}
        return named[self.scope]
