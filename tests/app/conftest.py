"""Fixtures of the page tests: a home with synthetic runs, and pages as Streamlit AppTests."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import streamlit as st
from streamlit import auth_util
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.secrets import Secrets
from streamlit.testing.v1 import AppTest, local_script_runner

from routesparse.app.shell import identity
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import Calibration, load_calibration, stamp_of
from routesparse.engine.config import RouterConfig
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.method.families import library_hash
from routesparse.engine.models.files import revision_of
from routesparse.engine.store import bundle, spool
from routesparse.engine.store.duckdb_store import Store

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = "The harbour master writes a ledger of vessels. " * 40
ANN, BOB = ({"is_logged_in": True, "iss": "https://login.example", "sub": sub} for sub in ("ann", "bob"))
# A complete [auth] section, and the secrets file that holds it.
AUTH = {
    "redirect_uri": "https://routesparse.example/oauth2callback",
    "cookie_secret": "0123456789abcdef0123456789abcdef",
    "client_id": "dashboard",
    "client_secret": "known to the provider",
    "server_metadata_url": "https://login.example/.well-known/openid-configuration",
}
LOGIN = "[auth]\n" + "".join(f'{name} = "{value}"\n' for name, value in AUTH.items())


def _told(page: AppTest) -> str:
    assert not page.exception, page.exception[0].stack_trace
    return " ".join(str(element.proto.body) for element in page.get("html"))


def press(page: AppTest, label: str) -> None:
    """Press the first button of this label."""
    next(button for button in page.button if button.label == label).click().run()
    assert not page.exception


AppTest.told = property(_told, doc="All HTML that a page, which must not have failed, shows.")
AppTest.words = property(lambda page: unescape(_told(page)), doc="``told`` with & for &amp; and so on.")


@pytest.fixture(scope="session", autouse=True)
def pages_alone():
    """An AppTest draws the page and does nothing else.

    Streamlit's own asks every installed package, for each AppTest, whether it has components, and wakes each
    millisecond to ask whether the script has ended, which holds up the script's thread.
    """

    def wait(runner, timeout=3):
        runner._script_thread.join(timeout)
        told(runner, 0.1)

    told = local_script_runner.require_widgets_deltas
    found = functools.cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", found)
        patch.setattr(local_script_runner, "require_widgets_deltas", wait)
        yield


@pytest.fixture(autouse=True)
def own_main_module():
    """AppTest puts its script in the place of ``__main__``; processes spawned by later tests would run that script."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def record(factory):
    """One run of 4 layers, 4 heads and 2 segments."""
    return factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=0.9)


@pytest.fixture
def data(monkeypatch):
    """data(folder): what ships with RouteSparse is what lies in this folder."""
    return lambda folder: monkeypatch.setattr("routesparse.engine.paths.DATA", folder)


@pytest.fixture
def failing():
    """``with failing(owner, name, error)``: what the owner has under this name raises the error."""

    @contextmanager
    def fail(owner: object, name: str, error: Exception) -> Iterator[None]:
        def raises(*_: object, **__: object) -> None:
            raise type(error)(*error.args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, raises)
            yield

    return fail


@pytest.fixture
def home(tmp_path, monkeypatch, data):
    """A ROUTESPARSE_HOME of its own, without the bundled samples; the store is closed afterwards."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    data(tmp_path / "no-samples")
    (tmp_path / "home").mkdir()
    yield tmp_path / "home"
    st.cache_resource.clear()


@pytest.fixture(scope="module")
def stored(record, factory, tmp_path_factory):
    """Two homes of the same two runs, stored and still in the spool; the second was neither audited nor timed against
    dense, and its model is not fitted. For copies."""
    stored, waiting = (tmp_path_factory.mktemp("runs") / name for name in ("stored", "waiting"))
    bare = factory.make_record(
        "c0de17aa90e1f003",
        name="<b>router</b>.txt",
        domain="code",
        layers=2,
        heads=2,
        segments=1,
        tokens=2048,
        seed=5,
        audit=False,
        dense=False,
        probe=False,
        prompt=False,
    )
    bare = replace(
        bare,
        run=replace(bare.run, loss_fit=None, loss_alarm=None),
        choices=tuple(replace(choice, loss_nats=None) for choice in bare.choices),
    )
    for made in (record, bare):
        bundle.write_bundle(made, waiting / "spool")
    shutil.copytree(waiting, stored)
    store = Store(stored / "routesparse.duckdb")
    assert len(spool.ingest_spool(store, stored / "spool").ingested) == 2
    store.close()
    return stored, waiting


@pytest.fixture
def spooled(home, record, factory):
    """spooled(run_id, of, run, config, **tables): a run like ``record``, but for these, is in the spool; returns it."""

    def write(run_id=None, of=record, run=None, config=None, **tables):
        if config:
            run = {**(run or {}), "config_json": json.dumps(json.loads(of.run.config_json) | config)}
        if run:
            tables["run"] = replace(of.run, **run)
        made = replace(of, **tables)
        made = factory.rename(made, run_id) if run_id else made
        bundle.write_bundle(made, home / "spool")
        return made

    return write


@pytest.fixture
def filled(home, stored):
    """A home with these two runs in the store."""
    shutil.copytree(stored[0], home, dirs_exist_ok=True)
    return home


@pytest.fixture
def waiting(home, stored):
    """A home with these two runs in the spool, for tests that put others beside them or in their place."""
    shutil.copytree(stored[1], home, dirs_exist_ok=True)
    return home


def _any_page(name: str) -> None:
    from importlib import import_module

    from routesparse.app.shell.access import access

    access().look_into_spool()
    import_module(f"routesparse.app.screens.{name}.page").render()


@pytest.fixture
def open_page():
    """Draw a page by its module's name with a query string, as the user with these claims."""

    def draw(name: str, user: dict[str, object] | None = None, **query: str) -> AppTest:
        page = AppTest.from_function(_any_page, default_timeout=30, kwargs={"name": name})
        page.user = user or page.user
        for key, value in query.items():
            page.query_params[key] = value
        return page.run()

    return draw


