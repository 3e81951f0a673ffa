"""Prefills timed in rows: which of them count. Times are made up; no model."""

from contextlib import contextmanager
from types import SimpleNamespace

from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies import prefill


def test_rows_leave_out_the_prefills_in_which_the_clock_settles(monkeypatch):
    inside, asked = [], []

    @contextmanager
    def routed_by(model, session):
        inside.append(session)
        yield
        inside.pop()

    def timed(model, ids):
        asked.append("routed" if inside else "dense")
        place = _since_change(asked)
        # The first three of a row are far off; the median of the others is 90 or 30.
        return SimpleNamespace(total_ms=(30.0 if inside else 90.0) + (500 if place < 3 else place - 5))

    monkeypatch.setattr(prefill, "prefill", timed)
    monkeypatch.setattr(prefill, "routed_by", routed_by)
    monkeypatch.setattr(prefill, "RoutingSession", lambda *_, **__: None)
    loaded = SimpleNamespace(model=SimpleNamespace(device="cpu"))
    found = prefill.in_rows(loaded, [1, 2], RouterConfig(), None, 5, None)
    assert found == {"dense_row_ms": 90.0, "routed_row_ms": 30.0, "row_ratio": 3.0}
    assert asked == (["dense"] * 8 + ["routed"] * 8) * 2


def _since_change(asked):
    """How many of the last kind came before the last one, in a row."""
    return next(k for k, kind in enumerate(reversed(["", *asked])) if kind != asked[-1]) - 1
