"""Charts that our own script draws: their ticks, how small they are, and what a browser may answer. No browser."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest

from routesparse.app.ui import plot
from routesparse.app.ui.design import LIGHT
from routesparse.engine.method import families
from routesparse.engine.method.records import Look


@pytest.mark.parametrize(
    ("axis", "told"),
    [
        (plot.linear("", 0, 1.02, percent=True, most=3), ["0 %", "50 %", "100 %"]),
        (plot.linear("", 0.942, 0.981, percent=True), ["95 %", "96 %", "97 %", "98 %"]),
        (plot.linear("", 0.9512, 0.9548, percent=True), ["95.2 %", "95.3 %", "95.4 %"]),
        (plot.linear("", -0.5, 31.5, most=16, least_step=1), [str(layer) for layer in range(0, 32, 2)]),
        (plot.linear("", -0.5, 2.5, most=16, least_step=1), ["0", "1", "2"]),
        (plot.linear("", -0.012, 0.031), ["-0.01", "0.00", "0.01", "0.02", "0.03"]),
        (plot.linear("", 0, 16_384), ["0", "5,000", "10,000", "15,000"]),
        (plot.logarithmic("", 0.018, 0.6), ["0.02", "0.05", "0.1", "0.2", "0.5"]),
        (plot.logarithmic("", 300.0, 2_000.0), ["500", "1,000", "2,000"]),
    ],
)
def test_ticks_are_round_and_told_apart(axis, told):
    assert [text for _, text in axis.ticks] == told
    assert all(axis.range[0] <= value <= axis.range[1] for value, _ in axis.ticks)


def test_a_cell_keeps_four_digits_of_its_value():
    values = np.random.default_rng(0).random((7, 9)).astype(np.float32)
    sent = plot.cells(values, (0, 9, -0.5, 6.5), ["#ffffff"] * 256, "{2}", list("abcdefg"))
    shares = np.frombuffer(base64.b64decode(sent["data"]), "<u2").reshape(sent["shape"])
    assert np.abs(shares / 65_535 * sent["peak"] - values).max() < 5e-5


def test_a_cell_that_is_no_number_is_drawn_as_nothing():
    values = np.array([[np.nan, 0.5], [np.inf, 1.0]], np.float32)
    sent = plot.cells(values, (0, 2, -0.5, 1.5), ["#ffffff"] * 256, "{2}", ["a", "b"])
    assert np.frombuffer(base64.b64decode(sent["data"]), "<u2").tolist() == [0, 32768, 0, 65535]
    assert sent["peak"] == 1.0


def test_every_family_s_mark_is_one_that_the_script_draws():
    script = Path(plot.__file__).with_suffix(".js").read_text("utf-8")
    drawn = {"circle", *re.findall(r'symbol === "([a-z-]+)"', script)}
    assert {families.look(name).symbol for name in families.names()} | {Look("", "").symbol} <= drawn


def test_panels_keep_their_axes_and_one_numbering_of_marks():
    one = plot.chart(
        plot.linear("a", 0, 1), plot.linear("y", 0, 1), [plot.line([0], [0], "#000000")], 90, LIGHT
    )
    dots = plot.points([2], [2], "#000000", "{0}", [["b"]])
    other = plot.chart(plot.linear("b", 0, 9), plot.linear("", 0, 9), [dots], 90, LIGHT)
    both = plot.panels([one, other])
    assert [mark["panel"] for mark in both["marks"]] == [0, 1]
    assert (both["x"]["title"], [axes["x"]["title"] for axes in both["others"]]) == ("a", ["b"])
    assert plot.picked_of(both["marks"], [1, 0]) == ["b"]


def test_steps_keep_a_value_up_to_the_next_place():
    assert plot.steps([1, 2, 5], [9, 4, 3]) == ([1, 2, 2, 5, 5], [9, 9, 4, 4, 3])
    assert plot.steps([], []) == ([], []) and plot.steps([1], [9]) == ([1], [9])


@pytest.mark.parametrize(
    "picked", [None, [], [0], [0, 2], [2, 0], [-1, 0], [0, -1], ["0", 0], [1, 0], {"a": 1}, 3]
)
def test_what_no_point_answers_to_is_no_choice(picked):
    marks = [
        plot.points([1, 2], [1, 2], "#000000", "{0}", [["a"], ["b"]]),
        plot.line([0, 1], [0, 1], "#000000"),
    ]
    assert plot.picked_of(marks, picked) is None
    assert plot.picked_of(marks, [0, 1]) == ["b"]
