"""The routing map with a head opened in it: filled, empty, in error, and its pictures as data. No GPU, no browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.app.screens.routing_map import head_order, head_prompts, head_scatter, map_figure
from routesparse.app.screens.routing_map import page as page_module
from routesparse.app.shell.access import access
from routesparse.app.shell.view import METRICS
from routesparse.app.ui import design, numbers, reason_words
from routesparse.app.unit import charts, masks, probe, shapes
from routesparse.engine.method import shape
from routesparse.engine.store import compare_queries, queries

RUN = "3f9a1c20d4e5b678"


def sparse(record):
    return next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)


def at(unit):
    return {"run": RUN, "layer": str(unit.layer), "head": str(unit.head)}


def other_head(record, unit, **changes):
    """The run's choices with these changes of one."""
    return tuple(replace(one, **changes) if one is unit else one for one in record.choices)


def test_a_head_opens_with_reason_probe_candidates_claims_text_and_other_runs(
    waiting, record, spooled, open_page
):
    spooled("abcdabcd00001111", run={"prompt_sha256": "0" * 64})
    choice = next(c for c in record.choices if (c.layer, c.head, c.segment) == (2, 3, 1))
    where = {"run": "d4e5b678", "layer": "2", "head": "3", "segment": "1"}
    page = open_page("routing_map", **where)
    assert "Candidates of layer" not in page.told, "one detail at a time"
    details = page.segmented_control(key="detail-choice").options
    assert details == ["Where it looked", "Candidates", "Certificates", "Segments", "Other prompts"]
    parts = [open_page("routing_map", **where, detail=name).told for name in page_module._DETAILS]
    html = page.told + "".join(parts)
    assert "Layer 2, head 3: why" in html
    assert reason_words.shown(choice.reason).replace(">", "&gt;") in html
    stored = next(p for p in record.probes if (p.layer, p.head, p.segment) == (2, 3, 1))
    assert f"Probe, {stored.rows} rows × {stored.columns * stored.pool} key blocks" in html
    assert f"max over {stored.pool} key block" in html, "the pool factor is printed"
    assert "g\u00a0≥\u00a0λ" in html and "Certificates and the truth" in html
    assert "map?run=d4e5b678&amp;layer=2&amp;head=3&amp;segment=0" in html, "its other segment"
    assert "map?run=00001111&amp;layer=2&amp;head=3&amp;segment=1" in html, "the same head elsewhere"
    assert 'href="trust?run=d4e5b678"' in html
    assert "text?run=d4e5b678&amp;layer=2&amp;head=3&amp;scope=all" in html
    assert not page.get("plotly_chart") and not page.markdown


def test_a_run_that_stayed_dense_is_routed_by_one_link(spooled, open_page):
    spooled(run={"routed": False})
    told = open_page("routing_map").told
    assert "Route it anyway</a>" in told and f"from={RUN[-8:]}&amp;break_even=0" in told


def test_claims_stand_beside_the_audited_truth(filled, record, open_page):
    unit = sparse(record)
    audit = next(a for a in record.audits if (a.layer, a.head, a.segment) == (unit.layer, unit.head, 0))
    html = open_page("routing_map", **at(unit), detail="certificates").told
    held = audit.mass >= unit.lower_mass
    certified, audited = numbers.bound(unit.lower_mass), numbers.mass(audit.mass)
    assert f"<td>{certified}</td><td>τ 0.90</td><td>{audited}</td>" in html
    assert ("the bound holds" in html) is held and ("below the bound" in html) is not held
    truth = min(audit.mass, unit.recent_mass)
    verdict = "holds" if truth >= unit.conformal_lower_mass else "fails"
    assert re.search(rf"<td>{truth:.3f}</td><td class=\"l\">.*?{verdict}", html)


