"""The predicted loss of a run, along its prompt; and of all runs of the same weights beside the truth."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.trust import loss_figures
from routesparse.app.shell import navigate, new_run_address, view
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, elements, exports, numbers, plot
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, queries, word_queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.word_queries import Words

_MOST_WORST = 3
_LONGEST = 170  # characters of a stretch's text


def card(store: OwnerView, shown: Scope) -> None:
    """One run's prediction with its bound and target, and where along the prompt it comes from."""
    run = shown.run
    with elements.card("loss", "Predicted loss", "loss"):
        if run.loss_nats is None:
            elements.sub("Not measured: no rows of this run were replayed.")
            return
        totals = shown.runs.iloc[0]
        st.html(elements.boxes_html(_boxes(run, totals)))
        if not numbers.is_missing(totals["loss_true"]) and run.loss_bounded:
            st.html(f'<div class="rs-sub">{escape(beside_truth(run, float(totals["loss_true"])))}</div>')
        batch = view.number("batch", run.batch) or 0
        losses = queries.losses(store, run.run_id, batch)
        if losses.empty:
            return
        words = word_queries.words(store, run.run_id) if run.batch == 1 else None
        drawn = loss_figures.along(losses, run, words, design.current_theme())
        plot.show(drawn, "loss-along", "Loss of each replayed stretch along the prompt")
        st.html(_legend(losses, design.current_theme()) + _worst_html(losses, words, run))
        of_batch = f" of prompt {batch + 1}" if run.batch > 1 else ""
        exports.chart_foot(
            f"loss-{shown.name}",
            f"n = {len(losses):,} {'stretch' if len(losses) == 1 else 'stretches'}{of_batch}, "
            f"{int(losses['tokens'].sum()):,} rows · KL in nats a token, mean over a stretch · source: loss of run "
            f"{queries.label(run.run_id)}",
            losses,
            "loss",
            chart="loss-along",
        )


def _boxes(run: RunRow, totals: pd.Series) -> list[tuple[str, ...]]:
    fitted = run.loss_fit is not None
    of = f"model fitted on {run.loss_fit}" if fitted else "a stated factor; the model is not fitted"
    most, level = "no bound", str(run.why_unbounded)
    if run.loss_bounded:
        most, level = numbers.kl(run.loss_bound), f"{numbers.share(run.confidence, 0)} of such texts"
    boxes = [
        ("Predicted", numbers.kl(run.loss_nats), f"a token; {of}", "fit"),
        ("At most", most, level, "loss_bound"),
        (
            "Target",
            run.tuned_price or "none" if run.loss_target is None else f"{run.loss_target:g} nats",
            "a tuned price" if run.loss_target is None and run.tuned_price else "a token, as asked for",
        ),
    ]
    stretches, rows = totals["loss_stretches"], totals["loss_rows"]
    replayed = "" if numbers.is_missing(rows) else f"; {int(rows):,} rows in {int(stretches):,} places"
    share = run.loss_ms / run.total_ms if run.loss_ms is not None and run.total_ms else None
    part = "" if share is None else f"{numbers.share(share)} of the prefill"
    return [*boxes, ("Replay", numbers.millis(run.loss_ms), f"{part}{replayed}", "replay")]


def beside_truth(run: RunRow, truth: float) -> str:
    """Where a dense prefill ran beside a bounded run: what is true, and whether the bound held."""
    within = run.loss_bound is not None and truth <= run.loss_bound
    return f"True {numbers.kl(truth)} a token at the replayed rows, {'within' if within else 'beyond'} the bound."


def _legend(losses: pd.DataFrame, theme: design.Theme) -> str:
    items = [_mark("●", theme.accent, "replayed")]
    if losses["dense"].notna().any():
        items.append(_mark("◆", theme.ink, "dense, the truth"))
    return f'<div class="rs-legend">{"".join(items)}</div>'


def _mark(sign: str, color: str, name: str) -> str:
    return f'<span><b style="color:{color};margin-right:5px">{sign}</b>{name}</span>'


def _worst_html(losses: pd.DataFrame, words: Words | None, run: RunRow) -> str:
    """The text of the stretches that lost most, escaped; nothing where no text was kept."""
    if words is None:
        return ""
    by = "dense" if losses["dense"].notna().all() else "replayed"
    parts = ['<div class="rs-note">Worst stretches</div>']
    for row in frames.rows(losses.nlargest(_MOST_WORST, by)):
        text = loss_figures.text_of(words, row.position, row.tokens, run.block_k, _LONGEST)
        told = f"tokens {numbers.tokens(row.position, row.tokens)} · {numbers.small(getattr(row, by))} nats a token"
        parts.append(
            f'<div class="rs-words"><bdi>{escape(text)}</bdi></div><div class="rs-note">{told}</div>'
        )
    return "".join(parts)


def scatter(store: OwnerView, shown: Scope) -> None:
    """Predicted against true over all runs of these weights that have both; a click opens the run."""
    runs = shown.runs
    known = runs[runs["loss_nats"].notna() & runs["loss_true"].notna()]
    positive = known[(known["loss_nats"] > 0) & (known["loss_true"] > 0)]
    with elements.card("losses", "Predicted against true loss", "loss"):
        if positive.empty:
            elements.sub(
                f"No point yet: {len(known):,} of {numbers.several(len(runs), 'run')} of these weights have a "
                "predicted loss and a dense prefill beside it."
            )
            again = {**new_run_address.of_run(shown.run), "dense": "true"}
            navigate.link("Run one with dense beside it", "new", **again)
            return
        st.html(f'<div class="rs-plain">{escape(how_many_held(known))}</div>')
        theme = design.current_theme()
        drawn = store.made(
            "predicted losses",
            [theme.name],
            lambda: loss_figures.against_truth(positive, theme),
            of=list(positive["run_id"]),
        )
        told = plot.show(drawn, f"losses-{shown.name}", "Predicted against true loss", picks=True)
        if told is not None:
            navigate.remember("trust")
            navigate.go("map", run=queries.short_id(store, str(told[0])))
        st.html(
            f'<div class="rs-legend">{_mark("●", theme.accent, "within its bound")}{_mark("◆", theme.warn, "beyond")}'
            "<span>hollow: model not fitted</span><span>dotted: y = x</span><span>upright: up to the bound</span></div>"
        )
        absent = len(known) - len(positive)
        zero = f", {absent:,} with a loss of 0 not drawn" if absent else ""
        exports.chart_foot(
            f"losses-{shown.name}",
            f"n = {numbers.several(len(positive), 'run')}{zero} "
            "· true: dense attention at the replayed rows · click a point to open its run · source: run and loss",
            known[["run_id", "prompt_name", "domain", "tokens", *_LOSSES]],
            "losses",
            chart=f"losses-{shown.name}",
        )


_LOSSES = ("loss_nats", "loss_bound", "loss_true", "loss_fit", "loss_alarm", "loss_stretches", "loss_rows")


def how_many_held(known: pd.DataFrame) -> str:
    """Runs within their bound, those for whom it has no coverage apart. known: rows of queries.runs with both."""
    within, fitted = loss_figures.held(known), known["loss_fit"].notna()
    alarmed = fitted & known["loss_alarm"].fillna(False).astype(bool)
    parts = [
        f"{int(within[chosen].sum()):,} of {numbers.several(int(chosen.sum()), 'run')} {how}"
        for chosen, how in (
            (fitted & ~alarmed, "within a fitted bound"),
            (alarmed, "where the alarm voids it"),
            (~fitted, "within a stated one, which has no coverage"),
        )
        if chosen.any()
    ]
    return f"True loss: {'; '.join(parts)}."
