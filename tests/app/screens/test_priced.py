"""Every page with a run of the policy "priced": the layer stands beside the head, and a floor is called one. No GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from routesparse.app.screens.routing_map import map_figure
from routesparse.app.screens.trust import layer_claims
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.config import POLICIES, RouterConfig
from routesparse.engine.store import queries

RUN = "9a1ced9a1ced0001"
CERTIFIED = "3f9a1c20d4e5b678"


@pytest.fixture(scope="session")
def priced(factory, record):
    """The session's run under the policy "priced"; its second layer climbed."""
    return factory.priced(factory.rename(record, RUN))


@pytest.fixture
def both(spooled, priced):
    """In the spool: that run and the one of the policy "certified"."""
    spooled()
    spooled(of=priced)


@pytest.fixture
def without(spooled, priced):
    """The run as if its fallback had been off: layer 2 is below its tau."""
    spooled(
        of=priced,
        layers=tuple(replace(row, lower_mass=0.6) if row.layer == 2 else row for row in priced.layers),
    )


def sparse(record, layer=1):
    return next(c for c in record.choices if c.layer == layer and c.segment == 0 and c.pattern != "dense")


def test_the_head_shows_its_own_lambda_and_its_layer_s_certificate(both, priced, open_page):
    choice = sparse(priced)
    html = open_page("routing_map", run=RUN, layer="1", head=str(choice.head), detail="certificates").told
    assert "policy priced, price 0.3, τ layer 0.70, τ head 0.40" in html
    assert f"λ = {choice.gate_threshold:.3f}" in html
    certified = f"<td>{priced.layers[1].lower_mass:.3f}</td><td>τ layer 0.70</td>"
    assert certified in html and "climbed 1 level" in html
    assert (
        "is a floor, which says nothing about quality" in html
        and "<td>τ head 0.40</td>" in html
        and "<td>τ 0.40</td>" not in html
    )
    assert "policy certified, τ 0.90" in open_page("routing_map", run=CERTIFIED).told


def test_a_dense_head_of_a_priced_run_still_shows_its_layer(spooled, priced, open_page):
    choices = tuple(
        replace(c, pattern="dense", lower_mass=None) if (c.layer, c.head) == (0, 0) else c
        for c in priced.choices
    )
    spooled(of=priced, choices=choices)
    html = open_page("routing_map", run=RUN, layer="0", head="0", detail="certificates").told
    assert "no certificate applies" in html and "<td>τ layer 0.70</td>" in html


def test_a_head_that_climbed_with_its_layer_says_whose_certificate_failed(both, priced, open_page):
    event = next(e for e in priced.fallbacks if e.scope == "layer" and e.segment == 0)
    html = open_page(
        "routing_map", run=RUN, layer=str(event.layer), head=str(event.head), detail="certificates"
    ).told
    assert f"left with its layer, whose certificate was {event.lower_mass:.3f} &lt; 0.70" in html


def test_the_map_has_a_column_of_layer_certificates(both, priced, open_page):
    html = open_page("routing_map", run=RUN).told
    assert "sparse units; 0 of 4 layers</small>" in open_page("trust", run=RUN).told
    assert "0 of 4 layers</small>" not in html, "a loss was predicted"
    assert "certified: the layer’s mean mass" in html
    view = access().store
    rows = queries.choices(view, RUN, 0), queries.layers(view, RUN)
    arguments = (*rows, "pattern", (0, 0), design.LIGHT, (4, 4))
    data, _ = map_figure.drawing(*arguments, tau_layer=0.7)
    column = [row["certificate"] for row in data["times"]["rows"]]
    assert column[1]["text"].endswith(" ↑1") and not any(cell["bad"] for cell in column)
    assert "raised 1 level" in data["times"]["rows"][1]["tip"]
    assert all("layer’s certified mean" in tip for tip in data["tips"])
    plain, _ = map_figure.drawing(*arguments)
    assert {row["certificate"] for row in plain["times"]["rows"]} == {None}
    json.dumps(data, allow_nan=False)


