"""The Models page filled, empty and in error, and New run with a model of one's own. No GPU, no browser."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from routesparse.app.shell import identity, model_checks
from routesparse.engine import paths
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.calibration.folders import own_folder
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ModelError
from routesparse.engine.jobs import presence
from routesparse.engine.jobs.documents import unpack
from routesparse.engine.jobs.job import WorkerSeen
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest, read_request
from routesparse.engine.jobs.presence import Device
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models import files, gguf, token_count
from tests.app.conftest import ANN, BOB
from tests.engine import tiny_model

CPU = Device("Machine of test", False, 8 << 30)
TEXTS = [f"Ledger {place}: the harbour master counts vessels. " * 30 for place in range(3)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny random Llama."""
    return tiny_model.save(tmp_path_factory.mktemp("saved") / "tiny")


@pytest.fixture
def tiny(saved, demo_home):
    """It, in the models folder of a home without a hub cache."""
    return Path(shutil.copytree(saved, demo_home / "models" / "tiny"))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    folder = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(folder))
    return folder


def states_of(folder, devices=(CPU,), memory=8 << 30, owner=None):
    checked = model_checks.check(folder, str(folder), owner, devices, memory)
    return {check.name: (check.state, check.text) for check in checked.checks}


def test_a_whole_model_lacks_only_what_nobody_has_measured(tiny):
    found = states_of(tiny)
    assert {name: state for name, (state, _) in found.items()} == {
        "Family": "ok",
        "Weights": "ok",
        "Tokenizer": "ok",
        "Context": "ok",
        "Memory": "ok",
        "Latency profile": "missing",
        "Calibrations": "missing",
        "Loss target": "missing",
    }
    assert (
        "Reads up to 1,000 tokens; 2 layers, 2 query heads over 1 KV heads of size 16" in found["Context"][1]
    )
    assert "None for head size 16 on Machine of test" in found["Latency profile"][1]


def test_no_weights_are_loaded_and_no_code_of_the_folder_runs(tiny, monkeypatch):
    config(tiny, auto_map={"AutoModelForCausalLM": "evil.Model"})
    (tiny / "evil.py").write_text("raise SystemExit")
    monkeypatch.setattr(torch, "load", None)
    assert states_of(tiny)["Family"][0] == "ok"