def test_a_missed_bound_says_by_how_much_and_that_some_may_be_missed(spooled, record, open_page):
    """Beside a green verdict "below the bound" alone puzzled: one bound in twenty may be too high by chance."""
    unit = sparse(record)
    audits = tuple(
        replace(a, mass=unit.lower_mass - 0.004, covered=False, row_covered=0.875, forward_error=0.0421)
        if (a.layer, a.head, a.segment) == (unit.layer, unit.head, 0)
        else a
        for a in record.audits
    )
    spooled(audits=audits)
    html = open_page("routing_map", **at(unit), detail="certificates").told
    chance = "one bound in 20 may be too high by chance"
    assert "0.004 below the bound" in html and f"At 95 % confidence {chance}" in html
    assert "87.5 % of rows do" in html and "0.0421" in html
    trust = open_page("trust", run=RUN, details="true").told
    assert re.search(rf"y = x: 1 of \d+; at 95 % confidence {chance}", trust)


def test_a_head_that_just_misses_tau_shows_a_number_below_it(spooled, record, open_page):
    unit = sparse(record)
    spooled(choices=other_head(record, unit, lower_mass=0.89996))
    html = open_page("routing_map", **at(unit), detail="certificates").told
    claims = html[html.index("Certificates and the truth") :].partition("</table>")[0]
    assert "<td>0.899</td>" in claims and "ran uncertified" in claims and "<td>0.900</td>" not in claims


def test_a_dense_head_has_no_certificate_and_is_not_called_unaudited(spooled, record, open_page):
    unit = sparse(record)
    dense = {"pattern": "dense", "budget": "all keys", "density": 1.0, "lower_mass": None, "fallback": None}
    place = (unit.layer, unit.head, unit.segment)
    audits = tuple(a for a in record.audits if (a.layer, a.head, a.segment) != place)
    spooled(choices=other_head(record, unit, **dense), audits=audits)
    html = open_page("routing_map", metric="audited_error", **at(unit), detail="certificates").told
    assert "no certificate applies" in html and "not audited" not in html.lower()
    assert "not measured, or a dense head" in html
    store = access().store
    data, _ = map_figure.drawing(
        queries.choices(store, RUN, 0),
        queries.layers(store, RUN),
        "audited_error",
        (0, 0),
        design.LIGHT,
        (4, 4),
    )
    tip = data["tips"][unit.layer * 4 + unit.head]
    assert "audited error none: a dense head reads every key" in tip and "not measured" not in tip


def test_a_unit_without_audit_probe_and_calibration_says_so_and_names_stay_text(filled, open_page):
    where = {"run": "c0de17aa", "layer": "0", "head": "0"}
    html = (
        open_page("routing_map", **where).told + open_page("routing_map", **where, detail="certificates").told
    )
    assert "Not recorded for this unit" in html and "not measured" in html and "Not audited" in html
    assert "<b>router</b>" not in html and "&lt;b&gt;router&lt;/b&gt;.txt" in html


def test_without_a_calibration_the_conformal_claim_is_not_made(spooled, record, open_page):
    bare = tuple(replace(c, conformal_lower_mass=None) for c in record.choices)
    spooled(run={"calibration": None}, choices=bare)
    html = open_page("routing_map", **at(sparse(record)), detail="certificates").told
    assert "<td>no calibration</td>" in html


def test_certificates_that_failed_are_listed(filled, record, open_page):
    event = record.fallbacks[0]
    html = open_page("routing_map", segment=str(event.segment), detail="certificates", **at(event)).told
    assert f"certified {numbers.bound(event.lower_mass)} &lt; 0.90" in html


def test_a_run_below_its_break_even_says_that_it_was_asked_for(spooled, open_page):
    spooled(config={"break_even_tokens": 0})
    assert "routed at any length" in open_page("routing_map", run=RUN).told


def test_another_checkpoint_is_another_head(spooled, open_page):
    spooled()
    spooled("abcdabcd00001111", run={"model_revision": "other"})
    html = open_page("routing_map", run=RUN, detail="prompts").told
    assert "No other stored run of these weights" in html
    rows = compare_queries.over_runs(access().store, queries.Unit(RUN, 0, 0, 0))
    assert list(rows["run_id"]) == [RUN]


def test_moving_changes_the_address_and_stops_at_the_edge(filled, open_page):
    page = open_page("routing_map", run=RUN, layer="1", head="1")
    page.button(key="move-Right").click().run()
    page.button(key="move-Down").click().run()
    assert (page.query_params["layer"], page.query_params["head"]) == ("2", "2")
    assert "Layer 2, head 2" in page.told
    page.slider(key="segment-choice").set_value(2).run()
    assert page.query_params["segment"] == "1" and "Segment 2 of 2" in page.told
    page = open_page("routing_map", run=RUN, layer="0", head="3")
    assert page.button(key="move-Right").disabled and page.button(key="move-Up").disabled