def test_rounding_lifts_no_layer_over_its_tau(without, open_page):
    open_page("runs")
    rows = queries.layers(access().store, RUN).assign(lower_mass=0.69999, layer_uncertified=True)
    data, _ = map_figure.drawing(
        queries.choices(access().store, RUN, 0), rows, "pattern", (0, 0), design.DARK, (4, 4), tau_layer=0.7
    )
    assert data["times"]["rows"][0]["certificate"] == {"text": ".699", "bad": True}


def test_a_layer_below_its_tau_is_told_and_a_certified_one_says_nothing_of_the_kind(
    without, priced, spooled, open_page
):
    spooled(CERTIFIED, of=priced)
    told = "1 of 4 layers ran without certified mass"
    html = open_page("trust", run=RUN).told
    assert f"{told}: layer 2 (0.600 &lt; 0.70)" in html
    assert "3 of 4 sparse layers keep at least 0.70, " in html
    assert "bound on kept mass below" not in open_page("routing_map", run=RUN).told, "a loss was predicted"
    table = open_page("runs").dataframe[0].value.set_index("run")["uncertified_layers"]
    assert table[RUN[-8:]] == "1 of 4" and table[CERTIFIED[-8:]] == "0 of 4"
    assert ">0, 1 layer</td>" in open_page("compare", runs=f"{CERTIFIED},{RUN}").told
    for name in ("trust", "routing_map"):
        assert "layers ran without certified mass" not in open_page(name, run=CERTIFIED).told, name
    html = open_page("trust", run=RUN, scope="all", details="true").told
    assert f"layer 2 of run {RUN[-8:]} (0.600 &lt; 0.70)" in html
    assert f'<td class="l">{RUN[-8:]}</td>' in html and 'layer=2" target="_self">layer 2</a>' in html


def test_trust_tells_layers_from_heads_and_sets_layers_beside_their_truth(both, priced, open_page):
    page = open_page("trust", run=RUN, details="true")
    html = page.told
    of_layers = sum(event.scope == "layer" for event in priced.fallbacks)
    assert f"of which {of_layers:,} of heads that climbed with their layer" in html
    assert set(page.dataframe[0].value["of"]) <= {"head", "layer"}
    assert "Certificates of the layers" in html and "is a floor, which says nothing about quality" in html
    assert "0 of 4 with several segments have one below the least bound" in html
    assert "reaches τ layer; no segment below the least bound" in html
    other = open_page("trust", run=CERTIFIED, details="true")
    assert "Certificates of the layers" not in other.told and "of" not in other.dataframe[0].value
    assert open_page("trust", run=RUN, scope="all").told  # no line for two meanings of tau


def test_a_missed_layer_says_by_how_much_and_that_some_may_be_missed():
    rows = {
        "lower_mass": [0.9, 0.8],
        "audited_mass": [0.95, 0.7968],
        "claims": [1, 1],
        "covered": [True, False],
    }
    told = layer_claims.held(pd.DataFrame(rows), 0.95)
    assert (
        told
        == "1 of 2 hold; missed by 0.0032 at most; at 95 % confidence one bound in 20 may be too high by chance"
    )
    assert layer_claims.held(pd.DataFrame(rows).head(1), 0.95) == "1 of 1 hold"


def test_the_runs_table_keeps_the_floor_out_of_the_column_tau(both, open_page):
    table = open_page("runs").dataframe[0].value.set_index("run")
    assert table.loc[RUN[-8:], ["tau", "policy"]].tolist() == ["0.70 layer", "priced 0.3"]
    assert table.loc[CERTIFIED[-8:], ["tau", "policy"]].tolist() == ["0.90", "certified"]
    html = open_page("compare", runs=f"{CERTIFIED},{RUN}").told
    assert 'class="l no">per head</td>' in html and 'class="l twice">0.3</td>' in html


@pytest.mark.parametrize("policy", POLICIES)
def test_the_field_tau_shows_the_default_of_its_policy(demo_home, open_page, policy):
    page = open_page("new_run", with_policy=policy, limit="0.5")
    assert not page.exception
    wanted = RouterConfig.tau_layer if policy == "priced" else RouterConfig.tau
    assert page.number_input(key="tau").placeholder == f"{wanted:.2f}"
    assert page.selectbox(key="with_policy").options[0] == RouterConfig.policy
    assert ("price" in {field.key for field in page.number_input}) == (policy == "priced")
