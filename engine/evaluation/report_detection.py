"""data/results/DETECTION.md: whether a prompt's own certificate foretells that its answer is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from routesparse.engine.evaluation.result_files import read, source, write_page
from routesparse.engine.evaluation.studies.detection.analyse import ALL, FALSE_ALARMS
from routesparse.engine.evaluation.studies.detection.names import (
    CHOSEN_ROWS,
    CONTROL,
    NEAR_TOKENS,
    SINK_TOKENS,
    WHOLE,
)

NAMES = {
    "area": "no certificate: area read",
    "mass": "mean retained mass, bound",
    "low_rows": "rows that keep less than half",
    "hit_rate": "rows that keep their largest key",
    "error": "mean output error",
    "worst_head": "output error of the worst head",
    "far_hit_rate": "far rows that keep their largest key",
    "far_low_rows": "far rows that keep less than half",
    "question_hit_rate": "question's rows that keep their largest key",
    "question_error": "output error in the question's rows",
    "needles_hit_rate": "needles' rows that keep their largest key",
    "needles_error": "output error in the needles' rows",
}
SHORT = {  # claims of the sentences
    "error": "random rows",
    "area": "area read alone",
    "question_error": "question's rows",
    "needles_error": "needles' rows, where a task has them",
}
CURVES = ("area", "error", "hit_rate", "far_hit_rate", "question_error", "needles_error")
NONE = "–"


def write() -> None:
    """Replace data/results/DETECTION.md."""
    write_page(
        "DETECTION.md", "Does a prompt's certificate foretell a lost answer?", page(read("detection.json"))
    )


def page(result: dict[str, Any]) -> list[str]:
    """The page's lines."""
    return [
        *meaning(result),
        *findings(result),
        *lost(result),
        *alarms(result),
        *table(result, "auc", "Over all methods and settings: area under the ROC curve"),
        *table(result, "auc_within", "Within one method and setting: area under the ROC curve"),
        *table(result, "rho", "Over all methods and settings: rank correlation with the lost nats"),
        *table(result, "rho_within", "Within one method and setting: rank correlation with the lost nats"),
        *curves(result),
    ]


def meaning(result: dict[str, Any]) -> list[str]:
    """What was measured and how to read it."""
    found = result["foresight"][ALL]
    lengths = " and ".join(f"{length:,}" for length in result["lengths"])
    thin = f" Too few prompts to compare: {', '.join(result['thin'])}." if result["thin"] else ""
    return [
        f"{result['prefills']:,} prefills of {found['prompts']} prompts of {lengths} tokens, by every method below, "
        "with the certificate of `certify` taken on that very prefill: random rows of every head of every layer, the "
        "same for all methods, scored exactly. Rivals run as published, on our kernel; decoding is dense. An answer is "
        "*lost* where its score is below dense attention's on the same prompt; *lost nats* are what the gold answer's "
        "log-likelihood fell by. "
        f"{result['unanswered']} prompts that dense attention fails altogether are left out, and {result['failed']} "
        f"prefills failed. {result['note']} {source(result)}; {result['rows']} random rows a head.",
        "",
        f"*Far rows* are random rows whose largest key lies neither among the first {SINK_TOKENS} tokens nor among the "
        f"{NEAR_TOKENS:,} before the row: rows that look something up. *Question's rows* (of relay and list: the "
        f"looked-up tokens) and *needles' rows* are up to {CHOSEN_ROWS} rows each at places that only whoever made the "
        "prompt knows; they show what a certificate would need to see. Intervals: 95 %, prompts resampled in each task "
        f"and length, {result['resamples']:,} times; methods are not, so nothing is said of others. Only pairs of one "
        f"task and length are compared.{thin} {NONE}: not defined, or too few answers on one side. Several claims are "
        "compared on the same prompts, so the best of them looks better than it is.",
        "",
    ]


def findings(result: dict[str, Any]) -> list[str]:
    """What each task shows, by the same claims everywhere, so that none is picked for looking good."""
    found = result["foresight"]
    lines = ["## What it foretells, and where it does not", ""]
    told = (_summary(found[ALL]), _places(found), _gap(result), _tenth(result))
    lines += [*(f"- {one}" for one in told), "", "By task:", ""]
    lines += [f"- **{task}**: {_summary(one)}" for task, one in found.items() if task != ALL]
    return [*lines, ""]


