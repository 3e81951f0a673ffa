"""The page Domains filled, empty and in error, its words and figures, and a reader's own texts. No GPU, no browser."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routesparse.app.screens.domains import beforehand, figures, heads, own, words
from routesparse.app.shell.access import access
from routesparse.app.ui import design
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import revision_of
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.stats.domains import Finding
from routesparse.engine.store import checks, domain_queries
from tests.app.conftest import REPOSITORY

TEXT = "The harbour master weighed the ledger. " * 60


@pytest.fixture
def put(spooled, record):
    """put(number, domain, scale, **changes): a run of a prompt of its own whose first head reads ``scale`` times."""

    def write(number: int, domain: str | None, scale: float = 1.0, **changes: object) -> str:
        run = {"domain": domain, "prompt_sha256": f"{number:064x}", **changes}
        choices = tuple(
            replace(one, density=scale * 0.2 if (one.layer, one.head) == (0, 0) else 0.3)
            for one in record.choices
        )
        return spooled(f"{number:04x}aaaa{number:04x}bbbb", run=run, choices=choices).run.run_id

    return write


def test_the_sentence_is_that_of_the_data_and_the_head_is_one_click_away(put, open_page):
    for number, (domain, scale) in enumerate(
        [("prose", 1.0), ("prose", 1.1), ("code", 2.0), ("code", 2.2)], 1
    ):
        put(number, domain, scale)
    page = open_page("domains")
    html = page.told
    assert "1 of 16 heads reads more in <b>code</b> than in <b>prose</b>, none the other way" in html
    assert "Prompts: 2 of prose, 2 of code." in html and "0 heads would be counted" in html
    first = html.split("Heads that change most")[1].split("<tr>")[2]
    assert "layer 0, head 0</a>" in first and "map?run=" in first and "<td>+21</td><td>4</td>" in first
    assert "of the causal area in <b>prose</b>" in html and "the dense tail left out" in html
    other = open_page("domains", one="code", other="prose").told
    assert (
        "than in <b>prose</b>" in other and "<td>-21</td>" in other and "names what is not here" not in other
    )
    assert "other=prose: here are code" in open_page("domains", one="prose", other="prose").told
    assert "one=mars: here are prose, code" in open_page("domains", one="mars").told


def test_a_new_first_domain_leaves_the_second_where_it_is(put, open_page):
    for number, domain in enumerate(("prose", "prose", "code", "code", "dialog", "dialog"), 1):
        put(number, domain)
    page = open_page("domains")
    page.selectbox(key="one-choice").select("dialog").run()
    assert page.selectbox(key="other-choicedialog").value == "code" and not page.exception
    page.selectbox(key="one-choice").select("code").run()
    assert page.selectbox(key="other-choicecode").value == "prose"


def test_one_prompt_a_domain_is_called_an_anecdote(put, open_page):
    put(1, "prose"), put(2, "code", 0.5)
    assert "One prompt a domain is an anecdote" in open_page("domains").told


def test_other_settings_are_not_compared_and_one_click_makes_the_missing_runs(
    demo_home, put, open_page, queue, monkeypatch, record
):
    monkeypatch.setattr(checks, "check", lambda tables: None)  # of runs as short as their text
    model = {
        "model": "demo",
        "model_revision": revision_of(REPOSITORY / "data/models/demo"),
        "policy": "priced",
    }
    plain = {**model, "config_json": json.dumps(RouterConfig(break_even_tokens=0).to_dict()), "tokens": 300}
    dear = {**model, "config_json": json.dumps(RouterConfig(price=2.0).to_dict()), "tokens": 300}
    put(1, "prose", **plain), put(2, "code", **plain), put(3, "law", **dear), put(4, None, **plain)
    page = open_page("domains")
    assert "Not compared, though of this model: 1 without a domain, 1 of other settings" in page.told
    assert "<bdi>law</bdi>" not in page.told
    twin = open_page("domains")
    assert page.button(key="make-missing").help == f"`{record.run.prompt_name}`"
    page.button(key="make-missing").click().run()
    assert page.button(key="make-missing").disabled and "1 text queued or running" in page.told
    assert not twin.button(key="make-missing").click().run().exception, "the second of two quick clicks"
    (job,) = queue.jobs()
    asked = RunRequest.from_json(job.request_json)
    assert (asked.domain, asked.price, asked.model) == ("law", 0.5, "demo")


def test_an_empty_store_says_how_to_get_a_run(home, open_page):
    assert "No runs yet" in open_page("domains").told


def test_a_single_domain_is_not_enough(put, open_page):
    put(1, "prose")
    told = open_page("domains").told
    assert "No two domains to compare" in told and "1 run stored, with 1 domain label among them" in told


def test_a_run_that_is_not_there_or_alone_is_told(put, open_page):
    put(1, "prose"), put(2, "code")
    put(3, "law", price=1.0, config_json=json.dumps(RouterConfig(price=1.0).to_dict()))
    assert "Another comparison is shown" in open_page("domains", of="nonesuch").told
    assert "No other domain was run with the settings" in open_page("domains", of="0003bbbb").told


@pytest.mark.parametrize(("whole", "lost"), [(False, 1), (True, 16)])
def test_heads_whose_probe_can_t_be_read_are_counted_and_the_rest_compared(put, home, open_page, whole, lost):
    run_id = put(1, "prose")
    put(2, "code")
    access().look_into_spool()
    file = home / "bundles" / run_id / "probe.parquet"
    rows = pq.read_table(file).to_pylist()
    next(one for one in rows if one["segment"] == 0)["mass"] = b"cut"
    pq.write_table(pa.Table.from_pylist(rows, pq.read_schema(file)), file)
    if whole:
        file.write_bytes(b"no parquet")
    html = open_page("domains").told
    assert f"Left out of the shapes: {lost} of 32 heads of all prompts" in html and "an anecdote" in html


def test_own_texts_are_named_by_their_folders_and_queued_together(demo_home, open_page, queue):
    page = open_page("domains")
    files = [
        (f"mine/{domain}/{n}.txt", f"{domain} {n} {TEXT}".encode(), "text/plain")
        for domain in ("law", "mail", "wiki")
        for n in (1, 2)
    ]
    page.file_uploader(key="domain-texts").set_value(files)
    page.number_input(key="own-tokens").set_value(256).run()
    assert "law: 2 texts, mail: 2 texts, wiki: 2 texts" in page.told
    page.button(key="own-run").click().run()
    assert not page.exception
    jobs = queue.jobs()
    assert len(jobs) == 6 and len({job.sweep for job in jobs}) == 1 and jobs[0].sweep
    asked = [RunRequest.from_json(job.request_json) for job in jobs]
    assert {one.domain for one in asked} == {"law", "mail", "wiki"} and {one.break_even for one in asked} == {
        0
    }
    assert "6 texts" in page.told and "domains, 0 of 6 done" in page.told
    page.file_uploader(key="domain-texts").set_value(
        [*files, ("mine/law/3.txt", b"short", "text/plain")]
    ).run()
    assert "6 texts queued or running" in page.told and "those below 243 are left out: 1." in page.told
    page.file_uploader(key="domain-texts").set_value([*files, ("a/law/b.txt", b"\0", "text/plain")]).run()
    assert page.button(key="own-run").disabled and "First mend what is said above: 1 problem" in page.told


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ([("loose.txt", b"text")], "lies in no folder"),
        ([("m/law/a.txt", b"\0")], "binary"),
        ([(f"m/{n}/a.txt", b"text %d" % n) for n in range(7)], "At most 6 domains"),
        ([("m/law/a.txt", b"text")] * 61, "at most 60 at once"),
        ([("m/law/a.txt", b"text"), ("m/mail/b.txt", b"text")], "a.txt and b.txt are the same text"),
    ],
    ids=["loose", "binary", "domains", "many", "twice"],
)
def test_wrong_texts_are_told(files, problem):
    assert any(problem in line for line in own.read(files)[1])


def test_settings_and_scaled_positions_are_kept_and_those_that_no_job_has_refused():
    rope = RopeScaling.parse('{"rope_type": "linear", "factor": 2.0}').text
    config = RouterConfig(price=0.25, budget=LatencyBudget.parse("800us"), seed=7).to_dict() | {"rope": rope}
    run = pd.Series({"audit_depth": "none", "config_json": json.dumps(config)})
    made = own.request("demo", run, "law", "a.txt")
    assert (made.price, made.budget, made.seed, made.rope, made.break_even) == (0.25, "800us", 7, rope, 0)
    run["config_json"] = json.dumps(config | {"bound": "bernstein"})
    with pytest.raises(InputError, match="differ in bound from what a job here would have"):
        own.request("demo", run, "law", "a.txt")


def test_shapes_are_those_of_the_pictures_where_none_is_recorded(put):
    put(1, "prose"), put(2, "code")
    opened = access()
    opened.look_into_spool()
    found = heads.of_runs(opened.store, domain_queries.runs(opened.store))
    parts = found[heads.PARTS].to_numpy(float)
    assert parts.sum(1) == pytest.approx(np.ones(len(parts))) and (parts >= -1e-9).all()
    means = heads.by_domain(found)
    assert len(means) == 2 * 16
    drawn = figures.heads_of(means[means["domain"] == "prose"], "shape", 0.3, design.LIGHT)
    json.dumps(drawn, allow_nan=False)


def test_the_prompts_own_losses_and_alarms_are_said():
    figures = {"prose": {"loss": 0.004, "rang": 0}, "code": {"loss": 0.02, "rang": 2, "alarms": "2 of 3"}}
    told = words.own_losses(figures)
    assert "predicted loss 0.0040 in prose and 0.0200" in told and "2 of 3 in code." in told
    assert words.own_losses({"prose": {"loss": float("nan"), "rang": 0}}) == ""


def test_chance_is_said():
    told = words.caveat(Finding(270, 30, 12, 1.2), {"prose": 3, "code": 3}, "prose", "code")
    assert "Prompts: 3 of prose, 3 of code." in told and "1 head would be counted" in told


def test_what_a_fit_of_one_kind_costs_on_another_is_computed_from_its_windows(fit):
    rows = beforehand.exchanged(fit).set_index(["fitted_on", "used_on"])
    row = rows.loc["prose", "code"]
    windows = [one for one in fit.windows if one.domain == "code"]
    place = fit.prices.index(row["price"])
    assert row["loss"] == pytest.approx(np.mean([one.kl[place] for one in windows]))
    bound = fit.predicted(1.0, "prose", 0.95).bound
    pairs = [pair for one in windows for pair in zip(one.kl, one.replayed, strict=True)]
    held = np.mean([kl <= bound * max(seen, 1e-6) for kl, seen in pairs])
    assert row["held"] == pytest.approx(held, abs=0.01)
    assert rows.loc["code", "code"]["price"] < row["price"], "code loses most, so its own price is the least"


def test_calibrations_are_listed_with_delta_alarms_and_leaks(
    home, data, tmp_path, make_calibration, put, open_page
):
    shipped = tmp_path / "data"
    for name, gate, delta in (("prose", 0.94, 0.014), ("code", 0.955, 0.031)):
        make_calibration(name, gate, delta).save(shipped / "calibrations")
    data(shipped)
    one = load_calibration("prose")
    leaked = {"name": "emma", "sha256": one.folds["A"]["documents"][0]["sha256"], "prompts": 1}
    fold = {**one.folds["B"], "documents": [*one.folds["B"]["documents"], leaked]}
    replace(one, folds={**one.folds, "B": fold}).save(shipped / "calibrations")
    drift = {"calibration": "prose", "drift_distance": 4.2, "drift_p": 0.01}
    put(1, "code", drift_alarm=True, **drift), put(2, "code", drift_alarm=False, **drift)
    html = open_page("domains", names="code,nonesuch").told
    assert "0.014" in html and "0.031" in html and "code 1 of 2" in html
    assert "prose: 1 document in both folds, so δ is too small" in html
    assert "no calibration &#x27;nonesuch&#x27;" in html
    (shipped / "calibrations" / "code.json").write_text('{"schema": 2, "name": "co')
    assert "calibration &#x27;code&#x27; is corrupt" in open_page("domains").told


def test_a_group_routed_by_the_models_fit_is_added_to_with_its_floors(fit):
    config = RouterConfig(head_floors=fit.head_floors).to_dict()
    run = {"audit_depth": "rows", "config_json": json.dumps(config), "model_revision": fit.model_revision}
    assert own.request("demo", pd.Series(run), "law", "a.txt").domain == "law"
    run["config_json"] = json.dumps(RouterConfig().to_dict())
    with pytest.raises(InputError, match="differ in head_floors"):
        own.request("demo", pd.Series(run), "law", "a.txt")