@pytest.fixture
def went(monkeypatch):
    """Where pages wanted to go, instead of going there: (page, query)."""
    seen = []
    monkeypatch.setattr("routesparse.app.shell.navigate.go", lambda name, **query: seen.append((name, query)))
    return seen


@pytest.fixture
def demo_home(home, data, tmp_path):
    """A home whose data folder has the bundled model and sample prompts, but no sample runs."""
    shipped = tmp_path / "data"
    (shipped / "samples").mkdir(parents=True)
    (shipped / "models").symlink_to(REPOSITORY / "data" / "models")
    (shipped / "samples" / "prompts").symlink_to(REPOSITORY / "data" / "samples" / "prompts")
    data(shipped)
    return home


@pytest.fixture
def make_calibration():
    """make_calibration(name, gate, delta, revision): the bundled one of prose, but for these, with 40 windows of one
    length a fold."""
    bundled = load_calibration(str(REPOSITORY / "data" / "calibrations" / "prose.json"))

    def make(name: str, gate: float, delta: float, revision: str = bundled.model_revision) -> Calibration:
        folds, windows = {}, []
        for fold in ("A", "B"):
            texts = [
                {"name": f"{name} {fold}{i}", "sha256": f"{name}{fold}{i}", "prompts": 20} for i in range(2)
            ]
            folds[fold] = {"prompts": 40, "documents": texts}
            windows += [
                {**window, "fold": fold, "domain": name, "document": texts[i // 20]["name"], "q95": delta}
                for i, window in enumerate(bundled.prompts[:40])
            ]
        deltas = {"0.9": delta / 2, "0.95": delta, "0.99": None}
        size = {"min_tokens": 4_096, "max_tokens": 8_192, "prompts": 40, "documents": 2, "units": 4_000}
        return replace(
            bundled,
            name=name,
            domain=name,
            parts=(name,),
            gate_threshold=gate,
            model_revision=revision,
            library_hash=library_hash(),
            stamp=stamp_of(RouterConfig(policy="certified", gate_threshold=gate)),
            buckets=(replace(bundled.buckets[0], deltas=deltas, **size),),
            documents=tuple(one["sha256"] for fold in folds.values() for one in fold["documents"]),
            provenance={"created_at": "2026-11-20T20:53:00+00:00"},
            folds=folds,
            prompts=tuple(windows),
        )

    return make


@pytest.fixture
def fit(home, monkeypatch):
    """The only fit there is, of the bundled model's weights, made here: the bundled one of another model."""
    monkeypatch.setattr(fitted, "_folders", lambda: (fitted.own_folder(),))
    bundled = fitted.load(str(REPOSITORY / "data" / "fits" / "SmolLM2-135M-Instruct.json"))
    made = replace(
        bundled, name="own", model="demo", model_revision=revision_of(REPOSITORY / "data/models/demo")
    )
    made.save(fitted.own_folder() / "own.json")
    return made


@pytest.fixture
def queue(home):
    """The job queue of the home."""
    opened = JobQueue(home)
    yield opened
    opened.close()


@pytest.fixture
def form(demo_home, open_page, queue, went):
    """form(text, **address): New run with a pasted text; form.asked(page): what its button then submits."""

    def draw(text=TEXT, **address):
        page = open_page("new_run", source="Paste", **address)
        return page.text_area(key="pasted").set_value(text).run()

    def asked(page):
        page.button(key="submit").click().run()
        assert not page.exception
        return RunRequest.from_json(queue.jobs()[0].request_json)

    draw.asked = asked
    return draw


@pytest.fixture
def open_dashboard():
    """Draw the whole dashboard as it first appears to the user with these claims."""
    main = Path(__file__).resolve().parents[2] / "app" / "main.py"

    def draw(user: dict[str, object] | None = None) -> AppTest:
        page = AppTest.from_file(str(main), default_timeout=30)
        page.user = user or page.user
        return page.run()

    return draw


@pytest.fixture(autouse=True)
def no_login_seen(monkeypatch):
    """Every test is a new process, as far as logins go."""
    monkeypatch.setattr(identity, "_seen", threading.Event())


@pytest.fixture
def login(monkeypatch):
    """login(section): a login is configured, with this [auth] section of the secrets or a complete one."""

    def configure(section: dict[str, str] | None = None) -> None:
        secrets = Secrets()
        secrets._secrets = {"auth": AUTH if section is None else section}
        monkeypatch.setattr(auth_util, "secrets_singleton", secrets)

    return configure