def _summary(found: dict[str, Any]) -> str:
    told = [f"{found['lost']} of {found['n']:,} answers are lost"]
    for measure, scope, right, wrong in (
        (
            "auc",
            "Over all methods and settings",
            "the mean output error of random rows says more than chance about whether an answer is lost",
            "the mean output error of random rows is **not** shown to tell whether an answer is lost",
        ),
        (
            "auc_within",
            "Within one method and setting",
            "it says more than chance about which prompt is hurt",
            "it is **not** shown to tell which prompt is hurt",
        ),
    ):
        known = {name: claim[measure] for name, claim in found["claims"].items() if claim[measure]}
        if "error" not in known:
            told.append(f"{scope}: too few answers to say")
            continue
        numbers = [f"{SHORT[name]} {_cell(known[name])}" for name in SHORT if name in known]
        told.append(
            f"{scope} {right if known['error'][1] > 0.5 else wrong} (area under the curve: {'; '.join(numbers)})"
        )
    return ". ".join(told) + "."


def _places(scopes: dict[str, Any]) -> str:
    """On which tasks rows at known places say more than random ones: their whole interval lies above the other's."""
    told = []
    for quantity, random, known in (
        ("output error", "error", ("question_error", "needles_error")),
        ("largest keys kept", "hit_rate", ("question_hit_rate", "needles_hit_rate")),
    ):
        for claim in known:
            better = [
                task
                for task, found in scopes.items()
                if task != ALL and _above(found["claims"].get(claim), found["claims"].get(random))
            ]
            kind = {"question": "the question's", "needles": "the needles'"}[claim.partition("_")[0]]
            told += [f"{quantity} in {kind} rows on {', '.join(better)}"] if better else []
    return (
        "Over all methods and settings, rows at known places tell more than random ones, with intervals apart: "
        f"{'; '.join(told) or 'on no task'}. Such rows are rare, and a mean over all rows hardly moves when they are "
        "lost: whoever knows which rows matter should have those certified."
    )


