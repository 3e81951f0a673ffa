"""data/results/PRESSES.md and LONG_CONTEXT.md: needles after both prefills, with presses and beyond the context.

Each page is written once its study has been run.
"""

from __future__ import annotations

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
    lines = [
        "A press throws a share of the KV cache away when the prefill has ended (`engine/runtime/kvpress.py`); the "
        "prefill before it is dense, or routed at the default price. Same prompts throughout, greedy answers of at "
        f"most {result['slack_tokens']} tokens more than the gold one, scored as RULER does, in percent. *routed - "
        "dense* is the mean difference on the same prompt with a 95 % interval (bootstrap over prompts, within tasks; "
        "it has no width where all differences are 0). Prompts of a seed drawn for this table. The press loses what it "
        "throws away after either prefill: compare down a column for that, along a row for what routing adds.",
        "",
        f"{source(result)}.",
        "",
    ]
    for tokens in sorted({cell["tokens"] for cell in result["cells"]}):
        mine = [cell for cell in result["cells"] if cell["tokens"] == tokens]
        lines += [
            f"## {tokens:,} tokens",
            "",
            "| press | thrown away | task | n | dense | routed | routed - dense, points | harmed | gained |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_cell(cell) for cell in sorted(mine, key=lambda cell: cell["task"] is not None)),
            "",
        ]
    return lines


def _cell(cell: dict[str, Any]) -> str:
    thrown = "-" if cell["press"] is None else f"{cell['ratio']:.0%}"
    return f"| {_NAMES[cell['press']]} | {thrown} | {cell['task'] or '**all**'} | {_paired(cell)} |"


def _paired(row: dict[str, Any]) -> str:
    pair = row["routed - dense"]
    low, high = pair["interval_points"]
    return (
        f"{pair['n']} | {row['dense']:.1f} | {row['routed']:.1f} | {pair['mean_points']:+.1f} [{low:+.1f}, "
        f"{high:+.1f}] | {pair['harmed']} | {pair['gained']}"
    )


def long_contexts(results: list[dict[str, Any]]) -> list[str]:
    """Scores by scaling, task and length, and where in the prompt needles were found."""
    first = results[0]
    rows = [row for result in results for row in result["rows"]]
    longest = max(row["tokens"] for row in rows)
    lines = [
        f"The bundled model reads {first['original']:,} tokens (it was trained on 65,536). Each scaling stretches that "
        f"to {longest:,}, at every length, so the shorter one shows what it costs where it is not needed. Both "
        "prefills answer the same prompts, decoding is dense; scores in percent as RULER counts, greedy. Nobody "
        "searched LongRoPE's factors for this model: its form stands here with the NTK-aware ones that the search "
        "begins with. *routed - dense* as on PRESSES. A low score of both prefills is the scaling's, "
        "one of the routed alone is routing's.",
        "",
        *(f"- {source(result)}" for result in results),
        "",
        "| scaling | task | tokens | n | dense | routed | routed - dense, points | harmed | gained | area |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {_SCALINGS[row['scaling']]} | {row['task']} | {row['tokens']:,} | {_paired(row)} | "
            f"{row['density']:.2f} |"
            for row in sorted(rows, key=lambda row: (row["tokens"], row["task"]))
        ),
    ]
    return [*lines, "", *_depths(rows)]


def _depths(rows: list[dict[str, Any]]) -> list[str]:
    """Needles found by the quarter of the prompt that they stand in."""
    lines = [
        "**By depth.** Needles found after the dense and after the routed prefill, of those in each quarter of the "
        "prompt, all tasks together.",
        "",
        "| scaling | tokens | first | second | third | last |",
        "|---|---|---|---|---|---|",
    ]
    for tokens, scaling in dict.fromkeys((row["tokens"], row["scaling"]) for row in rows):
        needles = [
            needle
            for row in rows
            if (row["tokens"], row["scaling"]) == (tokens, scaling)
            for needle in row["needles"]
        ]
        shown = []
        for quarter in range(4):
            mine = [needle for needle in needles if min(3, int(4 * needle[0])) == quarter]
            dense, routed = (sum(int(needle[place]) for needle in mine) for place in (1, 2))
            shown.append(f"{dense} and {routed} of {len(mine)}" if mine else "-")
        lines.append(f"| {_SCALINGS[scaling]} | {tokens:,} | {' | '.join(shown)} |")
    return lines
