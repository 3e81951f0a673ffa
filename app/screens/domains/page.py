"""Domains: how one model reads kinds of text at equal settings, and which heads differ beyond chance."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.domains import beforehand, figures, heads, own, words
from routesparse.app.shell import address, navigate, run_header, setting_words, switch, view
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import design, elements, exports, grid, numbers, plot, states, tables
from routesparse.engine.errors import InputError
from routesparse.engine.stats import domains
from routesparse.engine.store import domain_queries, queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.verdicts import loss_bounds

_LISTED = 6  # heads
_TOLD = {  # of the columns by domain
    "reads": "Mean over heads, lowest to highest prompt",
    "predicted loss": "Of these prompts at their price: the mean",
    "bound": "The largest, if all prompts have one",
    "δ": "The largest",
    "covered": "Audited units whose certificate holds, in the lowest prompt",
    "alarms": "Drift or loss, of the prompts tested",
}


@address.names("of one other lens names tuned exchanged layer head")
def render() -> None:
    """Draw the page."""
    navigate.restore("domains")
    opened = access()
    store = opened.store
    st.html('<div class="rs-title">Domains</div>')
    runs = domain_queries.runs(store)
    sets = [one for one in domains.comparable(runs.dropna(subset="domain")) if one["domain"].nunique() > 1]
    shown = _chosen(store, sets)
    if shown is None:
        _nothing(store, runs)
    else:
        others = runs[
            (runs["model_revision"] == shown["model_revision"].iloc[0])
            & ~runs["run_id"].isin(shown["run_id"])
        ]
        _comparison(opened, shown, others)
    own.card(opened, None if shown is None else shown.iloc[-1])
    beforehand.calibrations_card(store, None if shown is None else shown["model_revision"].iloc[0])
    beforehand.tuned()


def _nothing(store: OwnerView, runs: pd.DataFrame) -> None:
    labelled = runs["domain"].nunique()
    lines = ["Comparing needs runs of one model at equal settings, of at least two domains."]
    if runs.empty:
        run_header.no_runs(store, [*lines, "Upload a folder of texts a domain below."])
        return
    near = f"{numbers.several(len(runs), 'run')} stored, with {numbers.several(labelled, 'domain label')} among them"
    states.empty("No two domains to compare", [*lines, f"{near}. Upload a folder of texts a domain below."])


def _chosen(store: OwnerView, sets: list[pd.DataFrame]) -> pd.DataFrame | None:
    """The set that holds the run of the address, else the one that tells most; None where there is none."""
    if not sets:
        return None
    labels = {}
    for one in sets:
        first = one.iloc[0].to_dict()
        labels[queries.short_id(store, first["run_id"])] = words.set_label(one, setting_words.of_run(first))
    wanted, place = st.query_params.get("of", ""), 0
    if wanted:
        try:
            run_id = queries.resolve(store, wanted)
            place = next((i for i, one in enumerate(sets) if run_id in set(one["run_id"])), -1)
        except InputError as error:
            states.field_error(f"{error}. Another comparison is shown.")
        if place < 0:
            place = 0
            states.note("No other domain was run with the settings of that run: another comparison is shown.")
    switch.field(
        "of",
        "Model, settings and prompts by domain",
        list(labels),
        list(labels)[place],
        format_func=labels.get,
    )
    return sets[place]


def _comparison(opened: Access, shown: pd.DataFrame, others: pd.DataFrame) -> None:
    store, theme = opened.store, design.current_theme()
    counts = shown["domain"].value_counts()
    names = sorted(counts.index, key=lambda name: (name != "prose", name != "code", -counts[name], name))[
        : domains.MOST
    ]
    shown = shown[shown["domain"].isin(names)]
    found, means = store.made("domains", [], lambda: _read(store, shown), of=list(shown["run_id"]))
    # As the heads' own: without the dense tail, which the run's figure counts.
    shown = shown.assign(density=shown["run_id"].map(found.groupby("run_id")["density"].mean()))
    one = switch.chosen("one", names)
    # The second name is what stands there unless it was chosen as the first.
    rest = sorted((name for name in names if name != one), key=lambda name: name != names[1])
    other = switch.chosen("other", rest, quiet=(one,))
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="pair"):
        switch.field("one", "Between", names, one, width=150)
        switch.field("other", "and", rest, other, of=one, width=150)
    area = shown.groupby("domain")["density"].mean()
    rows, finding = domains.changes(found, one, other), domains.finding(found, one, other)
    model, revision = shown["model"].iloc[0], shown["model_revision"].iloc[0]
    fit = beforehand.fit_of(model, revision)
    price = shown["price"].iloc[0]
    lost = words.loss_sentence(fit, price, one, other) if fit and not numbers.is_missing(price) else ""
    told = words.sentence(finding, rows, means, area, one, other)
    measured = {name: _figures(shown[shown["domain"] == name]) for name in names}
    own_loss = words.own_losses({name: measured[name] for name in (one, other)})
    st.html(f'<div class="rs-concludes"><p role="status">{told}{escape(own_loss)} {escape(lost)}</p></div>')
    elements.sub(words.caveat(finding, counts, one, other) + words.shapeless(found))
    if left := words.left_out(others, shown):
        elements.note(left)
        own.missing(opened, others, shown)
    _multiples(store, means, names, shown, theme)
    left_side, right_side = st.columns([1, 1.35], gap="small")
    with left_side:
        _difference(store, rows, shown, (one, other), theme)
    with right_side:
        _changed(store, rows, means, shown, names, (one, other), theme)
    left_side, right_side = st.columns([1.35, 1], gap="small")
    with left_side:
        _domains_card(shown, means, measured, theme)
        if fit is not None:
            beforehand.exchanged_card(fit)
    with right_side:
        beforehand.loss_card(fit, model, revision)


def _read(store: OwnerView, shown: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    found = heads.of_runs(store, shown)
    return found, heads.by_domain(found)


def _multiples(
    store: OwnerView, means: pd.DataFrame, names: list[str], shown: pd.DataFrame, theme: design.Theme
) -> None:
    split = means["loss_nats"].notna().any()
    lenses = {name: label for name, label in figures.LENSES.items() if split or name != "loss_nats"}
    lens = switch.chosen("lens", lenses)
    with elements.card("multiples", "Every head, by domain", "shape"):
        switch.buttons("lens", lenses, lens)
        st.html(_legend(lens, means, theme))
        largest = 1.0 if lens == "shape" else float(means[lens].max())
        for column, name in zip(st.columns(len(names), gap="small"), names, strict=True):
            with column:
                mine = means[means["domain"] == name]
                st.html(f'<div class="rs-h"><bdi>{escape(name)}</bdi></div>')
                make = partial(figures.heads_of, mine, lens, largest, theme)
                drawn = store.made("domain-heads", [name, lens, theme.name], make, of=list(shown["run_id"]))
                picked = plot.show(drawn, f"heads-{names.index(name)}", f"Heads on {name}", picks=True)
                if picked is not None:
                    _open(store, shown, name, picked[0], picked[1])
        exports.chart_foot(
            "heads-by-domain",
            "means over prompts, shapes of routing rows · click a cell for its head · source: head_choice, probe",
            means,
            "multiples",
        )


def _legend(lens: str, means: pd.DataFrame, theme: design.Theme) -> str:
    if lens == "shape":
        colors = figures.part_colors(theme)
        marks = "".join(
            f'<span><i style="background:{colors[part]}"></i>{part}</span>' for part in heads.PARTS
        )
        told = "width: share of a head’s attention; height: how much it reads, log scale"
        return f'<div class="rs-legend">{marks}<span>{told}</span></div>'
    most = float(means[lens].max())
    top = numbers.share(most, 0) if lens == "density" else f"{1000 * most:.2f} thousandths of a nat"
    return elements.scale_html("0", top, theme.scale)


def _difference(
    store: OwnerView, rows: pd.DataFrame, shown: pd.DataFrame, pair: tuple[str, str], theme: design.Theme
) -> None:
    one, other = pair
    with elements.card("difference", f"What {other} reads more or less than {one}"):
        drawn = figures.difference_map(rows, pair, theme)
        picked = grid.show(drawn, "difference", f"{other} minus {one}, points of the causal area", picks=True)
        if picked is not None:
            _open(store, shown, other, *picked)
        known = rows["spread"].notna().any()
        within = int((rows["more"] == "").sum())
        exports.chart_foot(
            f"difference-{one}-{other}",
            f"points of the causal area, n = {len(rows)} heads · "
            + (
                f"a dot: {within} within the spread of prompts, or a point"
                if known
                else "spread of prompts: not known"
            )
            + " · click a cell for its head · source: head_choice",
            rows.rename(columns={"one": f"density {one}", "other": f"density {other}"}),
            "difference",
            chart="difference",
        )


def _changed(
    store: OwnerView,
    rows: pd.DataFrame,
    means: pd.DataFrame,
    shown: pd.DataFrame,
    names: list[str],
    pair: tuple[str, str],
    theme: design.Theme,
) -> None:
    one, other = pair
    cells = means.set_index(["layer", "head", "domain"])
    run = queries.short_id(store, _newest(shown, other))
    others = [*pair, *(name for name in names if name not in pair)]
    lines = []
    for row in rows.head(_LISTED).to_dict("records"):
        place = row["layer"], row["head"]
        link = escape(navigate.address("map", run=run, layer=place[0], head=place[1]))
        name = f"layer {place[0]}, head {place[1]}"
        spread = "–" if numbers.is_missing(row["spread"]) else f"{100 * row['spread']:.0f}"
        lines.append(
            (
                f'<a href="{link}" target="_self">{name}</a>',
                numbers.signed(100 * row["difference"], 0),
                spread,
                *(_bar(cells.loc[(*place, domain)].to_dict(), theme) for domain in others),
            )
        )
    with elements.card("changed", f"Heads that change most, {one} to {other}"):
        st.html(tables.table(["head", "points", "spread", *map(escape, others)], lines))
        elements.note(
            f"Points: {other} minus {one}. Spread: of one domain’s prompts. Bars: attention, below how much is read."
        )


def _bar(row: dict[str, Any], theme: design.Theme) -> str:
    """A head in one domain: the shares of its attention as a bar, and how much it reads."""
    told = escape(words.parts_text(row))
    parts = ""
    if not numbers.is_missing(row["sink"]):
        parts = "".join(
            f'<i style="width:{100 * row[part]:.0f}%;background:{color}"></i>'
            for part, color in figures.part_colors(theme).items()
        )
    bar = f'<span class="rs-parts" role="img" aria-label="{told}" title="{told}">{parts}</span>'
    return bar + numbers.share(row["density"], 0)


def _domains_card(
    shown: pd.DataFrame, means: pd.DataFrame, measured: dict[str, dict[str, Any]], theme: design.Theme
) -> None:
    """A line a domain: prompts, what is read, predicted loss, coverage. measured: _figures by domain."""
    names, counts = list(measured), shown["domain"].value_counts()
    rows = []
    for name, figures_of in measured.items():
        parts = means.loc[means["domain"] == name, heads.PARTS].mean().to_dict()
        rows.append({"domain": name, "prompts": int(counts[name]), **figures_of, **parts})
    table = pd.DataFrame(rows)
    with elements.card("by-domain", "By domain"):
        columns: dict[str, list[str]] = {
            "domain": [f"<bdi>{escape(name)}</bdi>" for name in names],
            "attention": [_bar(row, theme) for row in table.to_dict("records")],
            "prompts": [str(count) for count in table["prompts"]],
            "reads": [_range(*ends) for ends in zip(table["least"], table["most"], strict=True)],
            "predicted loss": _told(table["loss"], "{:.4f}"),
            "bound": _told(table["bound"], "{:.4f}"),
            "δ": _told(table["delta"], "{:.3f}"),
            "covered": [numbers.share_passed(one) for one in table["coverage"]],
            "alarms": list(table["alarms"]),
        }
        empty = {"–", numbers.NOT_MEASURED}
        columns = {name: cells for name, cells in columns.items() if set(cells) - empty}
        heads_of = [f'<th title="{_TOLD[name]}">{name}</th>' if name in _TOLD else name for name in columns]
        st.html(tables.table(heads_of, list(zip(*columns.values(), strict=True))))
        devices = ", ".join(
            f"{numbers.device(d)} {t}" for d, t in shown[["device", "dtype"]].drop_duplicates().to_numpy()
        )
        exports.chart_foot(
            "domains", f"losses in nats a token · {devices} · source: run, head_choice", table, "domains"
        )


def _figures(mine: pd.DataFrame) -> dict[str, Any]:
    """What one domain's runs measured; NaN where none did."""
    rang = mine["drift_alarm"].fillna(False).astype(bool) | mine["loss_alarm"].astype(bool)
    count = int(rang.sum())
    judged = int((mine["drift_alarm"].notna() | mine["loss_fit"].notna()).sum())
    bounded = loss_bounds(mine)
    return {
        "density": mine["density"].mean(),
        "least": mine["density"].min(),
        "most": mine["density"].max(),
        "loss": mine["loss_nats"].astype(float).mean(),
        "bound": bounded.max() if bounded.notna().all() else None,
        "delta": mine["delta"].astype(float).max(),
        "coverage": mine["coverage"].astype(float).min(),
        "rang": count,
        "alarms": f"{count} of {judged}" if judged else "–",
    }


def _told(values: pd.Series, form: str) -> list[str]:
    return ["–" if numbers.is_missing(value) else form.format(value) for value in values]


def _range(least: float, most: float) -> str:
    low, high = numbers.share(least), numbers.share(most)
    return low if low == high else f"{low} to {high}"


def _newest(shown: pd.DataFrame, domain: str) -> str:
    return str(shown[shown["domain"] == domain]["run_id"].iloc[-1])


def _open(store: OwnerView, shown: pd.DataFrame, domain: str, layer: Any, head: Any) -> None:
    unit = queries.Unit(_newest(shown, domain), int(layer), int(head), 0)
    navigate.remember("domains")
    navigate.go("map", **view.address_of(store, unit))
