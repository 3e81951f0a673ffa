"""Trust of a certificate: what an attention function did to one prompt, head by head, and what that does not say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import export_menu, run_header, switch, verdict_bar
from routesparse.app.ui import design, elements, exports, glossary, grid, numbers, tables
from routesparse.app.unit import shapes
from routesparse.engine.certificate_rows import CertificateRow, NamedRow
from routesparse.engine.export import certificate_words
from routesparse.engine.export.plain_text import visible
from routesparse.engine.method import shape
from routesparse.engine.store import certificate_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

_MOST_WORST = 12
_MOST_HEADS_WITH_TEXT = 16
_TERMS = {
    "Output error": "output_claim",
    "Worst row seen": "output_claim",
    "Beyond rounding": "alarm",
    "Retained mass": "retained_mass",
    "Largest key read": "hit_rate",
}
_COLUMN_TERMS = {
    "mean error": "output_claim",
    "beyond rounding": "alarm",
    "mass": "retained_mass",
    "largest key read": "hit_rate",
}


@dataclass(frozen=True)
class Metric:
    """One column of the claims as a map. lost: how much a value loses; least: what the strongest colour is at least."""

    name: str
    unit: str
    lost: Callable[[float], float]
    least: float
    text: Callable[[float], str]


METRICS = {
    "mean_error": Metric(
        "Output error", "mean relative output error, each row counted up to 1", float, 0.01, numbers.small
    ),
    "largest_error": Metric(
        "Worst row", "largest relative output error of the rows drawn", float, 0.01, "{:.2g}".format
    ),
    "mass": Metric("Retained mass", "mean retained mass of the plan", lambda m: 1.0 - m, 0.05, numbers.mass),
    "hit_rate": Metric(
        "Largest key",
        "share of rows whose largest key the plan reads",
        lambda hit: 1.0 - hit,
        0.05,
        lambda hit: numbers.share(hit, 0),
    ),
    "shape": Metric("Shape of the plan", "where what the plan reads lies, its largest part", float, 1.0, str),
}


def draw(store: OwnerView, certificate_id: str) -> None:
    """Draw the page of a stored certificate."""
    row = certificate_queries.certificate(store, certificate_id)
    whole = certificate_queries.whole(store, certificate_id)
    if row is None or whole is None:
        return
    _header(store, row)
    heads = certificate_queries.claims(store, row.run_id, "head")
    parts = heads[list(shapes.COLUMNS)].to_numpy(float)
    heads["shape"] = pd.Series([shape.kind(one, False) for one in parts], heads.index, object)
    boxes = certificate_words.figures(row, whole)
    st.html(elements.boxes_html([(*box, _TERMS[box[0]]) if box[0] in _TERMS else box for box in boxes]))
    left, right = st.columns([1.15, 1], gap="small")
    if len(heads):
        with left:
            _map_card(row, heads)
    with right, elements.card("says"):
        st.html(
            '<div class="rs-h">What this says</div>'
            f'<div class="rs-note">{escape(certificate_words.promises(row, whole))}</div>'
            '<div class="rs-h" style="margin-top:8px">What it does not say</div>'
            f'<div class="rs-note">{escape(certificate_words.not_promised(whole))}</div>'
        )
    if len(heads):
        worst = heads.sort_values(["mean_error", "largest_error"], ascending=False, kind="stable")
        _table_card(
            row, worst.head(_MOST_WORST), "Worst heads", "worst", f"the worst of {len(heads):,} heads"
        )
    named = certificate_queries.named_rows(store, row.run_id)
    if named:
        _named_card(row, named)
    details = st.expander("Details", key="details", on_change="rerun", bind="query-params")
    if details.open:
        with details:
            layers = certificate_queries.claims(store, row.run_id, "layer")
            _table_card(row, layers, "Layer by layer", "layers", "layers, the heads of each pooled")
            with elements.card("certificate-made", "Made with"):
                st.html(elements.lines_html(certificate_words.made(row)))


def _header(store: OwnerView, row: CertificateRow) -> None:
    subject = visible(row.subject)
    run_header.tab_title("Certificate", row.subject)
    made = [
        f"{row.tokens:,} tokens",
        row.model,
        numbers.device(row.device),
        row.dtype,
        f"attention function {visible(row.function)}",
        f"run {queries.label(row.run_id)}",
    ]
    with st.container(horizontal=True, gap="small", key="run-header"):
        st.html(
            f'<div class="rs-title">Certificate of <bdi>{escape(subject)}</bdi></div><div class="rs-sub"><b><bdi>'
            f"{escape(visible(row.prompt_name))}</bdi></b> · {escape(' · '.join(made))}</div>",
            width="stretch",
        )
        export_menu.menu(store, row.run_id)
    level = certificate_words.level(row.verdict, row.tolerance)
    more = "".join(f"<span>{escape(visible(one))}.</span>" for one in certificate_words.findings(row))
    told = row.sentence[:1].upper() + row.sentence[1:]
    st.html(verdict_bar.bar(level, certificate_words.word(row.verdict, row.tolerance), told, more))


def _map_card(row: CertificateRow, heads: pd.DataFrame) -> None:
    known = {name: metric for name, metric in METRICS.items() if heads[name].notna().any()}
    name = switch.chosen("metric", known)
    with elements.card("heads"):
        with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
            st.html('<div class="rs-h">Head by head</div>', width="content")
            switch.buttons("metric", {key: metric.name for key, metric in known.items()}, name)
        drawn = head_map(heads, name, (row.layers, row.heads), design.current_theme())
        grid.show(drawn, "certificate-map", f"{known[name].name}, {row.layers} layers by {row.heads} heads")
        batch = "; of several prompts the worst" if row.batch > 1 else ""
        strength = "D: reads everything" if name == "shape" else "stronger: more lost"
        exports.chart_foot(
            f"certificate-heads-{queries.label(row.run_id)}",
            f"n = {row.sampled_rows:,} random rows of each of {len(heads):,} heads · {known[name].unit}, as seen{batch}"
            f"; {strength} · source: claim of run {queries.label(row.run_id)}",
            heads,
            "certificate-heads",
            "certificate-map",
        )


def head_map(heads: pd.DataFrame, name: str, size: tuple[int, int], theme: design.Theme) -> dict[str, Any]:
    """heads: claims of scope "head", of which a cell shows the worst of the batch. Infinite errors have the strongest
    colour; the text says that they are. Shapes have a letter and a colour, grey where the plan reads everything."""
    if name == "shape":
        rows = heads.drop_duplicates(["layer", "head"]).sort_values(["layer", "head"])
        colors = dict(zip(shape.PARTS, theme.shapes, strict=True))
        color = [colors.get(kind, theme.null) for kind in rows["shape"]]
        text = [design.SHAPE_LETTERS.get(kind, "D") for kind in rows["shape"]]
    else:
        metric, values = METRICS[name], heads[name].astype(float)
        rows = heads.assign(lost=values.map(metric.lost, na_action="ignore").fillna(-1.0))
        rows = rows.sort_values("lost", ascending=False, kind="stable").drop_duplicates(["layer", "head"])
        rows = rows.sort_values(["layer", "head"])
        lost = rows["lost"].clip(lower=0.0)
        top = max(metric.least, float(lost[lost < float("inf")].max()))
        color = [design.scale_color(theme, min(1.0, one / top)) for one in lost]
        with_text = size[1] <= _MOST_HEADS_WITH_TEXT
        text = ["–" if numbers.is_missing(v) else metric.text(v) if with_text else "" for v in rows[name]]
    hover = [_hover(row) for row in frames.rows(rows)]
    return grid.by_head(rows, size, theme, color=color, text=text, strong=False, hover=hover)


def _hover(row: Any) -> str:
    lines = [
        f"layer {row.layer}, head {row.head}",
        f"output error {numbers.small(row.mean_error)}, worst row {row.largest_error:.2g}",
    ]
    if not numbers.is_missing(row.mass):
        told = f"retained mass {numbers.mass(row.mass)}"
        lines.append(f"{told}, largest key in {numbers.share(row.hit_rate, 0)} of rows")
        lines.append(shapes.words(row, "reads"))
    return "\n".join(lines)


def _table_card(row: CertificateRow, claims: pd.DataFrame, title: str, key: str, of: str) -> None:
    """A line a claim, of heads or of layers."""
    heads, lines = certificate_words.claims_table(row, list(frames.rows(claims)))
    heads = [glossary.heading(name, _COLUMN_TERMS[name]) if name in _COLUMN_TERMS else name for name in heads]
    table = tables.table(heads, [[escape(cell) for cell in line] for line in lines])
    with elements.card(f"certificate-{key}", title):
        st.html(table)
        exports.chart_foot(
            f"certificate-{key}-{queries.label(row.run_id)}",
            f"n = {len(claims):,}, {of}, by mean output error over random rows · at most, at least: bounds at "
            f"{certificate_words.confidence(row)} confidence · source: claim",
            claims,
            f"certificate-{key}",
        )


def _named_card(row: CertificateRow, named: list[NamedRow]) -> None:
    heads, lines = certificate_words.named_table(named, words=True)
    cells = [[f"<bdi>{escape(cell)}</bdi>" for cell in line] for line in lines]
    table = tables.table(heads, cells, (0, 1, 2))
    with elements.card("named-rows"):
        st.html(
            f'<div class="rs-h">Rows that were named {glossary.mark("named_rows")}</div>'
            f'<div class="rs-note">{escape(certificate_words.named_note(row))}</div>{table}'
        )
        exports.chart_foot(
            f"certificate-named-{queries.label(row.run_id)}",
            f"{certificate_words.named_caption(named)} Source: named_row",
            pd.DataFrame([asdict(one) for one in named]).drop(columns=["run_id", "text"]),
            "certificate-named",
        )
