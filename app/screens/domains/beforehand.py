"""What was measured beforehand, by domain: fits and calibrations, and what one domain's costs on another."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.domains import figures
from routesparse.app.shell import identity, jobs_view
from routesparse.app.ui import design, elements, exports, numbers, plot, states, tables, tuned_prices
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import Calibration, known, load_known
from routesparse.engine.calibration.choose import aimed
from routesparse.engine.calibration.fitted import DEFAULT_LOSS, Fitted
from routesparse.engine.errors import CalibrationError
from routesparse.engine.store import calibration_queries
from routesparse.engine.store.owner_view import OwnerView

_CONFIDENCE = 0.95


def fit_of(model: str, revision: str) -> Fitted | None:
    """The fit of these weights, else one of a model of this name; what can't be read is said."""
    found = []
    for name in fitted.known():
        try:
            found.append(fitted.load(name))
        except CalibrationError as error:
            states.field_error(f"{error}. The others are shown.")
    same = [one for one in found if one.model_revision == revision]
    return next(iter([*same, *(one for one in found if one.model == model)]), None)


def loss_card(fit: Fitted | None, model: str, revision: str) -> None:
    """Loss over price, a line a kind of text."""
    with elements.card("curves", "Loss against price, by domain", "loss"):
        if fit is None:
            jobs_view.to_fit(f"{model} is not fitted: no loss by price. To fit it, a folder a domain:", model)
            return
        plot.show(
            figures.loss_over_price(fit, design.current_theme()), "curves", "Loss over price, by domain"
        )
        other = (
            ""
            if fit.model_revision == revision
            else f" · other weights than the runs’: {fit.model_revision[:8]}"
        )
        rows = pd.DataFrame(
            {
                "kind": row["kind"],
                "price": price,
                "kl": kl,
                "windows": row["windows"],
                "documents": row["documents"],
            }
            for row in fit.summary()
            for price, kl in row["kl"].items()
        )
        exports.chart_foot(
            "loss-by-price",
            f"measured KL, mean over the fit’s windows of {fit.tokens:,} tokens, {len(fit.windows)} in all · "
            f"{numbers.device(fit.device)}, {fit.dtype} · source: fit {fit.name}{other}",
            rows,
            "curves",
            chart="curves",
        )


def exchanged_card(fit: Fitted) -> None:
    """What a fit of one kind of text does on the others, both ways."""
    opened = _opened("Calibrated on one domain, used on another", "exchanged")
    if not opened.open:
        return
    rows = exchanged(fit)
    with opened:
        st.html(tables.of_rows(_cells(rows), left=(0, 1)))
        exports.chart_foot(
            "exchanged",
            f"price: reads least of those that keep KL {DEFAULT_LOSS:g} on “fitted on” with {_CONFIDENCE:g} confidence "
            "(least: none does) · loss: measured at it, mean over the fit’s windows of “used on”, "
            f"▲: above {DEFAULT_LOSS:g} · held: windows within the bound, over all prices · on other documents: "
            "data/results/LOSS.md",
            rows,
            "exchanged",
        )


def exchanged(fit: Fitted) -> pd.DataFrame:
    """A row for each two kinds of text: the price that keeps DEFAULT_LOSS on one (``kept``: whether any does), the
    loss there of the other, and the share of the other's windows within the first one's bound."""
    losses = {row["kind"]: row["kl"] for row in fit.summary()}
    rows = []
    for one in fit.domains:
        aim = aimed(fit, one, DEFAULT_LOSS)
        for other in fit.domains:
            rows.append(
                {
                    "fitted_on": one,
                    "used_on": other,
                    "price": aim.price,
                    "kept": aim.found is not None,
                    "loss": losses[other][aim.price],
                    "held": fit.held(one, other, _CONFIDENCE),
                }
            )
    return pd.DataFrame(rows)


def _cells(rows: pd.DataFrame) -> pd.DataFrame:
    over = rows["loss"] > DEFAULT_LOSS
    return pd.DataFrame(
        {
            "fitted on": rows["fitted_on"],
            "used on": rows["used_on"],
            "price": [f"{row.price:g}" + ("" if row.kept else ", least") for row in rows.itertuples()],
            "loss": [
                f"{loss:.4f}" + (" ▲" if more else "") for loss, more in zip(rows["loss"], over, strict=True)
            ],
            "held": ["–" if numbers.is_missing(one) else numbers.share(one, 0) for one in rows["held"]],
        }
    )


