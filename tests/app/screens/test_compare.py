"""The Compare page filled, empty and in error: runs. No GPU, no browser."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from routesparse.app.screens.compare import conclusion
from routesparse.app.shell.access import access
from routesparse.app.ui import numbers
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import queries
from routesparse.engine.store.labels import Label

RUN, AGAIN, CODE = "3f9a1c20d4e5b678", "77771c20aaaa5679", "c0de17aa90e1f003"


@pytest.fixture
def three(waiting, factory, spooled):
    """A run, the same prompt under other settings, and (from ``waiting``) a run of another prompt."""
    shape = {"layers": 4, "heads": 4, "tokens": 4096, "probe": False, "prompt": False, "hardness": 0.5}
    spooled(of=factory.make_record(AGAIN, seed=3, **shape), run={"tau": 0.85}, config={"tau": 0.85})


def test_two_runs_of_the_same_prompt_are_paired(three, open_page):
    page = open_page("compare", runs=f"{RUN},{AGAIN}", baseline=RUN)
    html = page.told
    assert "Paired: all runs are of the same prompt" in html
    assert "one run, noise not measured" in html and "as fast;" not in html, "no ratio without noise"
    assert ">speedup<a" in html and 'data-of="speedup"' in html and 'data-of="error, mean"' in html
    assert "What differs, head by head" in html
    assert any("difference" in one.proto.id for one in page.get("bidi_component"))
    assert "These are different prompts" not in html
    assert not page.get("plotly_chart"), "Plotly takes longer to load than the page to draw"
    assert page.selectbox(key="baseline-choice").value == "d4e5b678"


def test_different_prompts_are_compared_unpaired_and_it_says_so(three, open_page):
    html = open_page("compare", runs=f"{RUN},{CODE}").told
    assert "Unpaired: the prompts differ" in html and "<br>unpaired" in html
    assert "<br>paired" not in html and "These are different prompts" in html
    assert "as fast;" not in html and "The cheapest setting" not in html, "other text takes another time"


def test_a_mixed_set_names_the_unpaired_ones(three, open_page):
    html = open_page("compare", runs=f"{RUN},{AGAIN},{CODE}").told
    assert "Unpaired, because the prompt differs: &lt;b&gt;router&lt;/b&gt;.txt" in html
    assert "<b>router</b>" not in html


def test_run_without_a_calibration_or_domain_shows_a_dash(spooled, open_page):
    spooled()
    spooled(AGAIN, run={"calibration": None, "domain": None})
    html = open_page("compare", runs=f"{RUN},{AGAIN}").told
    table = html[html.index("against the baseline") :].split("</table>")[0]
    assert "nan" not in table and "None" not in table and table.count('class="l twice no">–</td>') == 2


def test_heads_of_two_models_are_not_set_against_each_other(spooled, open_page):
    spooled()
    spooled(AGAIN, run={"model": "other", "model_revision": "0123456789abcdef"})
    html = open_page("compare", runs=f"{RUN},{AGAIN}").told
    assert "Two models have no head in common" in html and "other, revision 01234567" in html
    assert "What differs, head by head" not in html and "unpaired" in html.lower()


def test_equal_settings_are_hidden(three, open_page):
    html = open_page("compare", runs=f"{RUN},{AGAIN}").told
    card = html[html.index("Settings that differ") :]
    assert '<td class="l">tau</td>' in card and "0.85" in card
    assert '<td class="l">confidence</td>' not in card and "equal settings are hidden" in card


def test_the_settings_that_differ_name_the_target_and_no_price_that_was_not_read(spooled, open_page):
    spooled()
    config = {"policy": "priced", "price": 2.8}
    spooled(AGAIN, run={**config, "tau_layer": 0.3, "tuned_price": "prose-kl"}, config=config)
    html = open_page("compare", runs=f"{RUN},{AGAIN}").told
    card = html[html.index("Settings that differ") :]
    for setting, told in (("price", "2.8"), ("quality target", "prose-kl")):
        row = card.split(f'<td class="l">{setting}</td>')[1].split("</tr>")[0]
        assert re.findall(r">([^<]+)</td>", row) == ["–", told]


def test_changing_baseline_and_runs_changes_the_address(three, open_page):
    page = open_page("compare", runs=f"{RUN},{AGAIN},{CODE}")
    page.selectbox(key="baseline-choice").select("90e1f003").run()
    assert page.query_params["baseline"] == "90e1f003"
    assert not page.exception
    page.selectbox(key="other-choice").select("aaaa5679").run()
    assert page.query_params["other"] == "aaaa5679"
    page.multiselect(key="runs-choice").unselect(CODE).run()
    assert page.query_params["runs"] == "d4e5b678,aaaa5679"
    assert not page.exception


@pytest.mark.parametrize("metric", ["choice", "conformal_lower_mass", "audited_error"])
def test_metrics_draw_also_where_nothing_was_audited(three, open_page, metric):
    page = open_page("compare", runs=f"{RUN},{CODE}", metric=metric)
    assert metric != "audited_error" or "not measured on both sides" in page.told


def test_choosing_runs_on_the_empty_page(filled, open_page):
    page = open_page("compare", runs=RUN)
    assert "Choose two runs" in page.told
    page.multiselect(key="runs-choice").select(CODE).run()
    assert page.query_params["runs"] == "d4e5b678,90e1f003"
    assert "Unpaired" in page.told


def test_unknown_run_is_named_and_the_others_stay(three, open_page):
    assert open_page("compare", runs=",".join("abcdefgha")).told.count("no run &#x27;") == 6, (
        "at most six are read"
    )
    html = open_page("compare", runs=f"{RUN},deadbeef,{AGAIN}").told
    assert "no run &#x27;deadbeef&#x27;" in html and "What differs, head by head" in html


def test_sides_are_named_by_what_differs(three, open_page):
    page = open_page("compare", runs=f"{RUN},{AGAIN}")
    assert page.selectbox(key="baseline-choice").options == ["τ 0.90", "τ 0.85"]
    assert "τ 0.90 · baseline" in page.told and "d4e5b678 · baseline" not in page.told


def test_runs_with_the_same_settings_are_named_by_their_time_or_the_owner_s_name(spooled, open_page):
    spooled()
    spooled(AGAIN, run={"created_at": "2026-11-21T09:30:00Z"})
    options = open_page("compare", runs=f"{RUN},{AGAIN}").selectbox(key="baseline-choice").options
    assert options == ["2026-11-20 00:12:31", "2026-11-21 09:30:00"]
    access().store.set_label(AGAIN, Label("second <i>try</i>"))
    page = open_page("compare", runs=f"{RUN},{AGAIN}")
    assert page.selectbox(key="baseline-choice").options[1] == "second <i>try</i>"
    assert "second &lt;i&gt;try&lt;/i&gt;" in page.told and "<i>try" not in page.told


def test_sides_with_one_name_are_told_apart_and_hide_no_character(three, open_page):
    open_page("compare")
    for run_id in (RUN, AGAIN):
        access().store.set_label(run_id, Label("tr\u202ey"))
    options = open_page("compare", runs=f"{RUN},{AGAIN}").selectbox(key="baseline-choice").options
    shown = visible("tr\u202ey")
    assert "\u202e" not in shown and options == [f"{shown} · τ 0.90", f"{shown} · τ 0.85"]


def concluded(page):
    html = page.told
    return html[html.index('<div class="rs-concludes">') :].split("</div>")[0]


def test_the_page_begins_with_what_the_comparison_comes_to(three, open_page):
    told = concluded(open_page("compare", runs=f"{RUN},{AGAIN}"))
    assert re.search(
        r"<p><b>B τ 0\.85</b>: it reads \d+&nbsp;% less than the baseline, [\d.]+&nbsp;% of the causal area and not "
        r"[\d.]+&nbsp;%\. The next token .*a mean output error of [\d.]+ \(baseline [\d.]+\)\. Of 32 units \d+ read by "
        "another family and [0-9]+ more or less by the same one",
        told,
    )


def test_budgets_whose_names_grew_are_no_other_choice(spooled, record, open_page):
    """A release may name budgets otherwise; what is read is the same."""
    spooled()
    spooled(AGAIN, choices=tuple(replace(one, budget=f"{one.budget}, as of 2") for one in record.choices))
    told = concluded(open_page("compare", runs=f"{RUN},{AGAIN}"))
    assert "same routing, all 32 units read as in the baseline, with the same settings" in told


def test_the_same_routing_is_called_so_and_names_what_differs(spooled, open_page):
    spooled()
    spooled(AGAIN, run={"calibration": "code", "top1_agreement": 0.0, "kl_nats": 0.2})
    told = concluded(open_page("compare", runs=f"{RUN},{AGAIN}"))
    assert (
        "same routing, all 32 units read as in the baseline" in told and "what differs: calibration" in told
    )
    assert "This run has the worse verdict, red: Another next token than by dense" in told


@pytest.mark.parametrize(
    ("segments", "tokens", "paired"), [(2, 3072, False), (4, 1024, False), (2, 2048, True)]
)
def test_units_of_other_segments_are_not_called_the_same(spooled, open_page, segments, tokens, paired):
    spooled(run={"segments": 2}, config={"segment_tokens": 2048})
    spooled(AGAIN, run={"segments": segments}, config={"segment_tokens": tokens})
    told = concluded(open_page("compare", runs=f"{RUN},{AGAIN}"))
    assert ("same routing, all 32 units" in told) == paired
    assert ("segments differ, so units can’t be paired" in told) != paired
    page = open_page("compare", runs=f"{RUN},{AGAIN}")
    html = page.told
    # The map stands for the same units alone, and the means say that they are not of pairs.
    assert ("What differs, head by head" in html) == paired
    assert ("The segments differ" in html) == ("because the segments differ" in html) != paired
    assert ("<br>paired</th>" in html) == paired and ("<br>unpaired</th>" in html) != paired
    assert "other prompt" not in html, "a time has no segments"


def test_no_ratio_is_given_across_prompts(three, open_page):
    told = concluded(open_page("compare", runs=f"{RUN},{CODE}"))
    assert "Its prompt is not the baseline’s" in told and "no ratio is given" in told
    assert told.index("of the causal area") < told.index("at a predicted loss of") < told.index("Its prompt")
    assert " less than" not in told and " more than" not in told


@pytest.mark.parametrize(
    ("base", "other", "told"),
    [
        ([3000.0], [2000.0], "−1.00 s; one run, noise not measured"),
        ([3e3, 3.1e3], [2e3], "−1.05 s, medians of 1 and 2 runs; this side ran once, noise not measured"),
        (
            [3e3],
            [2e3, 2.1e3],
            "−950.0 ms, medians of 2 and 1 runs; the baseline ran once, noise not measured",
        ),
        ([3e3, 3.1e3], [2990.0, 3050.0], "medians of 2 and 2 runs: −30.0 ms, within the noise of 100.0 ms"),
        (
            [3000.0, 3200.0],
            [2000.0, 1950.0, 2010.0],
            "medians of 3 and 2 runs: −1.10 s, 1.55× as fast; beyond the noise of 200.0 ms",
        ),
    ],
)
def test_a_ratio_of_times_needs_repeats_and_a_difference_beyond_their_spread(base, other, told):
    assert conclusion.time_words(np.array(base), np.array(other)) == told


def test_repeats_have_the_same_settings_and_two_of_them_are_the_noise(spooled, open_page):
    made = {RUN: (0.9, 3000.0), AGAIN: (0.9, 3030.0), CODE: (0.85, 2000.0)}
    for run_id, (tau, total_ms) in made.items():
        spooled(run_id, run={"tau": tau, "total_ms": total_ms, "budget": None})
    html = open_page("compare", runs=f"{RUN},{AGAIN},{CODE}", baseline=RUN).told
    assert "+30.0 ms; same settings: this is noise, 30.0 ms over 2 runs" in html
    store = access().store
    stored = queries.runs(store)
    base, again, other = (queries.run(store, run_id) for run_id in made)
    assert (
        sorted(conclusion.repeats(stored, base)) == sorted(conclusion.repeats(stored, again)) == [3000, 3030]
    )
    assert list(conclusion.repeats(stored, other)) == [2000]
    assert conclusion.time_against(stored, base, other).startswith("−1.01 s, medians of 1 and 2 runs")


def test_kept_is_the_run_s_own_figure_on_runs_and_compare(three, record, open_page):
    html = open_page("compare", runs=f"{RUN},{AGAIN}").told
    assert f'class="">{numbers.share(record.run.density)}</td>' in html
    rows = open_page("runs").dataframe[0].value
    row = rows[rows["run"] == RUN[-8:]].iloc[0]
    assert row["density"] == pytest.approx(100 * record.run.density)
