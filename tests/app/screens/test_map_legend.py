"""What the map says around its cells. No GPU, no browser."""

from __future__ import annotations

import pandas as pd

from routesparse.app.screens.routing_map import map_legend
from routesparse.app.ui import design


def test_the_margin_names_a_time_limit_only_where_there_is_one():
    limited, free = (pd.DataFrame({"limit_us": [limit, limit]}) for limit in (800.0, None))
    assert "Tℓ" in map_legend.margin(limited, False, design.LIGHT)
    assert "Tℓ" not in map_legend.margin(free, False, design.LIGHT)


def test_the_margin_says_that_times_are_of_all_segments_and_fallbacks_of_one():
    rows = pd.DataFrame({"limit_us": [800.0]})
    told = map_legend.margin(rows, True, design.LIGHT)
    assert "ms a layer, all segments:" in told and "expanded or dense by fallback, this segment" in told
    assert "segment" not in map_legend.margin(rows, False, design.LIGHT)


def test_letters_and_corners_have_a_key_beside_every_scale():
    told = map_legend.key(pd.DataFrame({"pattern": ["vertical_slash", "dense"]}))
    assert "<b>V</b>&nbsp;vertical-slash" in told and "◢ uncertified" in told