def calibrations_card(store: OwnerView, revision: str | None) -> None:
    """A calibration a line: δ, predictor and documents; drift alarms of stored runs by domain. revision: of the model
    that is compared, whose calibrations are listed, and those that the address names; None: all."""
    found: list[Calibration] = []
    wanted = [name for name in st.query_params.get("names", "").split(",") if name]
    with elements.card("calibrations", "Calibrations: δ and predictor by domain", "conformal"):
        for name in dict.fromkeys([*wanted, *known(identity.owner())]):
            try:
                found.append(load_known(name, identity.owner()))
            except CalibrationError as error:
                states.field_error(f"{error}. The others are shown.")
        count = len(found)
        found = [one for one in found if one.name in wanted or revision in (None, one.model_revision)]
        if count > len(found):
            elements.note(f"{numbers.several(count - len(found), 'calibration')} of other models left out.")
        if not found:
            elements.sub("None. Everything works without one; the page Models makes them from your texts.")
            return
        for one in found:
            if both := one.overlap():
                states.field_error(
                    f"{one.name}: {numbers.several(len(both), 'document')} in both folds, so δ is too small."
                )
        runs = calibration_queries.drift(store, [one.name for one in found])
        rows = pd.DataFrame([{**_row(one), "alarms": _alarms(runs, one.name)} for one in found])
        picked = [place for place, one in enumerate(found) if one.name in wanted]
        lines = [[escape(cell) for cell in line] for line in rows.astype(str).itertuples(index=False)]
        st.html(tables.table([escape(name) for name in rows], lines, (0, 1, 2, 8), picked))
        exports.chart_foot(
            "calibrations",
            f"δ: at q = {_CONFIDENCE:g}, over the lengths that have one; infinite: none has windows enough · R²: of "
            "the error predictor · alarms: runs unlike the calibration’s prompts, of those tested with it · source: "
            "the calibration files, run",
            rows,
            "calibrations",
        )


def _row(one: Calibration) -> dict[str, str]:
    deltas = sorted(d for bucket in one.buckets if (d := bucket.deltas.get(f"{_CONFIDENCE:g}")) is not None)
    delta = (
        "infinite" if not deltas else " to ".join(dict.fromkeys(f"{d:.3f}" for d in (deltas[0], deltas[-1])))
    )
    predictor = one.predictor.fit if one.predictor else {}
    lengths = [bucket.min_tokens for bucket in one.buckets] + [bucket.max_tokens for bucket in one.buckets]
    return {
        "calibration": one.name,
        "domains": ", ".join(one.parts) or one.domain,
        "model": f"{one.model} {one.model_revision[:8]}",
        "tokens": f"{min(lengths):,}–{max(lengths):,}",
        "windows": f"{sum(bucket.prompts for bucket in one.buckets):,}",
        "documents": f"{len(one.documents)}",
        "δ": delta,
        "R²": f"{predictor['r2']:.3f}" if "r2" in predictor else "–",
    }


def _alarms(runs: pd.DataFrame, name: str) -> str:
    """How many runs of each domain set off the alarm: "code 1 of 1, prose 0 of 2"."""
    mine = runs[(runs["calibration"] == name) & runs["drift_distance"].notna()]
    return ", ".join(
        f"{domain} {int(part['drift_alarm'].fillna(False).astype(bool).sum())} of {len(part)}"
        for domain, part in mine.assign(domain=mine["domain"].fillna("no domain")).groupby("domain")
    )


def tuned() -> None:
    """Tuned prices, drawn once they are opened."""
    opened = _opened("Prices tuned to a quality target, by domain", "tuned")
    if opened.open:
        with opened:
            tuned_prices.card(identity.owner())


def _opened(title: str, name: str) -> Any:
    """A part of the page that is drawn once it is opened, by hand or by the address."""
    return st.expander(title, expanded=name in st.query_params, key=f"{name}-opened", on_change="rerun")
