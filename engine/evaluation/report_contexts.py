"""data/results/PRESSES.md and LONG_CONTEXT.md: needles after both prefills, with presses and beyond the context.

Each page is written once its study has been run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from routesparse.engine.evaluation.result_files import read, source, there, write_page
from routesparse.engine.evaluation.studies.needles import paired

# Each a run with its own prompts; a later one of the same seed goes on behind the earlier one's.
PRESSES = ("presses_h200.json", "presses_more_h200.json")
LONG = ("long_context_h200.json", "long_context_more_h200.json", "long_context_single_h200.json")
SEARCH = "rope_search_h200.json"
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
    "yarn_trained": "YaRN from 65,536",
    "searched": "LongRoPE, searched",
}
_LATER_SCALINGS = ("yarn_trained", "searched")
_TRAINED = 65_536  # tokens of the bundled model's training, which the last two stretch
_METHODS = ("dense", "routed")
_FEWEST_DIFFERING = 10  # prompts that differ, from which on a bootstrap interval is printed
_PAIRED = (
    "*routed - dense* is the mean difference on the same prompt; where at least 10 prompts differ, with a 95 % "
    "interval (bootstrap over prompts, within tasks), else *harmed* and *gained* count them: prompts that score lower "
    "and higher than dense. Even where none of n prompts lost, up to 3/n of all may (95 %). A "
    "prompt that asks for several needles can lose one and win another, and then counts as neither. *Same answer* "
    "are the prompts that both prefills answer word for word alike."
)
_CLUSTERS = (
    "Haystacks are cut from four books in turn, the same for all tasks, so that n prompts are about four clusters and "
    "say less than n independent ones."
)


def write() -> None:
    """Replace the pages whose studies are there."""
    found = [read(name) for name in PRESSES if there(name)]
    if found:
        write_page("PRESSES.md", "Needles after a press: routed prefill against dense", presses(found))
    found = [read(name) for name in LONG if there(name)]
    if found:
        title = "Longer contexts: which scaling of positions keeps retrieval, dense and routed"
        search = read(SEARCH) if there(SEARCH) else None
        write_page("LONG_CONTEXT.md", title, long_contexts(found, search))


def presses(results: list[dict[str, Any]]) -> list[str]:
    """Scores by press, share thrown away and length, all tasks together and each."""
    cells = pooled(results, "cells", ("task", "tokens", "press", "ratio"))
    cells += [_all_tasks(cells, *case) for case in _cases(cells)]
    lines = [
        "A press throws a share of the KV cache away when the prefill has ended (`engine/runtime/kvpress.py`); the "
        "prefill before it is dense, or routed at the default price. Same prompts throughout, greedy answers of at "
        f"most {results[0]['slack_tokens']} tokens more than the gold one, scored as RULER does, in percent; *area* is "
        "the share of the causal area that the routed prefill read. The press loses what it throws away after either "
        "prefill: compare down a column for that, along a row for what routing adds.",
        "",
        f"{_PAIRED} {_CLUSTERS} {_several(len(cells))} {_left_out(results, cells)}".rstrip(),
        "",
        *_sources(results, "cells"),
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
            *(_cell(cell) for cell in sorted(mine, key=lambda cell: cell["task"] is not None)),
            "",
        ]
    return lines


def pooled(results: Sequence[dict[str, Any]], name: str, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of several runs, those of the same ``keys`` as one of all their prompts; without rows over all tasks.

    Errors: ValueError where a run has prompts of an earlier one.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    seeds: dict[tuple[Any, ...], int] = {}
    for result in results:
        for row in result[name]:
            if row["task"] is None:
                continue
            key = tuple(row[one] for one in keys)
            if key not in found:
                found[key], seeds[key] = row, result["seed"]
                continue
            if seeds[key] == result["seed"] and _count(found[key]) > result.get("first_prompt", 0):
                raise ValueError(
                    f"{key} of {result['command']!r} holds prompts of an earlier run; raise --first"
                )
            found[key] = _added(found[key], row)
    return list(found.values())


def _count(row: dict[str, Any]) -> int:
    return len(row["scores"]["dense"])


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two rows of different prompts as one."""
    scores = {method: one["scores"][method] + other["scores"][method] for method in _METHODS}
    counts = _count(one), _count(other)
    shares = {
        name: (counts[0] * one[name] + counts[1] * other[name]) / sum(counts)
        for name in ("identical", "density")
    }
    means = {method: 100 * fmean(values) for method, values in scores.items()}
    needles = one.get("needles", []) + other.get("needles", [])
    pair = paired({one["task"]: scores}, "routed", "dense", 0)
    return {**one, **means, **shares, "scores": scores, "needles": needles, "routed - dense": pair}


