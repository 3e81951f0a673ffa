"""Zooming into a probe: windows, the part at stored resolution, and what the pages make of an address. No browser."""

from __future__ import annotations

import base64
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.app.ui.design import LIGHT
from routesparse.app.unit import masks, probe, zoom
from routesparse.app.unit.zoom import Window
from routesparse.engine.probe_masks import NEVER
from routesparse.engine.store.queries import Heatmap

RUN = "3f9a1c20d4e5b678"


def wide(levels=None, mask_pool=1) -> Heatmap:
    """4 rows x 3,000 columns of 2 key blocks; one cell of mass."""
    mass = np.zeros((4, 3_000), np.float32)
    mass[2, 2_001] = 0.7
    kinds = np.array([1, 2, 2, 8], np.uint8)
    return Heatmap(mass, np.arange(4) * 100, kinds, 4, 1, 2, levels, mask_pool)


def test_the_part_has_a_finer_pool_than_the_whole_and_keeps_its_place():
    whole = probe.limited(wide())
    part = probe.limited(zoom.cut(wide(), Window(4_000, 4_010, 1, 3)))
    assert (whole.block_pool, part.block_pool) == (6, 2)
    assert part.mass.shape == (2, 5) and (part.first_block, part.first_row) == (4_000, 1)
    assert part.positions.tolist() == [100, 200]
    rows = probe.long_rows(part)
    assert rows.loc[rows["mass"].idxmax(), ["key_block", "row_token"]].tolist() == [4_002, 200]
    chart = probe.figure(part, LIGHT, 64, 300)
    assert chart["marks"][0]["box"][:2] == [4_000 * 64, 4_010 * 64] and chart["x"]["range"][1] == 4_010 * 64
    assert "max over 2 key blocks" in probe.legend(part, LIGHT)


def test_masks_stay_on_their_blocks():
    level = np.full((4, 750), 15, np.uint8)
    level[3, 501] = 0  # key blocks 4,008 to 4,015
    part = zoom.cut(wide({"a_shape": level}, 8), Window(4_011, 4_012, 0, 4))
    assert (part.first_block, part.mass.shape[1], part.levels["a_shape"].tolist()) == (
        4_008,
        4,
        [[15], [15], [15], [0]],
    )
    shown = masks.Mask(np.zeros((4, 1), bool), "A", 0)
    assert masks.lost_cover(shown, part, LIGHT, 64)["box"][:2] == [4_008 * 64, 4_016 * 64]


def test_a_window_beside_the_picture_has_no_part():
    assert zoom.cut(wide(), Window(6_000, 6_010, 0, 4)) is None
    assert zoom.cut(wide(), Window(0, 10, 4, 9)) is None


def test_axes_of_a_thumbnail_mean_stored_rows():
    mass = np.random.default_rng(0).random((272, 128)).astype("<f2")
    shown = Heatmap(mass[::5], np.arange(4, 276, 5).clip(max=271), np.ones(55, np.uint8), 272, 5, 2)
    # Drawn rows 2 and 3, key tokens 130 to 639 of blocks of 64; the y axis runs downwards.
    assert zoom.window_of([130.0, 639.0, 3.4, 1.6], shown, 64) == Window(2, 10, 10, 20)
    assert zoom.window_of([-90.0, 1.0, 0.2, -0.5], shown, 64) == Window(0, 1, 0, 5)
    part = Heatmap(mass[10:20], shown.positions, shown.kinds, 272, 1, 1, first_block=2, first_row=10)
    assert zoom.window_of([256.0, 320.0, 1.5, 0.5], part, 64) == Window(4, 5, 11, 12)


def test_the_window_of_the_address_is_shown_at_stored_resolution(filled, open_page):
    whole = open_page("routing_map", run=RUN, layer="1", head="1", segment="1")
    part = open_page("routing_map", run=RUN, layer="1", head="1", segment="1", zoom="8,16,10,20")
    assert not whole.exception and not part.exception
    assert "max over 2 key blocks" in part.told
    assert "Probe, rows 11 to 20, key blocks 8 to 15 of " in part.told and "rows 11" not in whole.told
    assert "of this part: colours rescaled to it" in part.told and "largest mass here" in whole.told
    part.button(key="whole-picture").click().run()
    assert "zoom" not in part.query_params and "rows 11 to 20" not in part.told


@pytest.mark.parametrize("window", ["8,8,0,4", "x,1,2,3", "1,2,3", "-1,4,0,4", "99999,100000,0,4", "1,2,²,4"])
def test_a_senseless_window_is_the_whole_picture(filled, open_page, window):
    page = open_page("routing_map", run=RUN, layer="1", head="1", zoom=window)
    assert "drag to zoom" in page.told
    assert not [button for button in page.button if button.key == "whole-picture"]


@pytest.mark.parametrize(
    "message",
    [[0.0, 1.0, math.nan, 2.0], [0.0, math.inf, 1.0, 2.0], ["a", 1, 2, 3], [1.0], [1.0] * 5, {"x": 1}],
)
def test_a_message_that_is_no_box_changes_nothing(message, monkeypatch):
    monkeypatch.setattr(zoom.view, "write", lambda **_: pytest.fail("the address was changed"))
    zoom.take(message, None, 64)


def test_a_lost_bundle_leaves_the_thumbnail(filled, open_page):
    import shutil

    from routesparse.app.shell.access import access

    open_page("runs")
    shutil.rmtree(access().store.bundle(RUN))
    page = open_page("routing_map", run=RUN, layer="1", head="1", zoom="8,16,10,20")
    assert not page.exception and "max over 5 rows" in page.told


def test_what_the_chosen_plan_does_not_read_is_painted_by_its_mass():
    """A mask column of two mass columns; level 0 reads the first cell alone."""
    mass = np.array([[0.5, 0.0, 0.4, 0.1]], np.float32)
    levels = {"floor": np.array([[0, NEVER]], np.uint8)}
    heatmap = Heatmap(mass, np.array([1_000]), np.array([2], np.uint8), 1, 1, 1, levels, 2)
    candidates = pd.DataFrame({"candidate": [0, 1], "pattern": ["floor", "dense"], "budget": ["few", "all"]})
    lost = masks.lost_cover(masks.mask(heatmap, candidates, 64, 0), heatmap, LIGHT, 64)
    painted = base64.b64decode(lost["data"])
    assert lost["shape"] == [1, 4] and lost["colors"][0].endswith("00"), "0 is clear"
    assert painted[:2] == b"\0\0" and 0 < painted[3] < painted[2]
    dense = masks.lost_cover(masks.mask(heatmap, candidates, 64, 1), heatmap, LIGHT, 64)
    assert base64.b64decode(dense["data"]) == bytes(4)


def test_a_click_on_a_row_is_its_token_in_the_address(monkeypatch):
    written = []
    monkeypatch.setattr(zoom.view, "write", lambda **changes: written.append(changes))
    heatmap = wide()
    for value in (2, -1, 99, None, "1"):
        zoom.take_row(value, replace(heatmap, row_pool=1))
    zoom.take_row(2, replace(heatmap, row_pool=4))
    assert written == [{"row": 200}]
