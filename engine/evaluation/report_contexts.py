"""data/results/PRESSES.md and LONG_CONTEXT.md: needles after both prefills, with presses and beyond the context.

Each page is written once its study has been run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from routesparse.engine.evaluation.result_files import read, source, there, write_page

PRESSES = "presses_h200.json"
LONG = ("long_context_h200.json", "long_context_single_h200.json")
_NAMES = {
    None: "no press",
    "StreamingLLMPress": "StreamingLLM",
    "SnapKVPress": "SnapKV",
    "ObservedAttentionPress": "H2O (ObservedAttention)",
}
_SCALINGS = {
    "none": "as trained",
    "linear": "Position Interpolation",
    "yarn": "YaRN",
    "longrope": "LongRoPE's form",
}
_TRAINED = 65_536  # tokens of the bundled model's training
_FEWEST_DIFFERING = 10  # prompts that differ, from which on a bootstrap interval is printed
_PAIRED = (
    "*routed - dense* is the mean difference on the same prompt; where at least 10 prompts differ, with a 95 % "
    "interval (bootstrap over prompts, within tasks), else *harmed* and *gained* count them: prompts that score lower "
    "and higher than dense. None of n still allows a share of 3/n. A prompt that asks for several needles can lose one "
    "and win another, and then counts as neither. *Same answer* are the prompts that both "
    "prefills answer word for word alike."
)
_CLUSTERS = (
    "Haystacks are cut from four books in turn, the same for all tasks, so that n prompts are about four clusters and "
    "say less than n independent ones."
)


def write() -> None:
    """Replace the pages whose studies are there."""
    if there(PRESSES):
        write_page(
            "PRESSES.md", "Needles after a press: routed prefill against dense", presses(read(PRESSES))
        )
    found = [read(name) for name in LONG if there(name)]
    if found:
        title = "Longer contexts: which scaling of positions keeps retrieval, dense and routed"
        write_page("LONG_CONTEXT.md", title, long_contexts(found))


def presses(result: dict[str, Any]) -> list[str]:
    """Scores by press, share thrown away and length, all tasks together and each."""
    cells = result["cells"]
    lines = [
        "A press throws a share of the KV cache away when the prefill has ended (`engine/runtime/kvpress.py`); the "
        "prefill before it is dense, or routed at the default price. Same prompts throughout, greedy answers of at "
        f"most {result['slack_tokens']} tokens more than the gold one, scored as RULER does, in percent; *area* is the "
        "share of the causal area that the routed prefill read. The press loses what it throws away after either "
        "prefill: compare down a column for that, along a row for what routing adds.",
        "",
        f"{_PAIRED} {_CLUSTERS} {_several(len(cells))}",
        "",
        f"{_asked(result, [cell for cell in cells if cell['task']])} {source(result)}.",
        "",
    ]
    for tokens in sorted({cell["tokens"] for cell in cells}):
        mine = [cell for cell in cells if cell["tokens"] == tokens]
        lines += [
            f"## {tokens:,} tokens",
            "",
            "| press | thrown away | task | n | dense | routed | routed - dense, points | harmed | gained | "
            "same answer, % | area |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *(_cell(_whole(cell, mine)) for cell in sorted(mine, key=lambda cell: cell["task"] is not None)),
            "",
        ]
    return lines


def _whole(cell: dict[str, Any], cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cell; of all tasks together with the means over them of what is kept by task only.

    cells: those of its length.
    """
    if cell["task"] is not None:
        return cell
    own = [
        other
        for other in cells
        if other["task"] is not None and (other["press"], other["ratio"]) == (cell["press"], cell["ratio"])
    ]
    return {**cell, **{name: fmean(one[name] for one in own) for name in ("identical", "density")}}


def _cell(cell: dict[str, Any]) -> str:
    thrown = "-" if cell["press"] is None else f"{cell['ratio']:.0%}"
    return f"| {_NAMES[cell['press']]} | {thrown} | {cell['task'] or '**all**'} | {_paired(cell)} |"


def _paired(row: dict[str, Any]) -> str:
    pair = row["routed - dense"]
    shown = f"{pair['mean_points']:+.1f}"
    if pair["harmed"] + pair["gained"] >= _FEWEST_DIFFERING:
        shown += " [{:+.1f}, {:+.1f}]".format(*pair["interval_points"])
    return (
        f"{pair['n']} | {row['dense']:.1f} | {row['routed']:.1f} | {shown} | {pair['harmed']} | {pair['gained']} | "
        f"{100 * row['identical']:.0f} | {row['density']:.2f}"
    )


def _several(count: int) -> str:
    return (
        f"The {count} comparisons below were made without a correction for their number." if count > 1 else ""
    )


