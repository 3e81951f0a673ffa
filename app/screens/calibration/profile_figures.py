"""The pictures of a latency profile: measured kernel times beside what FLOPs predict; predicted and measured layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers, plot
from routesparse.engine.method.latency import LatencyProfile

DENSE, RECORDED = "dense", "recorded"
_SPARSE_DASHES = ("solid", "dash")
# Of the sparse plans, which shade alone does not tell apart; circles are dense, the last of all is what decides.
_SYMBOLS = ("square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star", "hourglass")


def cells(profile: LatencyProfile) -> pd.DataFrame:
    """The measurements: ``tokens``, ``mix``, ``median_us``, ``upper_us`` with ``upper`` its name, ``flops_us``.

    ``flops_us``: what a clock that only counts multiply-adds says, set to the longest dense measurement; NaN for the
    probe and for profiles that did not record what a mix reads. Plans of prompts are left out: each is another mix.
    """
    rows = pd.DataFrame([cell for cell in profile.cells if cell["mix"] != RECORDED])
    if rows.empty:
        return pd.DataFrame(
            columns=["tokens", "mix", "median_us", "upper_us", "upper", "repeats", "flops_us"]
        )
    upper = next((name for name in ("p95_us", "p80_us") if name in rows), "median_us")
    flops = pd.Series(np.nan, rows.index)
    dense = rows[rows["mix"] == DENSE].sort_values("n")
    if "tiles" in rows and "columns" in rows and len(dense):
        keys = rows["tiles"] * profile.block_k + rows["columns"]
        flops = 4.0 * profile.head_dim * profile.block_q * keys
        longest = dense.iloc[-1]
        flops = flops * (longest["median_us"] / flops[longest.name])
    return pd.DataFrame(
        {
            "tokens": rows["n"],
            "mix": rows["mix"],
            "median_us": rows["median_us"],
            "upper_us": rows[upper],
            "upper": upper.removesuffix("_us"),
            "repeats": rows.get("repeats"),
            "flops_us": flops,
        }
    )


def surface(measured: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """Median over length per mix, whiskers to the upper percentile; dotted, with hollow marks: FLOPs alone.

    Plotly's, because it is explored: a click in the legend takes a mix away, a drag enlarges a part.
    """
    chart = go.Figure()
    for color, dash, symbol, mix in _styles(measured, theme):
        rows = measured[measured["mix"] == mix].sort_values("tokens")
        chart.add_scatter(
            x=rows["tokens"],
            y=rows["median_us"] / 1000,
            error_y={
                "type": "data",
                "symmetric": False,
                "array": (rows["upper_us"] - rows["median_us"]) / 1000,
                "arrayminus": [0] * len(rows),
                "thickness": 1.2,
                "width": 4,
                "color": color,
            },
            mode="lines+markers",
            # The longest name sets the width of all places in the legend.
            name=_shown(mix).replace(", router", ",<br>router"),
            line={"color": color, "dash": dash, "width": 1.8},
            marker={"size": 7, "color": color, "symbol": symbol},
            customdata=np.column_stack([rows["upper_us"] / 1000, rows["flops_us"] / 1000]),
            hovertemplate=f"<b>{_shown(mix)}</b><br>%{{x:,}} tokens<br>median %{{y:.3g}} ms, {rows['upper'].iloc[0]} "
            "%{customdata[0]:.3g} ms<br>FLOPs alone %{customdata[1]:.3g} ms<extra></extra>",
        )
        if rows["flops_us"].notna().any():
            chart.add_scatter(
                x=rows["tokens"],
                y=rows["flops_us"] / 1000,
                mode="lines+markers",
                line={"color": color, "dash": "dot", "width": 1},
                marker={"size": 6, "color": color, "symbol": f"{symbol}-open"},
                hoverinfo="skip",
                showlegend=False,
            )
    ticks = sorted(measured["tokens"].unique())
    chart.update_xaxes(type="log", title="tokens", tickvals=ticks, ticktext=[f"{n:,}" for n in ticks])
    times = pd.concat([measured["median_us"], measured["flops_us"], measured["upper_us"]]).dropna() / 1000
    chart.update_yaxes(
        type="log",
        title="ms, all heads of a layer",
        **design.log_ticks(times.min(), times.max()),
    )
    chart.update_layout(
        template=_template(theme),
        height=460,
        # Room for five rows of the legend, which a paper-based place would draw over the axis.
        margin={"l": 56, "r": 8, "t": 8, "b": 156},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 11}},
    )
    return chart


def plan_against_clock(times: pd.DataFrame, here: str | None, theme: design.Theme) -> dict[str, Any]:
    """Predicted and measured time of every layer, and y = x; the newest run is filled."""
    planned, measured = times["planned_us"] / 1000, times["measured_us"] / 1000
    ends = (0.0, float(max(planned.max(), measured.max())) * 1.1 or 1.0)
    pale = design.blend(theme.panel, theme.accent, 0.3)
    told = [
        [row.prompt_name, row.layer, numbers.micros(row.planned_us), numbers.micros(row.measured_us)]
        for row in times.itertuples()
    ]
    colors = [theme.accent if run == here else pale for run in times["run_id"]]
    hover = "{0}, layer {1}\npredicted {2}, measured {3}"
    marks = [
        plot.line(ends, ends, theme.mute, 1.2, "1.5 3"),
        plot.points(planned, measured, colors, hover, told, size=7, edge=theme.panel),
    ]
    x, y = plot.linear("predicted, ms a layer", *ends), plot.linear("measured, ms a layer", *ends)
    return plot.chart(x, y, marks, 360, theme)


def config(name: str) -> dict[str, object]:
    """Plotly's options: no logo, only the buttons that help, the picture as SVG under a sensible name."""
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": ["select", "lasso", "autoScale"],
        "toImageButtonOptions": {"format": "svg", "filename": name},
    }


