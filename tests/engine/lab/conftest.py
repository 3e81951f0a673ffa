"""A home for the lab's studies."""

from __future__ import annotations

import pytest

from tests.engine import shipped_profile


@pytest.fixture(scope="module")
def steady_home(tmp_path_factory):
    """A ROUTESPARSE_HOME of the module's own, with a shipped profile in place of one measured beside other tests."""
    home = tmp_path_factory.mktemp("home")
    shipped_profile.keep(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTESPARSE_HOME", str(home))
        yield
