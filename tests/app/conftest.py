"""Fixtures of the page tests: a home with synthetic runs, and pages as Streamlit AppTests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.store import bundle

REPOSITORY = Path(__file__).resolve().parents[2]
FACTORY = REPOSITORY / "tests" / "engine" / "store" / "factory.py"


@pytest.fixture(autouse=True)
def own_main_module():
    """AppTest puts its script in the place of ``__main__``; processes spawned by later tests would run that script."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def factory():
    """The module that makes synthetic runs."""
    spec = importlib.util.spec_from_file_location("store_factory", FACTORY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def record(factory):
    """One run of 4 layers, 4 heads and 2 segments."""
    return factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=0.9)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A ROUTESPARSE_HOME of its own, without the bundled samples; the store is closed afterwards."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("routesparse.engine.paths.DATA", tmp_path / "no-samples")
    (tmp_path / "home").mkdir()
    yield tmp_path / "home"
    st.cache_resource.clear()


@pytest.fixture
def filled(home, record, factory):
    """A spool with two runs; the second was neither audited nor timed against dense."""
    bundle.write_bundle(record, home / "spool")
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
    bundle.write_bundle(bare, home / "spool")
    return home


def _map_page() -> None:
    from routesparse.app.access import access
    from routesparse.app.screens import routing_map

    access().look_into_spool()
    routing_map.render()


@pytest.fixture
def open_map():
    """Draw the routing map with a query string."""

    def draw(**query: str) -> AppTest:
        page = AppTest.from_function(_map_page, default_timeout=30)
        for name, value in query.items():
            page.query_params[name] = value
        return page.run()

    return draw


def _runs_page() -> None:
    from routesparse.app.access import access
    from routesparse.app.screens import runs

    access().look_into_spool()
    runs.render()


@pytest.fixture
def open_runs():
    """Draw the Runs page alone (AppTest reruns no page of st.navigation that is a function)."""
    return lambda: AppTest.from_function(_runs_page, default_timeout=30).run()


def _any_page(name: str) -> None:
    from importlib import import_module

    from routesparse.app.access import access

    access().look_into_spool()
    import_module(f"routesparse.app.screens.{name}").render()


@pytest.fixture
def open_page():
    """Draw a page by its module's name with a query string."""

    def draw(name: str, **query: str) -> AppTest:
        page = AppTest.from_function(_any_page, default_timeout=30, kwargs={"name": name})
        for key, value in query.items():
            page.query_params[key] = value
        return page.run()

    return draw


@pytest.fixture
def went(monkeypatch):
    """Where pages wanted to go, instead of going there: (page, query)."""
    seen = []
    monkeypatch.setattr("routesparse.app.navigate.go", lambda name, **query: seen.append((name, query)))
    return seen


@pytest.fixture
def demo_home(home, monkeypatch, tmp_path):
    """A home whose data folder has the bundled model and sample prompts, but no sample runs."""
    data = tmp_path / "data"
    (data / "samples").mkdir(parents=True)
    (data / "models").symlink_to(REPOSITORY / "data" / "models")
    (data / "samples" / "prompts").symlink_to(REPOSITORY / "data" / "samples" / "prompts")
    monkeypatch.setattr("routesparse.engine.paths.DATA", data)
    return home


@pytest.fixture
def queue(home):
    """The job queue of the home."""
    opened = JobQueue(home)
    yield opened
    opened.close()


@pytest.fixture
def open_dashboard():
    """Draw the whole dashboard as it first appears."""
    main = Path(__file__).resolve().parents[2] / "app" / "main.py"
    return lambda: AppTest.from_file(str(main), default_timeout=30).run()