def config(folder, **changes):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def pickle_only(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


BROKEN = [
    (lambda folder: (folder / "config.json").write_text("{"), "Family", "is not readable JSON"),
    (lambda folder: (folder / "config.json").unlink(), "Family", "has no config.json"),
    (lambda folder: config(folder, model_type="llama4"), "Family", "&#x27;llama4&#x27; is not supported"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "Tokenizer", "has no tokenizer.json"),
    (pickle_only, "Weights", "only weights in other formats"),
    (lambda folder: (folder / "model.safetensors").write_bytes(b"cut"), "Weights", "is corrupt"),
    (lambda folder: config(folder, max_position_embeddings="long"), "Context", "can&#x27;t be read"),
]


@pytest.mark.parametrize(("damage", "name", "text"), BROKEN, ids=[row[2] for row in BROKEN])
def test_what_is_broken_is_named_and_nothing_can_be_started(tiny, open_page, damage, name, text):
    damage(tiny)
    page = open_page("models", named="tiny")
    assert text in page.told
    assert "must be fixed" in page.told
    assert states_of(tiny)[name][0] == "problem"
    assert [button.key for button in page.button] == []


@pytest.mark.parametrize(
    ("device", "state"),
    [
        (Device("small", False, 1 << 20), "problem"),
        (Device("small", True, 1 << 20), "problem"),
        (CPU, "ok"),
    ],
)
def test_memory_is_that_of_the_worker_s_device(tiny, device, state):
    assert states_of(tiny, [device])["Memory"][0] == state
    assert states_of(tiny, [], device.memory_bytes)["Memory"][0] == state, "without a worker, this machine's"


def profile_of(tiny, device):
    """A stored profile for the tiny model's heads on a device."""
    file = next((Path(__file__).parents[3] / "data" / "profiles").glob("cpu-*.json"))
    values = json.loads(file.read_text())
    values |= {"device": device.name, "dtype": device.dtype, "head_dim": 16}
    values["name"] = "cpu-test-t1-float32-d16-g2-b128x64-exact"
    paths.profiles().mkdir(parents=True, exist_ok=True)
    (paths.profiles() / f"{values['name']}.json").write_text(json.dumps(values))


def test_a_profile_must_be_of_the_worker_s_device(tiny):
    profile_of(tiny, CPU)
    assert states_of(tiny, [CPU])["Latency profile"][0] == "ok"
    other = states_of(tiny, [CPU, Device("A GPU", True, 8 << 30)])["Latency profile"]
    assert other[0] == "missing" and "on A GPU" in other[1]
    assert "whether a worker has it is not known" in states_of(tiny, [])["Latency profile"][1]
    next(paths.profiles().glob("*.json")).write_text("{")
    assert "The first job measures a new one" in states_of(tiny)["Latency profile"][1]


def calibrated(tiny, make_calibration, name="mine", owner=None, **changes):
    made = make_calibration(name, 0.9, 0.02, files.revision_of(tiny))
    made = replace(made, gate_threshold=None, stamp=stamp_of(RouterConfig()), model="tiny", **changes)
    made.save(own_folder(owner))
    return made


def test_calibrations_of_these_weights_are_listed_with_their_age(tiny, make_calibration):
    calibrated(tiny, make_calibration)
    state, text = states_of(tiny)["Calibrations"]
    assert state == "ok" and "mine (4,096 to 8,192 tokens, " in text
    calibrated(tiny, make_calibration, model_revision="0" * 16)
    assert states_of(tiny)["Calibrations"][0] == "missing"
    calibrated(tiny, make_calibration, library_hash="0" * 16)
    state, text = states_of(tiny)["Calibrations"]
    assert state == "missing" and "was made with pattern library 0000000000000000" in text


def test_the_page_lists_the_bundled_model_and_says_where_others_go(demo_home, open_page):
    page = open_page("models")
    assert page.selectbox(key="named").options == ["demo"]
    assert f"ln -s /path/to/model {demo_home}/models/" in page.code[-1].value + page.code[-2].value
    assert all(code.proto.wrap_lines for code in page.code), "a command is read whole in a narrow window"
    assert "No worker is running" in page.told
    assert page.button(key="analyse-with").disabled is False


def test_the_page_leads_to_new_run_and_asks_for_profiles(tiny, open_page, went, queue):
    page = open_page("models", named="tiny")
    page.button(key="analyse-with").click().run()
    assert went == [("new", {"with_model": "tiny"})]
    for quick in (True, False):
        page.button(key=f"profile-{'quick' if quick else 'full'}").click().run()
        job = queue.jobs()[0]
        assert went[-1] == ("runs", {"job": job.id})
        assert read_request(job.kind, job.request_json) == ProfileRequest(str(tiny), quick=quick)


def with_texts(open_page, *uploads):
    page = open_page("models", named="tiny")
    page.segmented_control(key="made").set_value("Calibrate: kept mass").run()
    if uploads:
        page.file_uploader(key="texts").upload(*uploads[0]) if len(uploads) == 1 else page.file_uploader(
            key="texts"
        ).set_value(list(uploads))
        page.run()
    return page


def several():
    return [(f"{place}.txt", text.encode(), "text/plain") for place, text in enumerate(TEXTS)]


def test_texts_are_calibrated_on_by_a_job(tiny, open_page, went, queue):
    page = with_texts(open_page, *several())
    page.text_input(key="domain-name").input("harbour").run()
    assert page.button(key="calibrate").disabled is False, page.told
    page.button(key="calibrate").click().run()
    (job,) = queue.jobs()
    assert went == [("runs", {"job": job.id})]
    request = read_request(job.kind, job.request_json)
    assert request == CalibrateRequest("harbour", str(tiny), least_tokens=512, most_tokens=1_000)
    documents = unpack(queue.prompts.read(job.id))
    assert [(one.name, one.text) for one in documents] == [(f"{i}.txt", text) for i, text in enumerate(TEXTS)]


def test_texts_are_fitted_on_by_a_job_and_behind_a_login_on_the_command_line(
    demo_home, open_page, went, queue, fit, monkeypatch
):
    page = open_page("models")
    texts = [(f"{place}.txt", f"Ledger {place} of ".encode() * 4_000, "text/plain") for place in range(3)]
    page.file_uploader(key="texts").set_value(texts).run()
    page.text_input(key="domain-name").input("code").run()
    assert "in place of its code" in page.told and "24 windows of 8,192 tokens: 216 prefills" in page.told
    page.button(key="fit").click().run()
    (job,) = queue.jobs()
    assert went == [("runs", {"job": job.id})]
    assert read_request(job.kind, job.request_json) == FitRequest("code", windows=24, tokens=8_192)
    monkeypatch.setattr(identity, "owner", lambda: "somebody")
    page = open_page("models")
    assert "the operator fits on the command line" in page.told
    assert [one.label for one in page.button if one.label in ("Fit", "Calibrate")] == ["Calibrate"]


@pytest.mark.parametrize(
    ("uploads", "name", "message"),
    [
        (several()[:1], "mine", "1 document found; at least 2 are needed"),
        (
            [*several(), ("again.txt", TEXTS[0].encode(), "text/plain")],
            "mine",
            "are the same text; pass it once",
        ),
        (
            [("a.txt", b"short", "text/plain"), ("b.txt", b"brief", "text/plain")],
            "mine",
            "Only 0 of 2 documents",
        ),
        ([("a.txt", b"\0", "text/plain"), *several()], "mine", "is binary"),
        (several(), "", "Name the domain of these texts to begin"),
        (several(), "a/b", "is no name"),
        (several(), "prose", "calibration 'prose' is bundled; choose another domain"),
        (
            [
                (
                    "t.jsonl",
                    "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode() + b"no\n",
                    "x",
                )
            ],
            "mine",
            "t.jsonl: line 4 is no JSON",
        ),
    ],
)
def test_what_can_t_be_calibrated_on_is_said_at_once(
    tiny, make_calibration, open_page, uploads, name, message
):
    make_calibration("prose", 0.9, 0.02).save(tiny.parents[2] / "data" / "calibrations")
    page = with_texts(open_page, *uploads)
    page.text_input(key="domain-name").input(name).run()
    assert message in page.told.replace("&#x27;", "'")
    assert page.button(key="calibrate").disabled


def test_an_existing_name_is_replaced_only_when_asked(tiny, make_calibration, open_page):
    calibrated(tiny, make_calibration)
    page = with_texts(open_page, *several())
    page.text_input(key="domain-name").input("mine").run()
    assert "is called &#x27;mine&#x27; already" in page.told and page.button(key="calibrate").disabled
    page.checkbox(key="replace").check().run()
    assert page.button(key="calibrate").disabled is False


def test_live_workers_are_named_with_their_devices(tiny, open_page, queue, home):
    queue.seen("host-1-ab", Device("NVIDIA H200", True, 150 << 30))
    with presence.present(home, "host-1-ab"):
        page = open_page("models", named="tiny")
        assert queue.workers() == [
            WorkerSeen("host-1-ab", *[queue.workers()[0].seen_at] * 2, Device("NVIDIA H200", True, 150 << 30))
        ]
    assert "GPU" in page.told and "H200" in page.told and "worker host-1-ab" in page.told
    assert "No worker is running" not in page.told


def snapshot(cache, saved, hub_id="org/tiny"):
    """A model as the hub's cache holds it."""
    folder = cache / f"models--{hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c" * 40)
    (folder / "blobs").mkdir()
    target = folder / "snapshots" / ("c" * 40)
    target.mkdir(parents=True)
    for place, file in enumerate(sorted(saved.iterdir())):
        blob = folder / "blobs" / f"{place:040x}"
        shutil.copy(file, blob)
        (target / file.name).symlink_to(blob)
    return target


