"""The routing map and the charts beside it as data. No GPU, no browser."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from routesparse.app.screens.routing_map import map_figure, readers_figure, sprite_figure
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.app.unit import charts, masks, probe
from routesparse.engine.store import queries, sprite

RUN = "3f9a1c20d4e5b678"


@pytest.fixture
def stored(filled):
    opened = access()
    opened.look_into_spool()
    return opened.store


@pytest.fixture
def draw(stored):
    def drawing(metric="pattern", picked=(0, 0), drop=()):
        choices = queries.choices(stored, RUN, 0)
        kept = choices[~choices["layer"].isin(drop)]
        return map_figure.drawing(kept, queries.layers(stored, RUN), metric, picked, design.LIGHT, (4, 4))

    return drawing


def test_every_cell_has_its_letter_color_and_hover(stored, draw):
    data, shown = draw()
    choices = queries.choices(stored, RUN, 0)
    for row in choices.itertuples():
        at = row.layer * 4 + row.head
        assert data["letters"][at] == design.letter(row.pattern)
        assert data["fills"][data["cells"][at]] == shown.colors[row.layer, row.head]
        assert data["tips"][at].startswith(f"layer {row.layer}, head {row.head}")
        assert (data["marks"][at] == "d") == (row.fallback == "dense")


def test_units_that_were_not_routed_are_grey_and_without_a_letter(draw):
    data, _ = draw(drop=(2,))
    assert data["letters"][8:12] == " " * 4 and data["tips"][8:12] == [None] * 4
    assert {data["fills"][cell] for cell in data["cells"][8:12]} == {design.LIGHT.null}


def test_a_metric_that_was_not_measured_is_grey_and_a_dash(stored):
    choices = queries.choices(stored, RUN, 0)
    choices.loc[choices["layer"] == 1, "audited_error"] = np.nan
    data, _ = map_figure.drawing(
        choices, queries.layers(stored, RUN), "audited_error", (0, 0), design.DARK, (4, 4)
    )
    assert data["values"][4:8] == ["–"] * 4 and "–" not in data["values"][:4]
    assert {data["fills"][cell] for cell in data["cells"][4:8]} == {design.DARK.null}


def test_only_the_ring_moves_when_another_unit_is_picked(draw):
    first, other, colored = draw()[0], draw(picked=(1, 2))[0], draw("mass")[0]
    assert first["version"] == other["version"] != colored["version"]
    assert other["picked"] == [1, 2]


def test_the_margin_holds_measured_planned_and_allowed_time(stored, draw):
    times = draw()[0]["times"]
    layer = queries.layers(stored, RUN).iloc[2]
    row = times["rows"][2]
    assert row["planned_ms"] == pytest.approx(layer["planned_us"] / 1000, abs=1e-3)
    assert row["limit_ms"] == pytest.approx(layer["limit_us"] / 1000, abs=1e-3)
    assert max(row["limit_ms"], row["planned_ms"], row["measured_ms"]) <= times["longest"]


def test_the_margin_counts_the_fallbacks_that_the_row_of_the_map_shows(stored, draw):
    data, layers = draw()[0], queries.layers(stored, RUN).set_index("layer")
    counted = {row["layer"]: row["fallen"] for row in data["times"]["rows"]}
    assert counted == {
        layer: sum(mark in "de" for mark in data["marks"][4 * layer :][:4]) for layer in range(4)
    }
    # Of all segments it would be more: the hover says those.
    of_all = layers["dense_fallback"] + layers["expanded"]
    assert any(of_all[layer] > count > 0 for layer, count in counted.items())
    told = f"all segments: {layers.dense_fallback[2]} of {layers.units[2]} units dense by fallback"
    assert told in data["times"]["rows"][2]["tip"]


def test_a_layer_without_a_limit_draws_none(stored):
    rows = queries.layers(stored, RUN).assign(limit_us=np.nan)
    data, _ = map_figure.drawing(
        queries.choices(stored, RUN, 0), rows, "pattern", (0, 0), design.LIGHT, (4, 4)
    )
    assert data["times"]["rows"][0]["limit_ms"] is None
    json.dumps(data, allow_nan=False)


def test_the_sprite_is_one_png_of_the_probes_colors(stored):
    found = sprite.probe_sprite(stored, RUN, 0, 0, (4, 4))
    uri = sprite_figure.data_uri(found, design.LIGHT)
    picture = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
    assert picture.size == found.values.shape[::-1]
    peak = np.argwhere(found.values == 255)[0]
    strongest = picture.convert("RGB").getpixel((int(peak[1]), int(peak[0])))
    assert "#{:02x}{:02x}{:02x}".format(*strongest) == design.LIGHT.scale[2]


def test_what_the_browser_draws_is_json_without_nan(stored):
    run, unit = queries.run(stored, RUN), queries.Unit(RUN, 1, 1, 0)
    readers = pd.DataFrame({"key_block": [0, 4], "blocks": 4, "heads_share": [0.1, np.nan], "heads": 4})
    heatmap, candidates = queries.probe_full(stored, unit), queries.candidates(stored, unit)
    for theme in (design.LIGHT, design.DARK):
        for chart in (
            charts.scatter(queries.candidates(stored, unit), run.gate_threshold, run.tau, theme),
            charts.scatter(queries.candidates(stored, unit), None, run.tau, theme),
            readers_figure.figure(readers, theme, 64, 4),
            probe.figure(heatmap, theme, 64, 300, masks.overlay(heatmap, candidates, 64, 0, 20)),
        ):
            json.dumps(chart, allow_nan=False)


def test_unknown_readers_are_grey_and_the_picked_block_is_no_part_of_saved_pictures():
    readers = pd.DataFrame({"key_block": [0, 4], "blocks": 4, "heads_share": [0.1, np.nan], "heads": 4})
    bars, picked = readers_figure.figure(readers, design.LIGHT, 64, 4)["marks"]
    assert bars["color"][1] == design.LIGHT.null and bars["told"][1][1] == "read by the dense tail alone"
    assert picked["ring"] and picked["at"] == bars["at"][1:]
