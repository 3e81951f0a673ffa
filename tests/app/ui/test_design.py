"""Palette and numbers: contrast of every cell in both themes, units, "not measured". No GPU."""

from __future__ import annotations

import numpy as np
import pytest

from routesparse.app.ui import design, numbers
from routesparse.engine.method import families

THEMES = pytest.mark.parametrize("theme", [design.LIGHT, design.DARK], ids=lambda theme: theme.name)


@THEMES
@pytest.mark.parametrize("pattern", [*families.in_order(), "unknown"])
def test_letters_reach_contrast_on_every_cell(theme, pattern):
    for density in np.geomspace(0.001, 1.0, 40):
        color = design.pattern_color(theme, pattern, density)
        assert design.contrast(design.text_on(color), color) >= 4.5


@THEMES
def test_values_reach_contrast_on_every_scale_color_and_on_null(theme):
    for color in [design.scale_color(theme, share) for share in np.linspace(0, 1, 60)] + [theme.null]:
        assert design.contrast(design.text_on(color), color) >= 4.5


@THEMES
def test_muted_text_accent_and_warning_reach_contrast_on_the_panel(theme):
    for color in (theme.ink, theme.mute, theme.accent, theme.warn):
        assert design.contrast(color, theme.panel) >= 4.5


@THEMES
def test_stronger_means_more_kept(theme):
    shades = [design.pattern_color(theme, "vertical_slash", d) for d in (0.01, 0.1, 1.0)]
    steps = [design.contrast(shade, theme.panel) for shade in shades]
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (numbers.share, 0.031, "3.1 %"),
        (numbers.mass, 0.9412, "0.941"),
        (numbers.count, 16384, "16,384"),
        (numbers.micros, 812.4, "812 µs"),
        (numbers.micros, 8120.0, "8.12 ms"),
        (numbers.millis, 2930.0, "2.93 s"),
        (numbers.times, 1.874, "1.87×"),
        (numbers.limit, "0.35", "35 % of dense"),
        (numbers.limit, "800us", "800 µs a layer"),
        (numbers.limit, None, "none"),
    ],
)
def test_numbers_carry_units(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    "function", [numbers.share, numbers.mass, numbers.count, numbers.micros, numbers.millis, numbers.times]
)
@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_is_not_measured(function, missing):
    assert function(missing) == "not measured"