def test_a_downloaded_model_is_added_without_a_copy_or_the_network(
    demo_home, saved, cache, open_page, monkeypatch
):
    snapshot(cache, saved)
    monkeypatch.setattr("socket.socket.connect", None)
    page = open_page("models")
    page.button(key="add-org/tiny").click().run()
    assert not page.exception
    assert page.selectbox(key="named").value == "org--tiny"
    folder = paths.models() / "org--tiny"
    assert states_of(folder)["Weights"][0] == "ok"
    assert (folder / "model.safetensors").is_symlink()
    assert files.revision_of(folder) == files.revision_of(saved)
    with pytest.raises(ModelError, match="is there already"):
        files.adopt("org/tiny")


@pytest.mark.parametrize(
    ("typed", "message"),
    [("org/other", "is not on this machine"), ("a b", "is not a hub id; write it as org/name")],
)
def test_a_typed_hub_id_that_is_not_here_says_what_to_do(demo_home, open_page, typed, message):
    page = open_page("models")
    page.text_input(key="hub-id").input(typed).run()
    assert message in page.told
    with pytest.raises(ModelError, match="download it first"):
        files.adopt(typed)


def test_new_run_offers_the_home_s_calibrations_for_the_chosen_model(
    tiny, make_calibration, open_page, queue
):
    calibrated(tiny, make_calibration)
    page = open_page("new_run", with_model="tiny", calibration="mine", source="Paste")
    assert page.selectbox(key="calibration").value == "mine"
    assert "Prepare this model" in page.told, "no profile is stored"
    page.text_area(key="pasted").input("the harbour master counts vessels").run()
    page.button(key="submit").click().run()
    (job,) = queue.jobs()
    assert RunRequest.from_json(job.request_json).calibration == "mine"
    other = open_page("new_run", with_model="demo")
    assert "mine" not in other.selectbox(key="calibration").options


