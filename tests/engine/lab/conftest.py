"""A tiny model on disk and in memory."""

from __future__ import annotations

import pytest

from routesparse.engine.models.load import load_model
from tests.engine import shipped_profile


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    return tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(str(folder), device="cpu")


@pytest.fixture(scope="module")
def steady_home(tmp_path_factory):
    """A ROUTESPARSE_HOME of the module's own, with a shipped profile in place of one measured beside other tests."""
    home = tmp_path_factory.mktemp("home")
    shipped_profile.keep(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTESPARSE_HOME", str(home))
        yield