def _cases(cells: Sequence[dict[str, Any]]) -> list[tuple[int, str | None, float]]:
    return list(dict.fromkeys((cell["tokens"], cell["press"], cell["ratio"]) for cell in cells))


def _all_tasks(
    cells: Sequence[dict[str, Any]], tokens: int, press: str | None, ratio: float
) -> dict[str, Any]:
    """One row of a press at a length: means over its tasks, whatever their numbers of prompts."""
    named = {"tokens": tokens, "press": press, "ratio": ratio}
    own = [cell for cell in cells if all(cell[name] == value for name, value in named.items())]
    names = (*_METHODS, "identical", "density")
    scores = {cell["task"]: cell["scores"] for cell in own}
    return {
        "task": None,
        **named,
        **{name: fmean(cell[name] for cell in own) for name in names},
        "routed - dense": paired(scores, "routed", "dense", 0),
    }


def _left_out(results: Sequence[dict[str, Any]], cells: Sequence[dict[str, Any]]) -> str:
    """What the last run did not ask, with what it would have had to show; "" where it asked all."""
    last = {(cell["press"], cell["ratio"]) for cell in results[-1]["cells"]}
    rest = [cell for cell in cells if cell["task"] is None and (cell["press"], cell["ratio"]) not in last]
    if not rest:
        return ""
    names = sorted({f"{_NAMES[cell['press']]} at {cell['ratio']:.0%}" for cell in rest})
    least, most = (pick(cell["dense"] for cell in rest) for pick in (min, max))
    return (
        f"The later run left out {' and '.join(names)}: where dense prefills find {least:.0f} to {most:.0f} %, little "
        "can be lost."
    )


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


def _sources(results: Sequence[dict[str, Any]], name: str) -> list[str]:
    """A line a run: what it asked, and where its numbers come from."""
    return [f"- {_asked(one, [row for row in one[name] if row['task']])} {source(one)}" for one in results]


def _asked(result: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    """Which tasks, how many prompts were asked for and answered, and where the seed comes from.

    rows: one a task and whatever else, each with the prompts that were answered.
    """
    counts = [row["routed - dense"]["n"] for row in rows]
    first = result.get("first_prompt", 0)
    least, most, asked = min(counts), max(counts), result["prompts_per_cell"] - first
    answered = f"{least}" if least == most else f"{least} to {most}"
    short = f", {answered} answered in the time allowed" if least < asked else ", all answered"
    tasks = ", ".join(sorted({row["task"] for row in rows}))
    if first:
        seed = f"They follow the seed's first {first}."
    elif any(row.get("scaling") in _LATER_SCALINGS for row in rows):
        seed = "The seed is that of the first run; two scalings were added after its results were seen."
    else:
        seed = "The seed was drawn at random after the scripts stood."
    return f"Tasks: {tasks}; {asked} prompts asked for of each task and length{short}. {seed}"


def long_contexts(results: list[dict[str, Any]], search: dict[str, Any] | None = None) -> list[str]:
    """Scores by scaling, task and length, where needles were found, and what the search of factors found."""
    rows = pooled(results, "rows", ("scaling", "task", "tokens"))
    lines = [
        f"{_stretched(results[0]['original'], rows)} Both "
        "prefills answer the same prompts, decoding is dense; scores in percent as RULER counts, greedy. "
        f"{_form(rows)} {_short_list(rows)}A low score of both prefills is the scaling's, one of the routed alone is "
        "routing's.",
        "",
        f"{_PAIRED} {_CLUSTERS} {_several(len(rows))} *Area* is the share of the causal area that the routed prefill "
        "read.",
        "",
        *_sources(results, "rows"),
        "",
        "| scaling | task | tokens | n | dense | routed | routed - dense, points | harmed | gained | same answer, % | "
        "area |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {_scaling(row)} | {row['task']} | {row['tokens']:,} | {_paired(row)} |"
            for row in sorted(rows, key=lambda row: (row["tokens"], row["task"]))
        ),
    ]
    return [*lines, "", *_depths(rows), "", _routing_s_part(rows), *(_searched(search) if search else [])]