def test_links_that_lead_nowhere_and_an_empty_store_say_so(filled, open_page):
    html = open_page("routing_map", run="deadbeef").told
    assert "This link leads nowhere" in html and "another machine." in html and ">Runs</a>" in html
    assert ">No run" in html, "a sentence begins with a capital"
    page = open_page("routing_map")
    assert page.query_params["run"] == "90e1f003" and "why" in page.told, "the newest, a telling unit"
    for run in access().store.run_ids():
        access().store.delete_run(run)
    page = open_page("routing_map")
    assert "No runs: 2 runs are in the trash" in page.told and ">New run</a>" in page.told


def test_a_pooled_probe_has_as_many_key_blocks_as_the_prompt(spooled, factory, open_page):
    spooled(of=factory.make_record(layers=2, heads=2, segments=1, tokens=260 * 64, probe_columns=260))
    html = open_page("routing_map", run=RUN, layer="0", head="0").told
    assert "rows × 260 key blocks" in html


def test_mask_of_the_choice_is_shown_and_the_address_names_another(filled, record, open_page):
    page = open_page("routing_map", run=RUN, layer="1", head="1")
    chosen = next(c.candidate for c in record.choices if (c.layer, c.head, c.segment) == (1, 1, 0))
    whose = f"-{RUN}-1-1-0-0"
    assert page.selectbox(key=f"mask-choice{whose}").value == chosen
    other = (chosen + 1) % 20
    page.selectbox(key=f"mask-choice{whose}").set_value(other).run()
    assert page.query_params["mask"] == str(other) and "grey: " in page.told
    page.selectbox(key=f"mask-choice{whose}").set_value(None).run()
    assert page.query_params["mask"] == "none" and "grey: " not in page.told


def test_a_run_without_masks_says_so(spooled, record, open_page):
    spooled(probes=tuple(replace(p, masks=None, mask_columns=None, mask_pool=None) for p in record.probes))
    html = open_page("routing_map", run=RUN, layer="1", head="1").told
    assert "is not stored for this run" in html


@pytest.mark.parametrize("chosen", range(4))
def test_the_choice_is_drawn_over_candidates_of_the_same_place(chosen):
    candidates = candidates_of("a_shape", "a_shape", "floor", "dense")
    candidates = candidates.assign(
        kernel_us=10.0, risk=0.1, gate_statistic=0.9, admissible=True, reason="", chosen=False
    )
    candidates.loc[chosen, "chosen"] = True
    marks = charts.scatter(candidates, 0.9, 0.9, design.LIGHT)["marks"]
    *_, last, ring = [mark for mark in marks if mark["kind"] == "points"]
    assert ring["color"] == "none" and last["told"][-1][0] == f"budget {chosen}"
    kinds = [mark["kind"] for mark in marks]
    assert kinds == sorted(kinds, key=["line", "points", "label"].index), "no line lies over a candidate"


def test_wide_probe_is_max_pooled_and_says_by_how_much():
    mass = np.zeros((3, 5_000), np.float32)
    mass[1, 4_321] = 0.7
    wide = queries.Heatmap(mass, np.array([5, 9, 9]), np.array([1, 2, 4], np.uint8), 3, 1, 2)
    shown = probe.limited(wide)
    assert shown.mass.shape == (3, 1_000) and shown.block_pool == 10
    assert shown.mass[1, 864] == np.float32(0.7), "a single key block survives"
    assert "3 rows" not in probe.legend(shown, design.LIGHT)
    chart = probe.figure(shown, design.LIGHT, 64, 300)
    assert len(set(chart["marks"][0]["rows"])) == 3, "repeated positions stay rows of their own"


def test_a_large_probe_stays_small_on_the_wire():
    mass = np.random.default_rng(0).random((272, 1_024), np.float32)
    kinds = np.full(272, 2, np.uint8)
    chart = probe.figure(queries.Heatmap(mass, np.arange(272), kinds, 272, 1, 1), design.DARK, 64, 300)
    assert len(json.dumps(chart)) < 800_000


