"""What quality targets choose: the card of tuned prices, on the page Domains."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.ui import elements, exports, numbers, states, tables
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.errors import CalibrationError

COMMAND = "tune DOMAIN --prompts FOLDER --target kl=0.01"


def card(owner: str | None) -> None:
    """All tuned prices that an owner has."""
    found, problems = read(owner)
    with elements.card("tuned", "What a quality target chooses, by domain", "quality"):
        for line in problems:
            states.field_error(line)
        if not found:
            st.html(
                '<div class="rs-sub">No price was tuned for these weights on this machine. To tune one, on the command '
                f"line: <code>{escape(states.here(f'{states.PROGRAM} {COMMAND}'))}</code></div>"
            )
            return
        rows = listed(found)
        models = ", ".join(dict.fromkeys(f"{one.model} {one.model_revision[:8]}" for one in found))
        elements.note(
            f"For {models}. Each price kept its target on what was measured; "
            "on fresh texts it may miss it: for the bundled model's text targets the page Results shows where."
        )
        st.html(as_html(rows))
        exports.chart_foot(
            "tuned-prices",
            "loss and bound: mean over the domain’s n windows or questions, against dense, capped, in nats a "
            "token; of an agreement the share that differs; where it holds for each domain, that of the one that "
            "loses most · unit window: the claim is about the documents (of code: projects) that were measured, "
            "not about others · area: kept share of the causal area · saved: area against the strictest price for "
            "the same target, on the same windows or questions · source: the files of tuned prices",
            rows,
            "tuned",
        )


def read(owner: str | None) -> tuple[list[TunedPrice], list[str]]:
    """All that can be read, and why others can't."""
    found, problems = [], []
    for name in tuned.known(owner):
        try:
            found.append(tuned.load(name, owner))
        except CalibrationError as error:
            problems.append(f"{error}. The others are shown.")
    return tuned.ordered(found), problems


def listed(found: Sequence[TunedPrice]) -> pd.DataFrame:
    """A row each; ``saved`` is the share of the area that the strictest price of the same target would have read."""
    rows = []
    for one in found:
        alike = [o.price for o in found if _promise(o) == _promise(one)]
        at = one.at_price
        strict = next((row.area for row in one.tested if row.price == min(alike)), None)
        rows.append(
            {
                "name": one.name,
                "domain": "each of " * one.robust + ", ".join(part.domain for part in one.parts),
                "measure": one.measure,
                "target": one.target,
                "confidence": one.confidence,
                "price": one.price,
                "loss": at.loss,
                "bound": at.bound,
                "limit": one.limit,
                "area": at.area,
                "saved": None if not strict else 1 - at.area / strict,
                "windows": sum(part.windows for part in one.parts),
                "documents": sum(part.documents for part in one.parts),
                "unit": ", ".join(dict.fromkeys(part.unit for part in one.parts)),
                "model": one.model,
                "device": one.device,
                "dtype": one.dtype,
            }
        )
    return pd.DataFrame(rows)


def _promise(one: TunedPrice) -> tuple[str, str, float, float]:
    return one.model_revision, one.measure, one.target, one.confidence


def as_html(rows: pd.DataFrame) -> str:
    """The same as a table."""
    heads = ["name", "on", "target", "price", "loss", "bound", "area", "saved", "n", "documents", "unit"]
    lines = [
        (
            f'<td class="l wrap">{escape(row["name"]).replace("_", "_<wbr>")}</td>',
            f'<td class="l wrap">{escape(row["domain"])}</td>',
            f'<td class="l wrap">{escape(tuned.WORDS[row["measure"]])} {row["target"]:g}, '
            f"{100 * row['confidence']:g}&nbsp;%</td>",
            f"{row['price']:g}",
            f"{row['loss']:.4f}",
            f"{row['bound']:.4f}",
            numbers.share(row["area"]),
            numbers.share(row["saved"]),
            f"{row['windows']:,}",
            f"{row['documents']:,}",
            f'<td class="l say">{escape(row["unit"])}</td>',
        )
        for row in rows.to_dict("records")
    ]
    return tables.table(heads, lines, (0, 1, 2, 10))
