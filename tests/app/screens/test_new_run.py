"""The New run page filled, empty and in error; prompts, sizes, estimates. No GPU, no browser, no model loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from routesparse.app.screens.new_run.prompt_input import MOST_PROMPTS
from routesparse.app.shell import new_run_address, what_it_takes
from routesparse.app.ui import numbers
from routesparse.engine import paths
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.jobs.presence import Device
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.models.token_count import prompt_size
from routesparse.engine.paths import DATA
from routesparse.engine.profiles.limits import least_limit
from tests.app.conftest import TEXT, press
from tests.engine import shipped_profile

REPOSITORY = Path(__file__).resolve().parents[3]


def test_pasted_text_is_counted_and_submitted(form, queue, went):
    page = form()
    html = page.told
    assert f"{prompt_size('demo', TEXT).tokens:,}" in html
    assert "no estimate yet" in html
    page.button(key="submit").click().run()
    assert not page.exception
    (job,) = queue.jobs()
    assert went == [("runs", {"job": job.id})]
    assert queue.prompts.read(job.id).decode() == TEXT
    assert RunRequest.from_json(job.request_json) == RunRequest(audit="rows", label="pasted text")


def test_settings_come_from_the_address(form):
    address = {
        "with_policy": "budgeted",
        "limit": "800us",
        "tau": "0.8",
        "segment": "2048",
        "keep_text": "false",
    }
    page = form(**address)
    asked = form.asked(page)
    assert (asked.policy, asked.budget, asked.tau, asked.segment) == ("budgeted", "800us", 0.8, 2048)
    assert not asked.keep_text
    page = form(with_policy="priced", tau="0.75", price="0.5")
    asked = form.asked(page)
    assert (asked.policy, asked.config().tau_layer, asked.config().price) == ("priced", 0.75, 0.5)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ({"with_policy": "strict"}, "needs a time limit"),
        ({"limit": "-1"}, "it must be a number above 0"),
        ({"limit": "![x](http://127.0.0.1/x.png)"}, "is not understood"),
        ({"tau": "1.5", "with_policy": "certified"}, "τ is 1.5, it must be a number from 0 to 1"),
        ({"tau": "1.5", "with_policy": "priced"}, "τ layer is 1.5, it must be a number from 0 to 1"),
        ({"segment": "1000"}, "use a multiple of 128"),
        ({"break_even": "1000000000"}, "Break-even is 1000000000, it must be a whole number"),
        ({"break_even": "-128"}, "Break-even is -128, it must be a whole number"),
        ({"trace": "last"}, "names no tokens; pass at most 16 numbers"),
        ({"trace": "3,999999"}, "Trace names token 999,999; the prompt has 0 to"),
    ],
)
def test_wrong_settings_are_explained_in_the_engines_words_and_mended_by_a_button(form, address, message):
    page = form(**address)
    assert message in page.told
    assert page.button(key="submit").disabled
    assert not page.markdown
    page.button(key="fix-0-0").click().run()
    assert message not in page.told
    assert not page.button(key="submit").disabled


def test_all_problems_are_named_at_once_also_without_a_prompt(demo_home, open_page):
    wrong = {"limit": "soon", "tau": "1.5", "price": "-1", "segment": "1000", "break_even": "-128"}
    html = open_page("new_run", source="Paste", **wrong).told
    told = (
        "No usable prompt yet",
        "is not understood",
        "τ layer is 1.5",
        "A price of -1 is out of range: use one from 0.000001 to 1,000,000.",
        "multiple of 128",
        "Break-even is -128",
    )
    assert [words for words in told if words not in html] == []
    del wrong["limit"]
    html = open_page("new_run", source="Paste", with_policy="strict", **wrong).told
    assert "needs a time limit" in html and "block_q" not in html and "multiple of 128" in html
    assert "--" not in html, "a page has no flags"


def test_a_calibration_that_does_not_fit_can_be_left_out_by_a_button(form, demo_home, make_calibration):
    folder = demo_home.parent / "data" / "calibrations"
    make_calibration("other", 0.95, 0.02, revision="another").save(folder)
    page = form(calibration="other")
    assert page.button(key="submit").disabled
    assert "has revision" in page.told and "--force" not in page.told, "a page has no flags"
    press(page, "Run without a calibration")
    assert page.selectbox(key="calibration").value == "none" and not page.button(key="submit").disabled


def test_a_limit_below_the_probe_is_refused_before_the_job_would_fail(form, demo_home):
    size = prompt_size("demo", TEXT)
    stored = profile(head_dim=size.head_dim, name=f"cpu-0-t2-fp32-d{size.head_dim}-g4-b128x64-exact")
    stored.save(demo_home / "profiles")
    settings = RunRequest(budget="0.35", break_even=0).config()
    least = least_limit(stored, size.tokens, size.heads, settings)
    below, above = f"{least.limit_us * 0.9:.0f}us", f"{least.limit_us * 1.1:.0f}us"
    page = form(break_even="0", limit=below)
    assert "is below what the probe takes" in page.told and page.button(key="submit").disabled
    assert f"{100 * least.share:.1f} % of dense" in page.told, "the least limit stands there"
    fine = form(break_even="0", limit=above)
    assert not fine.button(key="submit").disabled
    press(page, "Run without a limit")
    assert page.text_input(key="limit").value == "" and not page.button(key="submit").disabled
    quick = {name: cost / 100 for name, cost in stored.costs.items()}
    replace(stored, **quick, name=f"gpu-0-t2-fp32-d{size.head_dim}-g4-b128x64-exact").save(
        demo_home / "profiles"
    )
    page = form(break_even="0", limit=below)
    assert not page.button(key="submit").disabled, "a worker on the quicker device has the time"


@pytest.mark.parametrize("side", ["first", "last"])
def test_a_part_of_the_prompt_is_cut_at_tokens_and_named(form, queue, side):
    text = " ".join(f"word{i}" for i in range(900))
    page = form(text, take=side, take_tokens="300")
    page.button(key="submit").click().run()
    job = queue.jobs()[0]
    part = queue.prompts.read(job.id).decode()
    assert text.startswith(part) if side == "first" else text.endswith(part)
    assert 280 <= prompt_size("demo", part).tokens <= 300
    assert job.label == f"pasted text, {side} 300 tokens"


def test_a_prompt_that_is_too_long_is_cut_by_a_button(form):
    page = form("harbour " * 200_000)
    assert page.button(key="submit").disabled
    press(page, "Use the last 131,072 tokens")
    assert page.query_params["take"] in ("last", ["last"])
    assert not page.button(key="submit").disabled


def test_any_file_that_is_text_is_a_prompt_and_its_name_a_label(demo_home, open_page, queue, went):
    page = open_page("new_run")
    file = ("../../etc/<b>x</b>.jsonlx", TEXT.encode(), "application/octet-stream")
    page.file_uploader(key="upload").set_value(file).run()
    page.button(key="submit").click().run()
    assert queue.jobs()[0].label == "b>.jsonlx" and queue.prompts.read(queue.jobs()[0].id).decode() == TEXT
    assert sorted(path.name for path in demo_home.parent.iterdir()) == ["data", "home"]


YARN = '{"rope_type": "yarn", "factor": 4.0}'


def test_a_scaling_reaches_the_job_and_lengthens_what_the_model_reads(form):
    page = form(rope=YARN, calibration="none", trace="5,3")
    assert not page.exception and "524,288" in page.told
    asked = form.asked(page)
    assert json.loads(asked.rope) == {"rope_type": "yarn", "factor": 4.0}
    assert asked.scaling.text == asked.rope and asked.trace == "5,3"
    again = {name: str(value) for name, value in new_run_address.of_request(asked).items()}
    page = form(**again)
    assert form.asked(page) == asked


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ("yarn", "is no JSON object"),
        ('{"rope_type": "dynamic", "factor": 2.0}', "cached keys no longer fit"),
        ('{"rope_type": "yarn", "factor": 0.5}', "rope.factor"),
        (
            '{"rope_type": "longrope", "factor": 2.0, "short_factor": [1], "long_factor": [1]}',
            "model 'demo' has 32 rotary pairs",
        ),
        (
            '{"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 262144}',
            "more than the model reads, 131,072",
        ),
    ],
)
def test_a_scaling_that_means_nothing_or_does_not_fit_the_model_is_not_queued(form, rope, message):
    page = form(rope=rope)
    assert not page.exception and escape(message) in page.told
    assert page.button(key="submit").disabled
    press(page, "Run without RoPE scaling")
    assert escape(message) not in page.told and not page.button(key="submit").disabled


@pytest.fixture
def mine(demo_home):
    """The bundled calibration of prose under another name, as one made here."""
    made = replace(load_calibration(str(REPOSITORY / "data" / "calibrations" / "prose.json")), name="mine")
    made.save(paths.calibrations())
    return made.name


@pytest.mark.parametrize("linked", [False, True])
def test_a_chosen_calibration_stays_and_is_refused_when_positions_are_rescaled(form, mine, linked):
    if linked:
        page = form(calibration=mine, rope=YARN)
    else:
        page = form()
        page.selectbox(key="calibration").set_value(mine).run()
        page.text_input(key="rope").set_value(YARN).run()
    assert not page.exception and page.selectbox(key="calibration").value == mine
    assert "Calibration mine was made without RoPE scaling" in page.told
    assert page.button(key="submit").disabled
    page.text_input(key="rope").set_value("").run()
    assert page.selectbox(key="calibration").value == mine and "without RoPE scaling" not in page.told
    assert form.asked(page).calibration == mine


def test_a_failed_job_comes_back_with_prompt_and_settings(form, open_page, queue):
    request = RunRequest(policy="strict", budget="0.5", tau=0.8, segment=2048, audit="full", label="mine.txt")
    job = queue.submit(request, TEXT)
    query = {name: str(value) for name, value in new_run_address.of_request(request).items()}
    page = open_page("new_run", from_job=job, **query)
    assert not page.exception and escape(TEXT[:60]) in page.told
    again = form.asked(page)
    assert again == request and queue.jobs()[0].id != job


@pytest.mark.parametrize(
    "changes",
    [{"device": "another"}, {"audit_depth": "none"}, {"routed": False}],
    ids=lambda c: next(iter(c)),
)
def test_estimates_come_from_runs_of_the_same_device_audit_and_state_only(form, spooled, changes):
    spooled(run={"created_at": "2027-01-01T00:00:00Z", "device": "CPU, 2 cores"})
    spooled("0therrun00000000", run=changes)
    page = form(TEXT * 4, break_even="0")
    assert "prefill of 1 stored run like this on CPU, 2 cores" in page.told


def test_form_and_job_count_the_same_earlier_jobs(form, spooled, open_page, queue):
    for routed in (False, True, True):
        queue.submit(RunRequest(audit="rows"), TEXT)
        claim = queue.claim("worker-1")
        spooled(claim.run_id, run={"routed": routed})
        queue.finish(claim, claim.run_id)
    for break_even, told in ((1_000_000, "1 earlier job"), (0, "2 earlier jobs")):
        page = form(break_even=str(break_even))
        job = queue.submit(RunRequest(audit="rows", break_even=break_even), TEXT)
        assert f"from {told} like this" in page.told and f", from {told}<" in open_page("runs", job=job).told


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe broken", "is not UTF-8"), (b"", "is empty"), (b"a\0b", "is binary")],
    ids=["encoding", "empty", "binary"],
)
def test_wrong_files_are_explained(demo_home, open_page, content, message):
    page = open_page("new_run")
    page.file_uploader(key="upload").set_value(("bad.txt", content, "text/plain")).run()
    assert message in page.told
    assert page.button(key="submit").disabled


def test_a_benchmarks_row_keeps_its_text_with_its_question(demo_home, open_page, queue, went):
    line = json.dumps({"input": "Who signed?", "context": TEXT, "answers": ["Ann"]})
    page = open_page("new_run")
    page.file_uploader(key="upload").set_value(("longbench.jsonl", line.encode(), "text/plain")).run()
    assert "Line 1: the prompt is context + input; left out: answers." in page.told
    page.button(key="submit").click().run()
    assert queue.prompts.read(queue.jobs()[0].id).decode() == f"{TEXT}\n\nWho signed?"


def test_one_bad_line_is_left_out_and_named(demo_home, open_page, queue, went):
    lines = "\n".join(
        [json.dumps({"text": TEXT}), '{"text": cut', "[1]", json.dumps({"text": TEXT + "second"})]
    )
    page = open_page("new_run")
    page.file_uploader(key="upload").set_value(("suite.jsonl", lines.encode(), "text/plain")).run()
    assert "2 lines left out: line 2 is no JSON" in page.told and "and 1 more" in page.told
    page.number_input(key="line").set_value(2).run()
    page.button(key="submit").click().run()
    assert queue.prompts.read(queue.jobs()[0].id).decode() == TEXT + "second"


@pytest.mark.parametrize("kind", ["files", "lines"])
def test_several_prompts_are_a_run_each(demo_home, open_page, queue, went, kind):
    page = open_page("new_run")
    upload = page.file_uploader(key="upload")
    if kind == "files":
        upload.set_value([(f"{n}.txt", f"{n} {TEXT}".encode(), "text/plain") for n in (1, 2, 3)]).run()
    else:
        rows = "\n".join(json.dumps({"text": f"{n} {TEXT}"}) for n in (1, 2, 3))
        upload.set_value(("suite.jsonl", rows.encode(), "text/plain")).run()
        page.toggle(key="every_line").set_value(True).run()
    sizes = [prompt_size("demo", f"{n} {TEXT}").tokens for n in (1, 2, 3)]
    assert "3 prompts, a run each" in page.told and f">{sum(sizes):,}</b>" in page.told
    page.button(key="submit").click().run()
    assert sorted(queue.prompts.read(job.id)[:1] for job in queue.jobs()) == [b"1", b"2", b"3"]
    names = ["1.txt", "2.txt", "3.txt"] if kind == "files" else [f"suite.jsonl #{n}" for n in (1, 2, 3)]
    assert sorted(job.label for job in queue.jobs()) == names and went == [("runs", {})]


def test_a_sweep_and_a_crowd_of_prompts_are_refused_before_anything_is_queued(demo_home, open_page, queue):
    page = open_page("new_run", vary="price", prices="0.25, 0.5")
    files = [(f"{n}.txt", f"{n} {TEXT}".encode(), "text/plain") for n in range(MOST_PROMPTS + 1)]
    page.file_uploader(key="upload").set_value(files[:2]).run()
    assert "A sweep varies a setting of one prompt" in page.told and page.button(key="submit").disabled
    page.file_uploader(key="upload").set_value(files).run()
    assert f"{MOST_PROMPTS + 1} prompts are more than {MOST_PROMPTS}" in page.told
    assert page.button(key="submit").disabled and not queue.jobs()


def test_a_profile_of_another_machine_says_nothing_where_the_workers_device_is_known(demo_home):
    size = prompt_size("demo", TEXT)
    for device, cost in (("mine", 3_000.0), ("another", 1.0)):
        name = f"{device}-0-t2-fp32-d{size.head_dim}-g4-b128x64-exact"
        stored = profile(head_dim=size.head_dim, probe_head_us=cost, device=device, name=name)
        stored.save(demo_home / "profiles")
    known = {
        name: what_it_takes.outlook(RunRequest(), size, [Device(name, False, 1)])
        for name in ("mine", "third")
    }
    assert known["mine"].device == "mine" and len(known["mine"].least) == 1
    assert known["third"].break_even is None and not known["third"].profiled
    assert len(what_it_takes.outlook(RunRequest(), size, []).least) == 2


def test_run_again_fills_in_prompt_and_settings(demo_home, filled, open_page, record):
    page = open_page("new_run", **{"from": record.run.run_id, "tau": "0.85"})
    assert page.number_input(key="tau").value == 0.85
    assert escape(record.prompt.text[:60]) in page.told
    assert "An estimate: prefill of 1 stored run like this on CPU, 2 cores" in page.told


def test_the_memory_told_counts_the_keys_and_values_of_the_continuation(demo_home, open_page):
    size = prompt_size("demo", (DATA / "samples" / "prompts" / "needles.txt").read_text())
    sizes = (size.max_tokens, size.layers, size.heads, size.kv_heads, size.head_dim)
    assert size.cache_bytes == LoadedModel(None, None, "demo", "", "", *sizes, "cpu", "float32").cache_bytes(
        size.tokens
    )
    html = open_page("new_run", source="Sample", sample="needles.txt").told
    assert f">{numbers.size(size.memory_bytes + size.cache_bytes)}</b>" in html
    assert f"{numbers.size(size.cache_bytes)} of keys and values to continue the prompt" in html


def profile(**changes):
    """The shipped one of a CPU, but that all costs are alike."""
    shipped = LatencyProfile.load(shipped_profile.SHIPPED)
    costs = dict.fromkeys(shipped.costs, 1.0) | {"probe_key_us": 0.001}
    place = {"name": "cpu-0-t2-fp32-d64-g4-b128x64-exact", "device": "a fast machine", "groups": 4}
    return replace(shipped, **(place | costs | changes))


def test_only_the_bundled_model_and_those_in_the_models_folder_are_offered(form, demo_home):
    other = demo_home / "models" / "copy"
    other.parent.mkdir()
    other.symlink_to(REPOSITORY / "data" / "models" / "demo")
    (demo_home / "models" / "no-model").mkdir()
    page = form(with_model="/etc")
    box = page.selectbox(key="with_model")
    assert box.options == ["demo", "copy"] and box.value == "demo"
    absent = "names what is not here: with_model=/etc."
    assert absent in page.told
    page.selectbox(key="audit").select("full").run()
    assert absent in page.told
    page.selectbox(key="with_model").select("copy").run()
    assert absent not in page.told
    assert f"{prompt_size('demo', TEXT).tokens:,}" in page.told
    assert form.asked(page).model == str(other)


def test_a_prompt_below_the_predicted_break_even_says_so_and_can_be_routed_anyway(form, demo_home, open_page):
    page = open_page("new_run", source="Sample")
    assert page.selectbox(key="sample").options and '<pre class="rs-block"' in page.told
    assert "No latency profile for heads of size" in page.told and not page.button(key="submit").disabled
    size = prompt_size("demo", TEXT)
    stored = profile(head_dim=size.head_dim, probe_head_us=3_000.0)
    stored = replace(stored, name=f"cpu-0-t2-fp32-d{size.head_dim}-g4-b128x64-exact")
    stored.save(demo_home / "profiles")
    page = form()
    least = stored.break_even_tokens(size.heads, size.layers)
    assert f"Below the predicted break-even, {least:,} tokens by the profile of a fast machine" in page.told
    assert "No latency profile" not in page.told
    press(page, "Route it anyway")
    assert page.number_input(key="break_even").value == 0 and "break-even, " not in page.told
    assert f"slower than dense here: the predicted break-even is {least:,} tokens" in page.told


def test_a_prompt_that_was_not_kept_is_asked_for_again(demo_home, filled, open_page, queue):
    job = queue.submit(RunRequest(keep_text=False), TEXT)
    queue.cancel(job)
    for query in ({"from": "c0de17aa"}, {"from_job": job}):
        page = open_page("new_run", **query)
        assert "was not kept" in page.told and page.button(key="submit").disabled
    assert "not known here any more" in open_page("new_run", from_job="unknown").told