def candidates_of(*patterns):
    frame = pd.DataFrame({"candidate": range(len(patterns)), "pattern": patterns})
    return frame.assign(budget=[f"budget {i}" for i in range(len(patterns))])


@pytest.fixture
def masked():
    """Two rows over four mask cells of 2 x 64 tokens; the first row ends in cell 1."""
    levels = {"a_shape": np.array([[0, 0, 15, 15], [0, 15, 1, 0]], np.uint8)}
    levels["block_sparse"] = np.array([[0, 0, 15, 15], [0, 0, 15, 0]], np.uint8)
    return queries.Heatmap(
        np.ones((2, 8), np.float32), np.array([200, 511]), np.array([2, 2], np.uint8), 2, 1, 1, levels, 2
    )


def test_mask_greys_what_a_budget_does_not_read_and_nothing_after_the_row(masked):
    candidates = candidates_of("a_shape", "a_shape", "block_sparse", "dense")
    cells = [masks.mask(masked, candidates, 64, i).cells.tolist() for i in (0, 1, 3)]
    assert cells[0] == [[True] * 4, [True, False, False, True]]
    assert cells[1] == [[True] * 4, [True, False, True, True]]
    assert cells[2] == [[True] * 4] * 2


@pytest.fixture
def store(filled):
    opened = access()
    opened.look_into_spool()
    return opened.store


def shaped(store, run=RUN):
    return shapes.with_shapes(store, queries.run(store, run), queries.choices(store, run, 0))[0]


@pytest.fixture
def draw(store):
    def drawing(
        metric="pattern", picked=(0, 0), run=RUN, change=lambda choices, layers: None, theme=design.LIGHT
    ):
        choices, layers = shaped(store, run), queries.layers(store, run)
        choices, layers = change(choices, layers) or (choices, layers)
        return map_figure.drawing(choices, layers, metric, picked, theme, (4, 4))

    return drawing


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("run", [RUN, "c0de17aa90e1f003"], ids=["audited", "not audited"])
def test_every_metric_has_a_map_and_a_legend(store, draw, metric, run):
    data, shown = draw(metric, run=run)
    json.dumps(data, allow_nan=False)
    told = map_figure.legend(shaped(store, run), shown, metric, design.LIGHT)
    rows = shaped(store, run)
    there = rows["shape"].dropna() if metric == "shape" else rows["pattern"].map(design.name)
    assert all(f"{name} {count}" in told for name, count in there.value_counts().items() if count)
    assert ("◥ expanded" in told) == (rows["fallback"] == "expand").any() and "◢ uncertified" not in told


def test_every_cell_has_its_letter_color_and_hover_and_only_the_ring_moves(store, draw):
    data, shown = draw()
    for row in queries.choices(store, RUN, 0).itertuples():
        at = row.layer * 4 + row.head
        assert data["letters"][at] == design.letter(row.pattern)
        assert data["fills"][data["cells"][at]] == shown.colors[row.layer, row.head]
        assert data["tips"][at].startswith(f"layer {row.layer}, head {row.head}")
        assert (data["marks"][at] == "d") == (row.fallback == "dense")
    other = draw(picked=(1, 2))[0]
    assert data["version"] == other["version"] != draw("mass")[0]["version"]
    assert other["picked"] == [1, 2]


def test_what_was_not_routed_or_not_measured_is_grey(draw):
    data, _ = draw(change=lambda choices, layers: (choices[choices["layer"] != 2], layers))
    assert data["letters"][8:12] == " " * 4 and data["tips"][8:12] == [None] * 4
    assert {data["fills"][cell] for cell in data["cells"][8:12]} == {design.LIGHT.null}

    def unknown(choices, layers):
        choices.loc[choices["layer"] == 1, "audited_error"] = np.nan
        return choices, layers.assign(limit_us=np.nan)

    data, _ = draw("audited_error", change=unknown, theme=design.DARK)
    assert data["values"][4:8] == ["–"] * 4 and "–" not in data["values"][:4]
    assert {data["fills"][cell] for cell in data["cells"][4:8]} == {design.DARK.null}
    assert data["times"]["rows"][0]["limit_ms"] is None
    json.dumps(data, allow_nan=False)


