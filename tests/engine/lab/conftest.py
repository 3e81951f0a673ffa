"""A tiny model on disk and in memory."""

from __future__ import annotations

import pytest

from routesparse.engine.models.load import load_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    return tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(str(folder), device="cpu")
