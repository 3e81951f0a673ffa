"""Pictures of predicted losses: along one prompt, and predicted against true over runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.screens.trust import figures
from routesparse.app.ui import design, numbers, plot
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, queries
from routesparse.engine.store.word_queries import Words

_LOG_FROM = 10.0  # times between the smallest and the largest loss
_ROOM = 1.3  # times beyond the outermost losses
_LONGEST = 90  # characters of a stretch


def text_of(words: Words | None, position: int, tokens: int, block_tokens: int, most: int = _LONGEST) -> str:
    """The beginning of a stretch's text; empty where no text was kept. Not yet escaped."""
    if words is None:
        return ""
    start, end = words.span_of_token(position, block_tokens, tokens)
    text = words.text[start:end]
    return visible(text[:most], " ") + ("…" if len(text) > most else "")


def along(losses: pd.DataFrame, run: RunRow, words: Words | None, theme: design.Theme) -> dict[str, Any]:
    """A mark a stretch, by the replay and by dense attention where it ran, and the run's own figures as lines."""
    values = losses[["replayed", "dense"]].astype(float)
    lines = {
        "predicted": (run.loss_nats, theme.accent, ""),
        "at most": (run.loss_bound if run.loss_bounded else None, theme.mute, "5 4"),
        "target": (run.loss_target, theme.warn, "1.5 3"),
    }
    known = [float(v) for v in values.to_numpy().ravel() if np.isfinite(v)]
    known += [float(value) for value, *_ in lines.values() if value is not None]
    if min(known) > 0 and max(known) / min(known) > _LOG_FROM:
        y = plot.logarithmic("nats a token", min(known) / _ROOM, max(known) * _ROOM)
    else:
        y = plot.linear("nats a token", 0, max(known) * 1.1 or 1.0, most=5)
    x = plot.linear("token", 0, run.tokens)
    middle = losses["position"] + (losses["tokens"] - 1) / 2
    marks, labels = [], []
    for place, (name, (value, color, dash)) in enumerate(lines.items()):
        if value is not None:
            marks.append(plot.line(x.range, [value] * 2, color, 1.2, dash))
            # Side by side: two of them may lie on one height.
            labels.append(plot.label(run.tokens * (0.01 + 0.2 * place), value, name, color, dy=-5))
    marks.append(
        plot.whiskers(
            np.column_stack([middle, values["replayed"], middle, values["dense"]]).tolist(), theme.line
        )
    )
    hover = "tokens {0}\nreplayed {1}, dense {2} nats a token{3}"
    told = [
        [
            numbers.tokens(row.position, row.tokens),
            numbers.small(row.replayed),
            numbers.small(row.dense),
            f"\n{text}" if (text := text_of(words, row.position, row.tokens, run.block_k)) else "",
        ]
        for row in frames.rows(losses)
    ]
    look: dict[str, Any] = {"edge": theme.panel, "opacity": 0.9}
    marks.append(plot.points(middle, values["replayed"], theme.accent, hover, told, **look))
    marks.append(plot.points(middle, values["dense"], theme.ink, hover, told, "diamond", **look))
    return plot.chart(x, y, [*marks, *labels], 240, theme)


def held(runs: pd.DataFrame) -> pd.Series:
    """Of runs with a predicted and a true loss whether the truth is within the bound; without a bound it is not."""
    return runs["loss_true"].astype(float) <= runs["loss_bound"].astype(float)


def against_truth(runs: pd.DataFrame, theme: design.Theme) -> dict[str, Any]:
    """True loss over predicted, on logarithmic axes, and from y = x up to each run's bound. runs: rows of queries.runs
    whose losses are above 0; those beyond their bound are all drawn."""
    runs = figures.few(runs, ~held(runs))
    within = held(runs)
    values = runs[["loss_nats", "loss_true", "loss_bound"]].astype(float)
    values.loc[runs["loss_alarm"].fillna(False).astype(bool), "loss_bound"] = np.nan  # it does not hold there
    ends = float(values.min().min()) / _ROOM, float(values.max().max()) * _ROOM
    x, y = plot.logarithmic("predicted, nats a token", *ends), plot.logarithmic("true, nats a token", *ends)
    marks = [plot.line(ends, ends, theme.mute, 1.2, "1.5 3")]
    bounded = values.dropna(subset=["loss_bound"])
    predicted = bounded["loss_nats"]
    reach = np.column_stack([predicted, predicted, predicted, bounded["loss_bound"]])
    marks.append(plot.whiskers(reach.tolist(), theme.mute))
    hover = "{1} · run {2}\npredicted {3}, true {4} nats a token\nat most {5}, {6}"
    for good, color, symbol in ((True, theme.accent, "circle"), (False, theme.warn, "diamond")):
        rows = runs[within == good]
        told = [
            [
                row.run_id,
                visible(str(row.prompt_name)),
                queries.label(str(row.run_id)),
                numbers.small(row.loss_nats),
                numbers.small(row.loss_true),
                numbers.small(None if row.loss_alarm else row.loss_bound),
                "a stated factor" if numbers.is_missing(row.loss_fit) else f"fitted on {row.loss_fit}",
            ]
            for row in frames.rows(rows)
        ]
        fills = [theme.panel if missing else color for missing in rows["loss_fit"].isna()]
        marks.append(
            plot.points(
                rows["loss_nats"].astype(float),
                rows["loss_true"].astype(float),
                fills,
                hover,
                told,
                symbol,
                edge=color,
                edge_width=1.4,
            )
        )
    return plot.chart(x, y, marks, 340, theme)