def test_the_margin_holds_times_and_counts_the_fallbacks_of_its_row(store, draw):
    data, layers = draw()[0], queries.layers(store, RUN).set_index("layer")
    row = data["times"]["rows"][2]
    assert row["planned_ms"] == pytest.approx(layers.planned_us[2] / 1000, abs=1e-3)
    assert row["limit_ms"] == pytest.approx(layers.limit_us[2] / 1000, abs=1e-3)
    assert max(row["limit_ms"], row["planned_ms"], row["measured_ms"]) <= data["times"]["longest"]
    counted = {row["layer"]: row["fallen"] for row in data["times"]["rows"]}
    assert counted == {
        layer: sum(mark in "de" for mark in data["marks"][4 * layer :][:4]) for layer in range(4)
    }
    # Of all segments it would be more: the hover says those.
    of_all = layers["dense_fallback"] + layers["expanded"]
    assert any(of_all[layer] > count > 0 for layer, count in counted.items())
    told = f"all segments: {layers.dense_fallback[2]} of {layers.units[2]} units dense by fallback"
    assert told in row["tip"]
    told = map_figure.margin(layers, True, design.LIGHT)
    assert "Tℓ" in told and "all segments:" in told
    told = map_figure.margin(layers.assign(limit_us=None), False, design.LIGHT)
    assert "Tℓ" not in told and "segment" not in told


def test_the_lens_of_the_predicted_loss_is_there_where_heads_have_a_part(filled, record, open_page):
    page = open_page("routing_map", run="3f9a1c20", metric="loss_nats")
    assert "Predicted loss" in page.segmented_control(key="metric-choice").options
    assert "what the predicted loss owes to the head, thousandths of a nat a token" in page.told
    assert "0.0060 nats</b><small>at most 0.0130 nats, 95 %, fitted on mixed" in page.told
    assert sum(choice.loss_nats for choice in record.choices) == pytest.approx(record.run.loss_nats)
    bare = open_page("routing_map", run="c0de17aa")
    assert "Predicted loss" not in bare.segmented_control(key="metric-choice").options
    assert "no bound: the model is not fitted" in bare.told
    asked = open_page("routing_map", run="c0de17aa", metric="loss_nats").told
    assert "only where the model is fitted" in asked


def test_a_run_without_a_predicted_loss_says_not_measured_and_keeps_its_other_figures(spooled, open_page):
    spooled(run=dict.fromkeys(("loss_nats", "loss_bound", "loss_fit", "loss_alarm")), losses=())
    html = open_page("routing_map", run="3f9a1c20").told
    assert "not measured</b><small>no rows were replayed" in html and "Mass not certified" in html
    assert "predicted loss" not in html.split("rs-verdict")[0]


def heads_like(**columns):
    """Four heads of one layer, the last one dense."""
    shares = [(0.8, 0.2, 0, 0, 0), (0.1, 0.6, 0.3, 0, 0), (0.1, 0.7, 0.2, 0, 0), (0, 0, 0, 0, 1.0)]
    frame = pd.DataFrame(shares, columns=list(shapes.COLUMNS))
    kinds = ["sink", "local", "local", "dense"]
    look = {"layer": 0, "head": range(4), "density": [0.1, 0.1, 0.1, 1.0], "pattern": "floor", "shape": kinds}
    return frame.assign(**look, loss_nats=np.nan, audited_error=np.nan).assign(**columns)


def test_the_map_opens_with_the_lens_that_tells_most_and_says_why(filled, open_page):
    lens, why = head_order.opening(heads_like())
    assert lens == "shape" and why.startswith("Opens with shape: ")
    unmeasured = dict.fromkeys(shapes.COLUMNS, np.nan)
    assert head_order.opening(heads_like(**unmeasured))[0] == "density", "what was not measured tells nothing"
    alike = dict.fromkeys(shapes.COLUMNS, 0.2) | {"loss_nats": [0.0, 1.0, 2.0, 3.0]}
    assert head_order.opening(heads_like(**alike))[0] == "loss_nats"
    assert "Opens with" in open_page("routing_map", run=RUN).told
    assert "Opens with" not in open_page("routing_map", run=RUN, metric="pattern").told


