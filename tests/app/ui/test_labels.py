"""Names beside the points of a chart: none on another name, none across a line where there is room. No browser."""

from __future__ import annotations

import math

import pytest

from routesparse.app.ui import labels, plot

X = plot.Axis("", (0.0, 1.0), [])
Y = plot.Axis("", (0.001, 1.0), [], log=True)
SIZE = (600.0, 300.0)


def sides(points, lines=()):
    """Name -> (anchor, dx, dy) of each that has a place. Heights are shares of the axis."""
    placed = [(x, 0.001 ** (1 - y), name) for x, y, name in points]
    drawn = [[(x, 0.001 ** (1 - y)) for x, y in line] for line in lines]
    marks = labels.beside(placed, (X, Y), SIZE, "#000000", drawn)
    return {mark["text"]: (mark["anchor"], mark["dx"], mark["dy"]) for mark in marks}


def test_names_that_crowd_stand_apart_and_inside():
    crowd = [(0.5, 0.5, "a" * 20), (0.51, 0.5, "b" * 20), (0.5, 0.52, "c" * 20), (1.0, 1.0, "e" * 20)]
    found = sides(crowd)
    assert len(found) >= 3 and found["e" * 20][0] == "end" and found["e" * 20][2] > 0
    assert len({found[name] for name in found if name[0] in "abc"}) == len(found) - 1, "each on another side"
    assert sides([(0.5, 0.5, "x" * 200)]) == {}


@pytest.mark.parametrize(
    ("lines", "anchor", "below"),
    [
        ([], "start", False),
        ([[(0.54, 0.3), (0.54, 0.7)]], "end", False),
        ([[(0.54, 0.3), (0.54, 0.7)], [(0.3, 0.54), (0.5, 0.54)]], "end", True),
    ],
    ids=["none", "upright", "upright and across"],
)
def test_a_name_stands_where_no_line_cuts_it(lines, anchor, below):
    found = sides([(0.5, 0.5, "a" * 10)], lines)["a" * 10]
    assert found[0] == anchor and (found[2] > 0) == below


def test_points_without_room_for_their_name_keep_none_of_another():
    many = [(0.5 + 0.001 * math.cos(i), 0.5 + 0.001 * math.sin(i), f"name {i}") for i in range(12)]
    assert len(sides(many)) < 12