def _asked(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Which tasks, how many prompts were asked for and answered, and where the seed comes from.

    rows: one a task and whatever else, each with the prompts that were answered.
    """
    counts = [row["routed - dense"]["n"] for row in rows]
    least, most, asked = min(counts), max(counts), result["prompts_per_cell"]
    answered = f"{least}" if least == most else f"{least} to {most}"
    short = f", {answered} answered in the time allowed" if least < asked else ", all answered"
    tasks = ", ".join(sorted({row["task"] for row in rows}))
    return (
        f"Tasks: {tasks}; {asked} prompts asked for of each task and length{short}. The seed was drawn at random after "
        "the scripts stood."
    )


def long_contexts(results: list[dict[str, Any]]) -> list[str]:
    """Scores by scaling, task and length, and where in the prompt needles were found."""
    rows = [row for result in results for row in result["rows"]]
    lines = [
        f"{_stretched(results[0]['original'], rows)} Both "
        "prefills answer the same prompts, decoding is dense; scores in percent as RULER counts, greedy. Nobody "
        "searched LongRoPE's factors for this model: its form stands here with the NTK-aware ones that the search "
        f"begins with. {_short_list(rows)}A low score of both prefills is the scaling's, one of the routed alone is "
        "routing's.",
        "",
        f"{_PAIRED} {_CLUSTERS} {_several(len(rows))} *Area* is the share of the causal area that the routed prefill "
        "read.",
        "",
        *(f"- {_asked(result, result['rows'])} {source(result)}" for result in results),
        "",
        "| scaling | task | tokens | n | dense | routed | routed - dense, points | harmed | gained | same answer, % | "
        "area |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {_scaling(row)} | {row['task']} | {row['tokens']:,} | {_paired(row)} |"
            for row in sorted(rows, key=lambda row: (row["tokens"], row["task"]))
        ),
    ]
    return [*lines, "", *_depths(rows)]


def _stretched(original: int, rows: Sequence[dict[str, Any]]) -> str:
    """What the scalings stretch, and whether any length shows their cost where they are not needed."""
    lengths = sorted({row["tokens"] for row in rows})
    told = (
        f"The bundled model reads {original:,} tokens, but was trained on {_TRAINED:,}. Each scaling stretches the "
        f"{original:,} to {lengths[-1]:,}, at every length."
    )
    if lengths[0] > _TRAINED:
        listed = " and ".join(f"{tokens:,}" for tokens in lengths)
        told += (
            f" What was measured, {listed}, lies beyond the {_TRAINED:,}, so no length here shows what a scaling costs "
            "where it is not needed."
        )
    return told


def _unscaled(row: dict[str, Any]) -> bool:
    """Whether a prompt took LongRoPE's short list and that leaves all positions as they are."""
    if row["scaling"] != "longrope":
        return False
    asked = json.loads(row["rope"])
    within = row["tokens"] <= asked["original_max_position_embeddings"]
    return within and all(factor == 1.0 for factor in asked["short_factor"])


def _scaling(row: dict[str, Any]) -> str:
    return f"{_SCALINGS[row['scaling']]}{' (no scaling)' if _unscaled(row) else ''}"


def _short_list(rows: Sequence[dict[str, Any]]) -> str:
    """What the rows of LongRoPE's short list are, against those of the model as trained; "" where there are none."""
    unscaled = [row for row in rows if _unscaled(row)]
    if not unscaled:
        return ""
    plain = {(row["task"], row["tokens"]): row for row in rows if row["scaling"] == "none"}
    told = (
        "Within the original context it takes its short list, whose factors are all 1.0 here: rows marked *no scaling* "
        "have the positions of *as trained*, and only its attention factor, which makes logits a little larger, differs"
    )
    if all(row["needles"] == plain.get((row["task"], row["tokens"]), {}).get("needles") for row in unscaled):
        told += "; they equal that row needle for needle"
    return f"{told}. "


def _depths(rows: list[dict[str, Any]]) -> list[str]:
    """Needles found by the quarter of the prompt that they stand in."""
    lines = [
        "**By depth.** Needles found after the dense and after the routed prefill, of those in each quarter of the "
        "prompt, all tasks together.",
        "",
        "| scaling | tokens | first | second | third | last |",
        "|---|---|---|---|---|---|",
    ]
    for tokens, scaling in dict.fromkeys((row["tokens"], _scaling(row)) for row in rows):
        needles = [
            needle
            for row in rows
            if (row["tokens"], _scaling(row)) == (tokens, scaling)
            for needle in row["needles"]
        ]
        shown = []
        for quarter in range(4):
            mine = [needle for needle in needles if min(3, int(4 * needle[0])) == quarter]
            dense, routed = (sum(int(needle[place]) for needle in mine) for place in (1, 2))
            shown.append(f"{dense} and {routed} of {len(mine)}" if mine else "-")
        lines.append(f"| {scaling} | {tokens:,} | {' | '.join(shown)} |")
    return lines
