"""An engine's errors on a page: what is wrong stays, a cure that is a command of a terminal goes. No GPU."""

import pytest

from routesparse.app.ui.states import wrong
from routesparse.engine.calibration import tuned
from routesparse.engine.errors import ProfileError
from routesparse.engine.method.latency import LatencyProfile


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("no profile a.json; run `routesparse profile`", "no profile a.json"),
        ("tuned for b; use longer segments, or pass --price", "tuned for b"),
        ("a; b is corrupt; write it with `x`", "a; b is corrupt"),
        ("calibration 'a' is unknown; pass none", "calibration 'a' is unknown; pass none"),
        ("the name a--b is taken; choose another", "the name a--b is taken; choose another"),
        ("`a` is no number", "`a` is no number"),
        ("; `x`", "; `x`"),
    ],
)
def test_only_a_last_clause_that_names_a_command_goes(told, shown):
    assert wrong(told) == shown


def test_the_engine_s_own_messages_lose_their_commands(tmp_path):
    with pytest.raises(ProfileError) as raised:
        LatencyProfile.load(tmp_path / "none.json")
    assert wrong(raised.value) == "no latency profile none.json"
    one = tuned.load("prose-kl")
    told = one.mismatch("another", None)
    assert "--price" in told and "--price" not in wrong(told)