def test_heads_are_grouped_by_shape_the_purest_first_or_by_what_they_lose():
    heads = heads_like(loss_nats=[0.1, 0.4, np.nan, 0.2])
    assert head_order.ordered(heads, "shape") == [("sink", [0]), ("local", [2, 1]), ("dense", [3])]
    assert head_order.ordered(heads, "loss") == [("", [1, 3, 0, 2])], "what was not measured comes last"


def test_every_order_has_each_head_once_and_a_glyph_is_its_shares(store, draw):
    data, _ = draw("shape")
    choices = shaped(store)
    for row, glyph in zip(choices.itertuples(), data["glyphs"], strict=True):
        assert glyph[:5] == [round(100 * getattr(row, name)) for name in shapes.COLUMNS]
        assert data["letters"][row.layer * 4 + row.head] == design.SHAPE_LETTERS[row.shape]
        assert row.shape == "dense" or row.shape in data["tips"][row.layer * 4 + row.head]
    for order in ("shape", "loss"):
        placed, _ = map_figure.drawing(
            choices, queries.layers(store, RUN), "shape", (0, 0), design.LIGHT, (4, 4), order=order
        )
        assert len({tuple(place) for place in placed["places"]}) == 16
        assert len(placed["row_names"]) == 1 + max(row for row, _ in placed["places"])


def test_recorded_shapes_win_over_those_of_the_picture(spooled, record, open_page):
    shares = dict(zip(shapes.COLUMNS, (0.0, 0.0, 0.0, 1.0, 0.0), strict=True))
    spooled(choices=tuple(replace(c, **shares) for c in record.choices))
    html = open_page("routing_map", run=RUN, order="shape", metric="shape").told
    sparse_heads = sum(c.pattern != "dense" and c.segment == 0 for c in record.choices)
    assert f"slash {sparse_heads}</span>" in html and set(shape.KINDS) == set(design.SHAPE_LETTERS)


def test_a_box_over_two_figures_brushes_the_map(filled, store, open_page):
    choices = shaped(store)
    low, high = choices["density"].quantile([0.2, 0.6])
    page = open_page("routing_map", run=RUN, x="density", y="risk", brush=f"{high},{low},-9,9")
    inside = choices["density"].between(low, high)
    assert f"{inside.sum()} of 16 heads are in the box" in page.told
    brush = head_scatter.Brush("density", "risk", (low, high, -9.0, 9.0))
    assert brush.cells(choices, 4) == (choices["layer"] * 4 + choices["head"])[inside].tolist()
    assert head_scatter.Brush("density", "risk", None).cells(choices, 4) is None
    page.button(key="quiet-brush-clear").click().run()
    assert "brush" not in page.query_params
    for senseless in ("1,2,3", "a,b,c,d", "nan,1,1,1"):
        assert "Drag a box" in open_page("routing_map", run=RUN, brush=senseless).told


def test_a_head_over_many_prompts_has_deciles_and_the_highest_prompts(spooled, record, open_page):
    for number in range(12):
        run = {"prompt_sha256": f"{number:064}", "prompt_name": f"text {number}"}
        run |= {"tau": 0.8} if number == 11 else {}
        choices = tuple(replace(c, density=number / 20) for c in record.choices)
        spooled(f"abcdabcd0000{number:04}", run=run, choices=choices)
    page = open_page("routing_map", run="00000003", layer="1", head="1", detail="prompts")
    told = "Area kept: median 0.25 over 11 prompts; a tenth below 0.05, a tenth above 0.45."
    assert f"{told} This one: 0.15, above 3 of them. 1 run with other settings left out." in page.told
    table = page.told[page.told.index("text 10") :]
    assert table.index("text 10") < table.index("text 9") < table.index("text 8") and "text 1<" not in table
    rows = compare_queries.over_runs(access().store, queries.Unit("abcdabcd00000003", 1, 1, 0))
    few = head_prompts.summary(rows[rows["alike"]].head(3), "density", "")
    assert "deciles from 10 prompts on" in few
