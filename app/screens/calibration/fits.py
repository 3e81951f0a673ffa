"""Fits: what models lose at each price by kind of text, and what a replay is multiplied by."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from routesparse.app.ui import elements, exports, numbers, states, tables
from routesparse.engine.calibration import fitted
from routesparse.engine.errors import CalibrationError


def card() -> None:
    """All fits, shipped and made here; what can't be read is named."""
    found = []
    with elements.card("fits", "What fitted models lose by price"):
        for name in fitted.known():
            try:
                found.append(fitted.load(name))
            except CalibrationError as error:
                states.field_error(f"{error}. The others are shown.")
        if not found:
            command = states.here(f"{states.PROGRAM} fit MODEL --prompts FOLDER")
            elements.sub(f"No model is fitted. To fit one, on the command line: {command}")
            return
        rows = pd.DataFrame(
            {**{"model": one.model, "model_revision": one.model_revision, "tokens": one.tokens}, **row}
            | {f"KL at {price:g}": kl for price, kl in row["kl"].items()}
            for one in found
            for row in one.summary()
        )
        losses = sorted(
            (name for name in rows if name.startswith("KL at ")), key=lambda name: float(name[6:])
        )
        rows = rows[
            ["model", "model_revision", "tokens", "kind", "documents", "windows", *losses, "factor", "bound"]
        ]
        shown = rows.drop(columns=["model_revision", "tokens"]).assign(
            **{
                name: ["–" if numbers.is_missing(kl) else f"{kl:.4f}" for kl in rows[name]] for name in losses
            },
            factor=[f"{one:.2f}" for one in rows["factor"]],
            bound=["too few" if numbers.is_missing(one) else f"{one:.2f}" for one in rows["bound"]],
        )
        st.html(tables.of_rows(shown, left=(0, 1)))
        exports.chart_foot(
            "fits",
            "KL to dense in nats a token, mean over windows, at each price · factor and bound at .95: of the nats a "
            "replay sees; the bound needs 19 documents · mixed: all kinds together · source: the files of fits",
            rows,
            "fits",
        )
