"""What failed: certificates below their τ, what replaced each plan, and the time that this added."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, elements, exports, glossary, numbers, tables
from routesparse.engine.config import RouterConfig
from routesparse.engine.rows import RunRow
from routesparse.engine.store import fallback_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 1000
_MOST_NAMED = 4  # layers


def limit_of(run: RunRow) -> float:
    """The rate of fallbacks above which it is called a failure, as by the run's verdict."""
    return float(json.loads(run.config_json).get("fallback_limit", RouterConfig.fallback_limit))


def share(kinds: pd.DataFrame, kind: str, column: str) -> float:
    """Of all units, or of their predicted time, what ended as this kind."""
    total = kinds[column].sum()
    return float(kinds.loc[kinds["kind"] == kind, column].sum() / total) if total else 0.0


def problems(shown: Scope, kinds: pd.DataFrame, certificates: pd.DataFrame) -> list[str]:
    """Bounds that are too low, where nothing better is known, and a rate of fallbacks above the limit.

    certificates: rows of layer_certificates.
    """
    found = [] if loss_speaks(shown) else low_bounds(shown, kinds, certificates)
    rate, limit = share(kinds, "dense by fallback", "units"), limit_of(shown.run)
    if rate > limit:
        found.append(
            f"Failure: {numbers.share(rate)} of the units became dense by fallback, the limit is "
            f"{numbers.share(limit, 0)}. The paper calls a high fallback rate a failure, not a safe result: quality is "
            "kept, the speedup is lost. "
            + (
                "Lower τ layer or the price, so that the first plan reaches its layer’s certificate; or accept dense "
                "attention for such prompts."
                if len(certificates)
                else "Raise λ or choose a calibration of this domain, so that fewer candidates are tested in vain; "
                "allow larger budgets; or accept dense attention for such prompts."
            )
        )
    return found


def loss_speaks(shown: Scope) -> bool:
    """Whether the predicted loss stands in for bounds on kept mass, as in the verdict (``Facts.mass_counts``)."""
    return not shown.everything and shown.run.tau_layer is not None and shown.run.loss_nats is not None


def low_bounds(shown: Scope, kinds: pd.DataFrame, certificates: pd.DataFrame) -> list[str]:
    """Layers and units whose bound on kept mass is below its τ. certificates: rows of layer_certificates."""
    found, terms = [], glossary.TERMS
    if certificates["uncertified"].any():
        told = _layers(certificates, certificates["uncertified"], shown.everything)
        found.append(f"{told}. {terms['uncertified_layers']}")
    missed = int(kinds["uncertified"].sum())
    if missed:
        told = numbers.uncertified(missed, int(kinds["units"].sum()))
        found.append(f"{told}. {terms['uncertified']} Raise Tℓ, or choose the policy certified.")
    return found


def _layers(layers: pd.DataFrame, missed: pd.Series, of_several_runs: bool) -> str:
    """ "1 of 8 layers ran without certified mass: layer 2 (0.660 < 0.70)". layers: rows of
    layer_certificates; missed: of each, whether it did."""
    found, names = layers[missed], []
    for row in frames.rows(found.head(_MOST_NAMED)):
        known = not numbers.is_missing(row.lower_mass)
        least = f"{numbers.bound(row.lower_mass)} < {numbers.threshold(row.tau_layer)}" if known else ""
        run = f" of run {queries.label(str(row.run_id))}" if of_several_runs else ""
        names.append(f"layer {row.layer}{run} ({least or 'no certificate'})")
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    total = numbers.several(len(layers), "layer")
    return f"{len(found):,} of {total} ran without certified mass: {', '.join(names)}{more}"


