"""The colours of pages and reports, light and dark.

Colour means pattern (the colour-blind-safe hues of Okabe and Ito, muted), strength means density, and every cell
carries its letter, so that colour is never the only channel. Text on a cell is black or white, at least 4.5:1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from routesparse.engine.method import families
from routesparse.engine.verdict import Level

PALEST = 0.32  # share of a pattern's hue in the palest cell


@dataclass(frozen=True)
class Theme:
    """The colours of one theme. hues: two that differ also for the colour-blind, for what is not a pattern."""

    name: str
    panel: str
    ink: str
    mute: str
    line: str
    accent: str
    warn: str
    null: str
    hues: tuple[str, str]
    scale: tuple[str, str, str]  # sequential metric: low, middle, high
    levels: Mapping[Level, str]  # of verdicts, as text on the panel
    shapes: tuple[str, str, str, str, str]  # in the order of method/shape.py's PARTS

    def pattern(self, pattern: str) -> str:
        """A pattern's colour at full strength; grey for one that this version does not know."""
        return families.look(pattern).dark if self.name == "dark" else families.look(pattern).light


LIGHT = Theme(
    name="light",
    panel="#ffffff",
    ink="#1d2329",
    mute="#59626c",
    line="#e3e6e8",
    accent="#1f5fbf",
    warn="#b4451f",
    null="#e4e6e8",
    hues=("#82406f", "#12876a"),
    scale=("#eef3fa", "#7fa8dc", "#143f82"),
    levels=MappingProxyType({"red": "#b3261e", "amber": "#8a5a00", "grey": "#59626c", "green": "#1b6e3c"}),
    shapes=("#8a94a6", "#b9c2d4", "#2f6ac4", "#dd9a2c", "#159a70"),
)
DARK = Theme(
    name="dark",
    panel="#1b1f23",
    ink="#e8eaec",
    mute="#a3adb7",
    line="#2b3137",
    accent="#6aa5ee",
    warn="#f08a5d",
    null="#31373d",
    hues=("#c98abb", "#3fb593"),
    scale=("#23303f", "#3f74b5", "#b9d6fb"),
    levels=MappingProxyType({"red": "#ff8a80", "amber": "#e9b44c", "grey": "#a3adb7", "green": "#6fcf97"}),
    shapes=("#8c96a8", "#56606f", "#5b93e6", "#e0a54a", "#35b389"),
)


# Letters of method/shape.py's KINDS; a slash begins like a sink.
SHAPE_LETTERS = {"sink": "K", "local": "L", "vertical": "V", "slash": "S", "scattered": "X", "dense": "D"}


def letter(pattern: str) -> str:
    """The letter in a pattern's cell; the initial of one that this version does not know."""
    found = families.look(pattern).letter
    # A damaged row may name a pattern that begins with a control character.
    return found if found.isalnum() else "?"


def name(pattern: str) -> str:
    """A pattern as prose names it."""
    return families.look(pattern).label


def strength(density: float) -> float:
    """0 at 1 % of the causal area, 1 at all of it, logarithmic: budgets double from one to the next."""
    return min(1.0, max(0.0, 1.0 + math.log10(max(density, 1e-4)) / 2.0))


def pattern_color(theme: Theme, pattern: str, density: float) -> str:
    """A cell's colour: the pattern's hue, paler where less is kept."""
    return blend(theme.panel, theme.pattern(pattern), PALEST + (1 - PALEST) * strength(density))


def blend(low: str, high: str, share: float) -> str:
    """``share`` of the way from one #rrggbb colour to another."""
    pairs = zip(_channels(low), _channels(high), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def scale_color(theme: Theme, share: float) -> str:
    """The sequential scale at ``share`` in [0, 1]."""
    low, middle, high = theme.scale
    return blend(low, middle, share * 2) if share <= 0.5 else blend(middle, high, share * 2 - 1)


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two #rrggbb colours."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(background: str) -> str:
    """Black or white, whichever reads better: one of them always reaches 4.5:1."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, background))


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel / 255) for channel in _channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
