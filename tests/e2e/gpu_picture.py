"""Draw data/pictures/gpu_throughput.png from the GPU result files: python tests/e2e/gpu_picture.py (needs Chromium)."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects as go
import serve
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "data" / "results"
TARGET = ROOT / "data" / "pictures" / "gpu_throughput.png"
SIZE = {"width": 1200, "height": 460}
LINES = {
    "cudnn": ("dense, cuDNN", "#4b5563", "solid"),
    "flash2": ("dense, FlashAttention-2", "#9ca3af", "solid"),
    "sparse 5%": ("sparse 5 %", "#93c5fd", "solid"),
    "sparse 10%": ("sparse 10 %", "#3b82f6", "solid"),
    "sparse 20%": ("sparse 20 %", "#1d4ed8", "solid"),
    "flex 10%, blocks of 128": ("FlexAttention 10 %", "#d97706", "dot"),
}
BARS = ("flash2", "cudnn", "sparse 10%", "sparse 5%", "no attention")


def figure() -> go.Figure:
    """Throughput by length, and a prefill at the 8B shape."""
    kernel = json.loads((RESULTS / "kernel_h200.json").read_text())
    ends = json.loads((RESULTS / "end_to_end_h200.json").read_text())
    titles = (
        "Attention alone: TFLOP/s of what is read",
        "Prefill of 131,072 tokens, 8B shape, forced plans: s",
    )
    made = make_subplots(1, 2, subplot_titles=titles, column_widths=[0.6, 0.4], horizontal_spacing=0.14)
    for what, (name, colour, dash) in LINES.items():
        rows = [row for row in kernel["rows"] if row["what"] == what and not row.get("extrapolated")]
        made.add_scatter(
            x=[row["n_tokens"] for row in rows],
            y=[row["tflops"] for row in rows],
            name=name,
            mode="lines+markers",
            line={"color": colour, "dash": dash},
            row=1,
            col=1,
        )
    seconds = {r["what"]: r["seconds"] for r in ends["rows"] if r["n_tokens"] == 131_072 and r["compiled"]}
    names = [LINES[what][0] if what in LINES else what for what in BARS]
    made.add_bar(
        x=[seconds[what] for what in BARS],
        y=names,
        orientation="h",
        text=[f"{seconds[what]:.1f}" for what in BARS],
        marker_color=[LINES[what][1] if what in LINES else "#d1d5db" for what in BARS],
        showlegend=False,
        row=1,
        col=2,
    )
    ticks = sorted({row["n_tokens"] for row in kernel["rows"]})
    made.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick // 1024}K" for tick in ticks],
        title="tokens",
        row=1,
        col=1,
    )
    made.update_yaxes(rangemode="tozero", row=1, col=1)
    source = (
        f"one {kernel['device']}, bf16, 32 query and 8 KV heads of 128, random weights; "
        "deciding runs beside the forced plans"
    )
    made.add_annotation(text=source, x=0, y=-0.22, xref="paper", yref="paper", showarrow=False, font_size=11)
    return made.update_layout(
        template="plotly_white", font_family="sans-serif", margin={"t": 50, "b": 80}, **SIZE
    )


def main() -> None:
    """Draw it."""
    html = figure().to_html(include_plotlyjs=True, config={"displayModeBar": False})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
        page.set_content(html)
        page.wait_for_selector(".main-svg")
        page.locator(".plotly-graph-div").screenshot(path=TARGET)
        browser.close()


if __name__ == "__main__":
    main()
