"""data/results/CERTIFY.md: broken and whole attention under certify, over independent trials."""

from __future__ import annotations

from typing import Any

from routesparse.engine.lab.reports.result_files import read, source, there, write_page

COST = "certify_cost_h200.json"
GOAL_MS = 1.5  # of a layer at 131,072 tokens
MEANING = (
    "`certify` scores random rows of every head exactly, in float32, and compares them with what the attention "
    "function wrote. An *alarm* is any verdict but `exact`: a sampled row lies beyond the rounding of its number "
    "format, or holds NaN or Inf. The claim behind it: where no sampled row of N does, at the stated confidence at "
    "most the share 1 - (1 - confidence)^(1/N) of all (head, row) pairs do. So a fault that spoils more is seen at "
    "least that often, and one that spoils less may go unseen: in a long prompt, one tile skipped in one head of one "
    "layer is such a fault."
)


def write() -> None:
    """Replace data/results/CERTIFY.md."""
    result = read("certify_cpu.json")
    lines = [MEANING, "", *cases(result), "", *bounds(result)]
    if there(COST):
        lines += ["", *cost(read(COST))]
    write_page("CERTIFY.md", "Does certify see broken attention, and leave whole attention alone?", lines)


def cases(result: dict[str, Any]) -> list[str]:
    """Alarms by case."""
    shape, trials = result["shape"], result["trials"]
    lines = [
        f"**{trials} trials of each case**, each with its own Q, K and V: {shape['heads']} heads, {shape['kv_heads']} "
        f"KV heads, {shape['tokens']:,} tokens, head size {shape['size']}, {shape['rows']} sampled rows a head, "
        f"confidence {result['confidence']:.0%}; the share that may go unseen is {result['limit']:.2%}. "
        f"{source(result)}.",
        "",
        "*Spoiled* is the share of all pairs beyond rounding, median over trials. *By chance* is how many alarms "
        "uniform draws lead to expect, given what was spoiled. *Claimed* are the trials in which at least the share "
        "that may go unseen was spoiled: of their faults the certificate promises to see "
        f"{result['confidence']:.0%}.",
        "",
        "| attention | spoiled | alarms | by chance | alarms of claimed |",
        "|---|---|---|---|---|",
    ]
    for case in result["cases"]:
        claimed = f"{case['claimed_alarms']} of {case['claimed']}" if case["claimed"] else "-"
        lines.append(
            f"| {case['case']} | {case['spoiled_share']:.2%} | {case['alarms']} of {trials} | "
            f"{case['promised']:.1f} | {claimed} |"
        )
    return [
        *lines,
        "",
        "The skipped tile is the one before the diagonal of a query block, in one head; both change from trial to "
        "trial. In bfloat16 some of its 128 rows lose so little by it that rounding hides the loss, so fewer rows are "
        "spoiled than were touched. The overflow is a softmax without its row's maximum, whose logits pass 88 in half "
        "of one head's rows. In the last line exactly the share that may go unseen is spoiled, so that the claim has "
        "no room.",
    ]


def bounds(result: dict[str, Any]) -> list[str]:
    """How often each bound of a sparse plan was wrong."""
    trials, wrong = result["trials"], result["wrong_bounds"]
    allowed = trials * (1.0 - result["confidence"])
    told = ", ".join(f"{name} {count}" for name, count in wrong.items())
    return [
        f"**Bounds of a sparse plan** (random blocks, float32) against all rows scored exactly, wrong in so many of "
        f"{trials} trials, of which {allowed:.0f} may be: {told}.",
    ]


def cost(result: dict[str, Any]) -> list[str]:
    """Device time of a layer by rows a head, and what the goal allows."""
    rows = result["rows"]
    longest = max(row["tokens"] for row in rows)
    within = [row["rows"] for row in rows if row["tokens"] == longest and row["certify_ms"] <= GOAL_MS]
    met = f"met up to {max(within)} rows a head" if within else "not met"
    return [
        f"**Cost on a GPU**, one layer of {rows[0]['heads']} query and {result['kv_heads']} KV heads of "
        f"{result['size']}, random Q, K and V in bfloat16: median device time of scoring the rows, "
        f"in calls one after another; at {longest:,} tokens the goal of {GOAL_MS} ms a layer is {met}. "
        f"*Named* adds rows {result['named']} in every head, *plan* holds the rows against a plan of "
        f"{result['density']:.0%} of the blocks as well; these two and "
        f"*dense* are single medians, whose spread was not kept. {result['device']}, "
        f"torch {result['versions']['torch']}, "
        f"seed {result['seed']}, commit {result['git_commit'][:7]}; "
        f"`{result['command']}`.",
        "",
        "| tokens | rows a head | certify, ms | 20 to 80 % | named, ms | plan, ms | dense attention, ms |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {row['tokens']:,} | {row['rows']} | {row['certify_ms']:.2f} | {row['certify_p20_ms']:.2f} to "
            f"{row['certify_p80_ms']:.2f} | {row['with_named_ms']:.2f} | {row['with_plan_ms']:.2f} | "
            f"{row['dense_ms']:.2f} |"
            for row in rows
        ),
    ]