def test_a_wrong_setting_does_not_let_another_model_judge_the_prompt(tiny, open_page):
    page = open_page("new_run", with_model="tiny", segment="1000", source="Paste")
    page.text_area(key="pasted").input("the harbour master counts vessels").run()
    html = page.told
    most = token_count.most_tokens(str(tiny))
    assert "multiple of 128" in html and most != token_count.most_tokens("demo")
    assert f"{most:,}" in html[html.index("the model reads up to") :]


def test_a_calibration_is_offered_to_the_person_who_made_it(tiny, make_calibration, open_page, login):
    login()
    calibrated(tiny, make_calibration, owner=identity.digest("sub", ANN["iss"], "ann"))
    for user, offered in ((ANN, True), (BOB, False)):
        page = open_page("new_run", user, with_model="tiny")
        assert ("mine" in page.selectbox(key="calibration").options) is offered
        page = open_page("models", user, named="tiny")
        assert ("mine (4,096" in page.told) is offered
        page = open_page("domains", user)
        assert ("mine" in page.told) is offered


def test_an_address_names_no_calibration_by_its_file(tiny, make_calibration, open_page):
    calibrated(tiny, make_calibration, "other")
    calibrated(tiny, make_calibration, owner="a" * 32)
    file = own_folder("a" * 32) / "mine.json"
    for name in (f"of-{'a' * 32}/mine", str(file)):
        assert "no calibration" in open_page("domains", names=f"{name},other").told


REQUESTS = [ProfileRequest("tiny"), CalibrateRequest("harbour", "tiny"), FitRequest("harbour", "tiny")]


