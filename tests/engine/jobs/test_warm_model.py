"""When a worker loads its model anew."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from routesparse.engine.jobs.analysis import WarmModel
from routesparse.engine.models.rope import RopeScaling

YARN = RopeScaling.parse('{"rope_type": "yarn", "factor": 4}')


@pytest.fixture
def loads(monkeypatch):
    """What was loaded: (name, positions)."""
    seen = []

    def load(name, rope=None):
        seen.append((name, rope))
        return SimpleNamespace(name=name, rope=rope)

    monkeypatch.setattr("routesparse.engine.models.load.load_model", load)
    return seen


def test_other_positions_are_another_model(loads):
    warm = WarmModel()
    plain = warm.load("demo")
    assert warm.load("demo") is plain and warm.load("demo", None) is plain
    scaled = warm.load("demo", YARN)
    assert scaled is warm.load("demo", RopeScaling.parse(YARN.text)) and scaled is not plain
    assert warm.load("demo").rope is None
    assert loads == [("demo", None), ("demo", YARN), ("demo", None)]


def test_changed_files_are_loaded_anew_with_positions_too(loads, monkeypatch):
    revisions = iter(["one", "one", "two"])
    monkeypatch.setattr("routesparse.engine.models.files.revision_of", lambda folder: next(revisions))
    warm = WarmModel()
    first = warm.load("demo", YARN)
    assert warm.load("demo", YARN) is first
    assert warm.load("demo", YARN) is not first and len(loads) == 2