def _above(claim: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    mine, theirs = ((one or {}).get("auc") for one in (claim, other))
    return bool(mine and theirs and mine[1] > theirs[2])


def _gap(result: dict[str, Any]) -> str:
    """Where the verdict's alarms and false alarms lie farthest apart."""
    known = [row for row in result["alarms"] if row["lost"]["alarmed"] and row["kept"]["alarmed"]]
    if not known:
        return "Too few answers are lost, or kept, to judge the verdict's alarms."
    best = max(known, key=lambda row: row["lost"]["alarmed"][0] - row["kept"]["alarmed"][0])
    tolerance = best["alarm"].partition("_")[2] or "none"
    found, false = (_cell(best[kind]["alarmed"], percent=True) for kind in ("lost", "kept"))
    return (
        f"The verdict's own alarm is about attention, not about answers: at the tolerance that parts them most, "
        f"{tolerance}, it is raised on {found} of the lost answers and on {false} of the others. "
        f"It is raised on {best['controls']['dense']['alarms']} of {best['controls']['dense']['n']} dense prefills."
    )


def _tenth(result: dict[str, Any]) -> str:
    found = result["of_a_tenth"]
    claims = found["claims"]
    numbers = [
        f"{SHORT[name]} {_cell(claims[name]['auc'])}" for name in SHORT if claims.get(name, {}).get("auc")
    ]
    return (
        f"Counting only drops of a tenth of the score or more, {found['lost']} of {found['n']:,} answers are lost; "
        f"over all methods and settings: {'; '.join(numbers) or NONE}."
    )


def lost(result: dict[str, Any]) -> list[str]:
    """A line for each method and setting."""
    lines = [
        "## What was lost, and what was claimed",
        "",
        f"Means over prefills. {', '.join(f'`{name}`' for name in (*WHOLE, CONTROL))} are controls. The first two read "
        "everything and must raise no alarm; what `dense_kernel` loses, our kernel on all blocks, is lost to another "
        "order of sums in bfloat16. The last must lose. Our own plans have the last rows dense, so a question at the "
        "end is read whole.",
        "",
        "| method | setting | n | lost | score | lost nats | area | mass, bound | keep largest key | "
        "far rows keep it | output error | question's rows | needles' rows |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["methods"]:
        shares = [row[name] for name in ("hit_rate", "far_hit_rate")]
        errors = [row[name] for name in ("error", "question_error", "needles_error")]
        lines.append(
            f"| {row['method']} | {row['setting']:g} | {row['n']} | {row['lost']} | {100 * row['score']:.1f} | "
            f"{row['nats']:+.3f} | {row['area']:.1%} | {row['mass_bound']:.3f} | "
            + " | ".join(NONE if share is None else f"{share:.1%}" for share in shares)
            + " | "
            + " | ".join(NONE if error is None else f"{error:.4f}" for error in errors)
            + " |"
        )
    return [*lines, ""]


def alarms(result: dict[str, Any]) -> list[str]:
    """The verdict at its own thresholds."""
    lines = [
        "## The verdict's own alarms",
        "",
        "Without a tolerance `certify` asks for equality up to rounding, so every prefill that leaves something out is "
        "an alarm. With one it asks that at most 1 % of all rows have a larger relative output error.",
        "",
        "| tolerance | alarms where an answer is lost | alarms where none is | "
        + " | ".join(f"alarms of {name}" for name in (*WHOLE, CONTROL))
        + " |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["alarms"]:
        name = row["alarm"].partition("_")[2] or "none"
        shares = [
            NONE
            if row[kind]["alarmed"] is None
            else f"{_cell(row[kind]['alarmed'], percent=True)} of {row[kind]['n']:,}"
            for kind in ("lost", "kept")
        ]
        controls = [f"{c['alarms']} of {c['n']}" for c in row["controls"].values()]
        lines.append("| " + " | ".join([name, *shares, *controls]) + " |")
    return [*lines, ""]


def table(result: dict[str, Any], measure: str, title: str) -> list[str]:
    """One measure of every claim, by task."""
    scopes = result["foresight"]
    chance = "0.5 is chance, 1 always right" if measure.startswith("auc") else "0 is chance"
    return [
        f"## {title}",
        "",
        f"Signs are such that more is better; {chance}.",
        "",
        "| claim | "
        + " | ".join(f"{name}, {found['lost']} of {found['n']:,} lost" for name, found in scopes.items())
        + " |",
        "|---|" + "---:|" * len(scopes),
        *_claim_lines(scopes, measure),
        "",
    ]


def _claim_lines(scopes: dict[str, Any], measure: str) -> Iterator[str]:
    for claim, name in NAMES.items():
        found = [scope["claims"].get(claim, {}).get(measure) for scope in scopes.values()]
        yield f"| {name} | " + " | ".join(NONE if one is None else _cell(one) for one in found) + " |"


def curves(result: dict[str, Any]) -> list[str]:
    """Points of the ROC curve, by task."""
    lines = [
        "## The curve: lost answers found at a share of false alarms",
        "",
        "Over all methods and settings; the threshold is found on the same prefills, one for all tasks in the last "
        "lines.",
        "",
        "| task | claim | " + " | ".join(f"{share:.0%} false alarms" for share in FALSE_ALARMS) + " |",
        "|---|---|" + "---:|" * len(FALSE_ALARMS),
    ]
    for task, found in result["foresight"].items():
        for claim in CURVES:
            points = found["claims"].get(claim, {}).get("detected", {})
            if any(points.values()):
                cells = [NONE if p is None else _cell(p, percent=True) for p in points.values()]
                lines.append(f"| {task} | {NAMES[claim]} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(interval: Sequence[float], percent: bool = False) -> str:
    if percent:
        return "{:.0f} % \\[{:.0f}, {:.0f}\\]".format(*(100 * value for value in interval))
    return "{:.2f} \\[{:.2f}, {:.2f}\\]".format(*interval)
