"""What quality targets choose: the card of tuned prices, on the page Calibration."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.ui import exports, glossary, numbers, states, tables
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.errors import CalibrationError

COMMAND = "tune DOMAIN --prompts FOLDER --target kl=0.01"


def card(owner: str | None) -> None:
    """All tuned prices that an owner has."""
    found, problems = read(owner)
    with st.container(border=True, key="card-tuned", gap="xsmall"):
        st.html(f'<div class="rs-h">What a quality target chooses, by domain{glossary.mark("quality")}</div>')
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
        st.html(
            f'<div class="rs-note">For {escape(models)}. Each price kept its target on what was measured; '
            "on fresh texts it may miss it: for the bundled model's text targets the page Results shows where.</div>"
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
    head = (
        '<th class="l">name</th><th class="l">on</th><th class="l">target</th><th>price</th><th>loss</th>'
        '<th>bound</th><th>area</th><th>saved</th><th>n</th><th>documents</th><th class="l">unit</th>'
    )
    body = [
        f'<tr><td class="l wrap">{escape(row["name"]).replace("_", "_<wbr>")}</td>'
        f'<td class="l wrap">{escape(row["domain"])}</td>'
        f'<td class="l wrap">{escape(tuned.WORDS[row["measure"]])} {row["target"]:g}, '
        f"{100 * row['confidence']:g}&nbsp;%</td>"
        f"<td>{row['price']:g}</td><td>{row['loss']:.4f}</td><td>{row['bound']:.4f}</td>"
        f"<td>{numbers.share(row['area'])}</td><td>{numbers.share(row['saved'])}</td>"
        f'<td>{row["windows"]:,}</td><td>{row["documents"]:,}</td><td class="l say">{escape(row["unit"])}</td></tr>'
        for row in rows.to_dict("records")
    ]
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")