def _routing_s_part(rows: Sequence[dict[str, Any]]) -> str:
    """Prompts that routing harmed and gained under each scaling, over tasks and lengths."""
    told = []
    for scaling in dict.fromkeys(row["scaling"] for row in rows):
        pairs = [row["routed - dense"] for row in rows if row["scaling"] == scaling]
        harmed, gained, n = (sum(pair[name] for pair in pairs) for name in ("harmed", "gained", "n"))
        told.append(f"{_SCALINGS[scaling]} {harmed} and {gained} of {n}")
    return (
        f"**Routing's part.** Prompts harmed and gained, all tasks and lengths together: {'; '.join(told)}. A scaling "
        "under which dense prefills find nothing has nothing to lose."
    )


def _form(rows: Sequence[dict[str, Any]]) -> str:
    """Which factors LongRoPE's rows have."""
    form = "with the NTK-aware ones that the search begins with."
    if any(row["scaling"] == "searched" for row in rows):
        return (
            f"*LongRoPE's form* has no searched factors: it stands here {form} *LongRoPE, searched* has those that a "
            "search on this model found (below)."
        )
    return f"Nobody searched LongRoPE's factors for this model: its form stands here {form}"


def _searched(search: dict[str, Any]) -> list[str]:
    """What the search of LongRoPE's factors found, and on windows that it did not see."""
    starts = search["starts"]
    best_start = min(starts, key=starts.__getitem__)
    held: dict[tuple[str, int], float] = {
        (one["name"], one["tokens"]): fmean(one["nats"]) for one in search.get("held_out", [])
    }
    lengths = sorted({tokens for _, tokens in held})
    shown = [f"{factor:g}" for factor in search["rope"]["long_factor"]]
    lines = [
        "",
        f"**The search.** {len(search['tried'])} candidates, {len(starts)} of them published points, on one window of "
        f"{search['tokens']:,} tokens of the calibration split: mean loss of its {search['positions']:,} tokens behind "
        f"the {search['trained']:,} of training, in nats. The best candidate ({search['best_from']}) has "
        f"{search['nats']:.4f}, the best published point ({best_start}) {starts[best_start]:.4f}. "
        f"{_verdict(held, lengths, starts)}",
        "",
        f"- {source(search)}",
        f"- factors, fastest pair first: {', '.join(shown)}; attention factor {search['rope']['attention_factor']:g}",
        "",
        f"| positions | searched window | {' | '.join(f'held out, {tokens:,}' for tokens in lengths)} |",
        f"|---|---|{'---|' * len(lengths)}",
    ]
    for name in (*starts, "searched"):
        nats = [f"{held[name, tokens]:.4f}" if (name, tokens) in held else "" for tokens in lengths]
        own = search["nats"] if name == "searched" else starts[name]
        lines.append(f"| {name} | {own:.4f} | {' | '.join(nats)} |")
    return lines


def _verdict(held: dict[tuple[str, int], float], lengths: Sequence[int], starts: dict[str, float]) -> str:
    """Whether what was found is the best on the windows that the search did not see."""
    told = []
    for tokens in lengths:
        best = min(starts, key=lambda name: held[name, tokens])
        less = held[best, tokens] - held["searched", tokens]
        if less > 0:
            told.append(f"at {tokens:,} tokens {less:.4f} nats less than the best of these ({best})")
        else:
            told.append(f"at {tokens:,} tokens {-less:.4f} nats more than the best of these ({best})")
    return f"On a window that no choice saw it has {' and '.join(told)}." if told else ""


def _stretched(original: int, rows: Sequence[dict[str, Any]]) -> str:
    """What the scalings stretch, and whether any length shows their cost where they are not needed."""
    lengths = sorted({row["tokens"] for row in rows})
    told = (
        f"The bundled model reads {original:,} tokens, but was trained on {_TRAINED:,}. Each scaling stretches the "
        f"{original:,} to {lengths[-1]:,}, at every length."
    )
    if any(row["scaling"] in ("yarn_trained", "searched") for row in rows):
        told += f" *{_SCALINGS['yarn_trained']}* and *{_SCALINGS['searched']}* stretch the {_TRAINED:,} of training."
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
    # The row as trained may have further prompts, of a later run.
    same = (plain.get((row["task"], row["tokens"]), {}).get("needles", []) for row in unscaled)
    if all(
        row["needles"] == theirs[: len(row["needles"])] for row, theirs in zip(unscaled, same, strict=True)
    ):
        told += "; on the prompts that both rows have, they find the same needles"
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