def _template(theme: design.Theme) -> go.layout.Template:
    """The dashboard's looks: transparent, thin lines."""
    axis = {
        "gridcolor": theme.line,
        "linecolor": theme.line,
        "zerolinecolor": theme.line,
        "tickcolor": theme.line,
        "tickfont": {"color": theme.mute, "size": 11},
        "title": {"font": {"color": theme.mute, "size": 12}},
    }
    font = {"family": design.FONT, "size": 12, "color": theme.ink}
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": font,
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"bgcolor": theme.panel, "bordercolor": theme.line, "font": font, "align": "left"},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.mute, "activecolor": theme.accent},
        }
    )


def _shown(mix: str) -> str:
    """A mix as the page calls it: "synthetic 3" is the third sparse plan that was made up to be measured."""
    return mix.replace("synthetic", "sparse plan") if mix.startswith("synthetic") else mix


def _styles(measured: pd.DataFrame, theme: design.Theme) -> list[tuple[str, str, str, str]]:
    """Colour, dash, symbol and mix: dense, the plans from pale to strong (dashed: random ones with columns), the rest.

    Every mix of a profile has its own symbol, as long as there are no more plans than symbols.
    """
    mixes = list(dict.fromkeys(measured["mix"]))
    sparse = [mix for mix in mixes if mix.startswith(("density", "synthetic"))]
    plans = list(dict.fromkeys(mix.split(",")[0] for mix in sparse))
    styles = []
    for mix in mixes:
        if mix == DENSE:
            styles.append((theme.pattern("dense"), "solid", "circle", mix))
        elif mix in sparse:
            share = (1 + plans.index(mix.split(",")[0])) / len(plans)
            plain = " columns" not in mix or " 0 columns" in mix
            color = design.blend(theme.panel, theme.accent, 0.5 + 0.5 * share)
            symbol = _SYMBOLS[sparse.index(mix) % len(_SYMBOLS)]
            styles.append((color, _SPARSE_DASHES[not plain], symbol, mix))
        else:
            styles.append((theme.warn, "solid", "triangle-right", mix))
    return styles