@pytest.mark.parametrize("request_", REQUESTS)
def test_jobs_show_their_own_stages_and_their_result(demo_home, open_page, queue, request_):
    content = (
        ""
        if request_.kind == "profile"
        else "".join(json.dumps({"name": "n", "text": text}) + "\n" for text in TEXTS)
    )
    job_id = queue.submit(request_, content)
    listed = open_page("runs")
    asked = {"profile": "probe exact, full measurement", "calibrate": "policy priced, 4,096 to 8,192 tokens"}
    asked["fit"] = "24 windows or more of 8,192 tokens"
    assert not listed.exception and f"model tiny, {asked[request_.kind]}" in listed.told
    page = open_page("runs", job=job_id)
    wanted = {"profile": "measure this machine", "calibrate": "take δ from", "fit": "at each price"}
    assert wanted[request_.kind] in page.told and "route and execute" not in page.told
    claim = queue.claim("w")
    stage = {"profile": "profile", "calibrate": "fold B", "fit": "windows"}[request_.kind]
    queue.heartbeat(claim, progress=(stage, 3, 9))
    page = open_page("runs", job=job_id)
    assert ("prompt 4 of 9" if request_.kind == "calibrate" else "3 of 9") in page.told
    queue.fail(claim, "out_of_memory", "out of memory while running")
    page = open_page("runs", job=job_id)
    assert "Out of memory" in page.told and "models?named=tiny" in page.told
    page.button(key="retry").click().run()
    (again,) = queue.jobs(["queued"])
    assert again.kind == request_.kind
    claim = queue.claim("w")
    queue.finish(claim, claim.run_id, "result")
    page = open_page("runs", job=again.id)
    result = {"profile": "models?profile=result", "calibrate": "domains?names=result"}
    assert result.get(request_.kind, "Back to the model") in page.told and "models?named=tiny" in page.told


def gguf_described(**changes):
    found = gguf.Described(
        {"model_type": "llama"}, 272, 134_515_008, "Q4_1", "apache-2.0", has_tokenizer=True
    )
    return replace(found, **changes)


@pytest.mark.parametrize("folder", [".", "mine"])
def test_a_gguf_file_tells_what_its_header_says_and_a_job_unpacks_it(
    demo_home, open_page, queue, monkeypatch, folder
):
    file = demo_home / "models" / folder / "small.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    monkeypatch.setattr(gguf, "describe", lambda file: gguf_described())
    page = open_page("models", named="small")
    text = page.told
    assert (
        "135 million, most of them Q4_1, licence apache-2.0" in text and "once, to 269 MB in bfloat16" in text
    )
    page.button(key="unpack").click().run()
    (job,) = queue.jobs()
    assert read_request(job.kind, job.request_json) == ProfileRequest(str(file), quick=True)


def test_a_folder_with_two_gguf_files_says_to_take_one(demo_home, open_page):
    for name in ("a", "b"):
        file = demo_home / "models" / "mine" / f"{name}.gguf"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"GGUF")
    assert "holds 2 GGUF files; pass one of them, such as a.gguf" in open_page("models", named="mine").told


def test_an_upload_is_added_or_says_why_not_and_behind_a_login_there_is_none(
    demo_home, open_page, monkeypatch
):
    monkeypatch.setattr(gguf, "describe", lambda file: gguf_described(has_tokenizer=False))
    page = open_page("models")
    page.file_uploader(key="gguf-file").set_value(("own.gguf", b"GGUF", "application/octet-stream")).run()
    assert (
        page.selectbox(key="named").value == "own"
        and (demo_home / "models" / "own.gguf").read_bytes() == b"GGUF"
    )
    assert "The file holds none; use one that does" in page.told and "must be fixed" in page.told

    def refuse(file):
        raise ModelError(f"{file.name} is no GGUF file that can be read: it ends before its weights do")

    monkeypatch.setattr(gguf, "describe", refuse)
    page.file_uploader(key="gguf-file").set_value(("cut.gguf", b"GGUF", "application/octet-stream")).run()
    assert "cut.gguf is no GGUF file that can be read: it ends" in page.told
    assert [path.name for path in (demo_home / "models").iterdir()] == ["own.gguf"]
    monkeypatch.setattr(identity, "owner", lambda: "somebody")
    assert not [
        one for one in open_page("models").get("file_uploader") if one.proto.label.startswith("Or drop")
    ]
