"""The view of a run's pages in the query string: run, layer, head, segment, batch, metric. A link restores it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from routesparse.app.shell import address
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

# Lenses of the map; those behind LENSES are chosen from a list.
METRICS: dict[str, str] = {
    "shape": "Shape",
    "pattern": "Family",
    "density": "Density",
    "loss_nats": "Predicted loss",
    "audited_error": "Audited error",
    "mass": "Retained mass",
    "lower_mass": "Certified",
    "disagreement": "Disagreement",
    "risk": "Risk",
    "entropy": "Entropy",
    "fallback": "Fallback",
}
LENSES = ("shape", "pattern", "density", "loss_nats", "audited_error")


@dataclass(frozen=True)
class View:
    """What the map shows; layer and head are None until one is picked, metric until a lens is."""

    run_id: str
    layer: int | None
    head: int | None
    segment: int
    batch_index: int
    metric: str | None


def read(run: RunRow) -> View:
    """The view that the address names; whatever is missing or out of range falls back to the default."""
    metric = st.query_params.get("metric", "")
    if metric not in METRICS:
        address.absent("metric", metric)
    return View(
        run_id=run.run_id,
        layer=number("layer", run.layers),
        head=number("head", run.heads),
        segment=number("segment", run.segments) or 0,
        batch_index=number("batch", run.batch) or 0,
        metric=metric if metric in METRICS else None,
    )


def write(**changes: str | int) -> None:
    """Change parts of the view in the address; a callback does it before the page is drawn again.

    All at once: every change of the address is a step of the browser's back button.
    """
    st.query_params.update({name: str(value) for name, value in changes.items()})


def address_of(store: OwnerView, unit: queries.Unit) -> dict[str, str | int]:
    """The query of a unit's pages; the batch only where it isn't the first prompt."""
    batch = {"batch": unit.batch_index} if unit.batch_index else {}
    run = queries.short_id(store, unit.run_id)
    return {"run": run, "layer": unit.layer, "head": unit.head, "segment": unit.segment, **batch}


def text_of(store: OwnerView, unit: queries.Unit) -> dict[str, str | int]:
    """The query of the page Text for a head: the rows of all its segments."""
    return {name: value for name, value in address_of(store, unit).items() if name != "segment"}


def first_pick(choices: pd.DataFrame) -> tuple[int, int]:
    """The unit worth a first look: dense by fallback before expanded before the highest risk."""
    rank = choices["fallback"].map({"dense": 2, "expand": 1}).fillna(0).astype(float)
    best = choices.assign(rank=rank).sort_values(["rank", "risk"], ascending=False, kind="stable").iloc[0]
    return int(best["layer"]), int(best["head"])


def number(name: str, size: int, default: int | None = None) -> int | None:
    """A whole number below ``size`` from the address; the default where there is none or, which is said, another."""
    text = st.query_params.get(name, "")
    # Python refuses to read very long numbers.
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < size:
        return int(text)
    address.absent(name, text, "only 0 is here" if size == 1 else f"here are 0 to {size - 1:,}")
    return default