def card(store: OwnerView, shown: Scope, total: int, uncertified: int) -> None:
    """The ``uncertified`` units, whose certificate failed without consequence, and the most expensive of the ``total``
    failed certificates that had one; a click on a row opens its head. One line where nothing failed."""
    with elements.card("events", "What failed or fell back", "fallback"):
        if not total:
            elements.sub(_nothing(store, shown, uncertified))
        if not total + uncertified:
            return
        events = fallback_queries.events(store, shown.run_ids, MOST)
        table = _rows(events, shown.everything)
        st.html(tables.sideways())
        picked = st.dataframe(
            table,
            column_config=_columns(),
            hide_index=True,
            # Stretched, all columns grow alike: those of a digit, too.
            width="content",
            height="auto" if len(table) <= 8 else 320,
            placeholder=numbers.NOT_MEASURED,
            on_select="rerun",
            selection_mode="single-cell",
            key=f"events-{shown.name}",
        )
        if picked.selection.cells:
            _open_head(store, events.iloc[picked.selection.cells[0][0]])
        drawn = f"{len(events):,} of " if len(events) < total + uncertified else ""
        missed = f" and {numbers.several(uncertified, 'unit')} without certified mass" if uncertified else ""
        exports.chart_foot(
            f"fallback-events-{shown.name}",
            f"n = {drawn}{numbers.several(total, 'event')}{missed}: those without consequence, then the most expensive "
            f"· masses as share of 1, µs as predicted · click a row to open its head · source: fallback_event and "
            f"head_choice of {shown.words}",
            events,
            "events",
        )


def _nothing(store: OwnerView, shown: Scope, uncertified: int) -> str:
    """That nothing fell back, and how near it was."""
    if uncertified:
        return f"Nothing fell back, but {numbers.several(uncertified, 'unit')} ran without certified mass."
    margin = fallback_queries.least_margin(store, shown.run_ids)
    if margin is None:
        return "Nothing fell back: no certificate was needed."
    if margin < 0:  # of a layer, which is named above
        return f"Nothing fell back; the lowest certificate missed its τ by {numbers.small(-margin)}."
    return f"Nothing fell back: every certificate reached its τ; the nearest had {numbers.small(margin)} to spare."


def _rows(events: pd.DataFrame, with_run: bool) -> pd.DataFrame:
    def candidate(side: str) -> pd.Series:
        letters = events[f"{side}_pattern"].map(design.letter, na_action="ignore")
        return (letters + " · " + events[f"{side}_budget"]).fillna(numbers.NOT_MEASURED)

    # Who writes no scope knows heads' certificates only.
    whose = {"of": events["scope"].fillna("head")} if (events["scope"] == "layer").any() else {}
    run = {"run": events["run_id"].map(queries.label), "prompt": events["prompt_name"]} if with_run else {}
    return pd.DataFrame(
        {
            **run,
            "layer": events["layer"],
            "head": events["head"],
            "segment": events["segment"] + 1,
            "tested": candidate("from"),
            "certified": events["lower_mass"].map(numbers.rounded_down, na_action="ignore"),
            "tau": events["tau"],
            # Another plan replaced it, all keys among them, or nothing did.
            "to": candidate("to").mask(events["kind"] == "uncertified", "ran without certified mass"),
            "paid": events["paid_us"].round(),
            "deficit": events["deficit"],
            "test": events["test"],
            **whose,
        }
    )


def _columns() -> dict[str, Any]:
    """Digits get few pixels; budgets, without a width, as many as they need. What the others imply stands last."""
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    terms = glossary.TERMS
    return {
        "run": text("Run", width=80),
        "prompt": text("Prompt", width=130),
        "layer": number("Layer", width=46),
        "head": number("Head", width=44),
        "segment": number("Segment", width=62),
        "test": number("Test", width=40, help="Which of the head's certificate tests this was"),
        "of": text("Of", width=50, help="Whose certificate failed: the head's own, or its layer's"),
        "tested": text("Tested"),
        "certified": number("Certified mass", format="%.3f", width=66, help=terms["certificate"]),
        "tau": number("τ", format="%.2f", width=40, help=terms["tau"]),
        "deficit": number("Missed by", format="%.3f", width=68, help="τ minus the certified mass"),
        "to": text("Now", help="What replaced it: a more expensive candidate, or dense attention, all keys"),
        "paid": number("Paid µs", format="localized", width=60, help=terms["paid"]),
    }


def _open_head(store: OwnerView, event: pd.Series) -> None:
    place = (int(event[name]) for name in ("layer", "head", "segment", "batch_index"))
    navigate.remember("trust")
    navigate.go("map", **view.address_of(store, queries.Unit(str(event["run_id"]), *place)))
