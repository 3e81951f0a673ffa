"""A certificate in words and figures, as its page and its report print them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from routesparse.engine.certificate_rows import CertificateRow, ClaimRow, NamedRow, NamedTotal, totals
from routesparse.engine.export import numbers
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rounding import all_digits, at_least, at_most
from routesparse.engine.verdict import Level

MOST_TOKENS = 24  # named tokens that a table shows
WORDS = {
    "broken": "Broken",
    "differs": "Differs from exact attention",
    "within": "Within the tolerance",
    "exact": "Exact up to rounding",
}


def word(verdict: str, tolerance: float | None) -> str:
    """The verdict in words; with a tolerance "differs" says only that it was not shown to be kept."""
    if verdict == "differs" and not numbers.is_missing(tolerance):
        return "Not shown within the tolerance"
    return WORDS[verdict]


def level(verdict: str, tolerance: float | None) -> Level:
    """Red: NaN or Inf, or a tolerance that is not kept. Amber: it differs, and nobody said by how much it may."""
    if verdict == "broken" or (verdict == "differs" and not numbers.is_missing(tolerance)):
        return "red"
    return "amber" if verdict == "differs" else "green"


def findings(certificate: CertificateRow) -> list[str]:
    """What stands beside the verdict."""
    return [str(told) for told in json.loads(certificate.findings_json)]


def upper(value: float | None, share: bool = False) -> str:
    """An upper bound, rounded up: "0.046", of a share "17 %"."""
    if numbers.is_missing(value):
        return numbers.NOT_MEASURED
    return at_most(max(0.0, float(value or 0.0)), percent=share).replace("%", " %")


def lower(value: float | None, share: bool = False) -> str:
    """A lower bound, rounded down: "0.79", of a share "91.7 %"."""
    if numbers.is_missing(value):
        return numbers.NOT_MEASURED
    return at_least(min(1.0, float(value or 0.0)), percent=share).replace("%", " %")


def confidence(certificate: CertificateRow) -> str:
    """ "95 %"."""
    return all_digits(certificate.confidence, percent=True).replace("%", " %")


def figures(certificate: CertificateRow, claim: ClaimRow) -> list[tuple[str, str, str]]:
    """Name, value and note of what is claimed of the whole pass."""
    of = f"of {claim.rows:,} rows"
    boxes = [
        ("Rows scored", f"{claim.rows:,}", f"{certificate.sampled_rows:,} of each head, drawn at random"),
        ("Output error", numbers.small(claim.mean_error), f"mean; at most {upper(claim.mean_error_bound)}"),
        (
            "Worst row seen",
            f"{claim.largest_error:.3g}",
            f"relative error; at least {lower(claim.share_within, True)} of rows have no larger one",
        ),
        (
            "Beyond rounding",
            f"{claim.beyond_rounding:,}",
            f"{of}; at most {upper(claim.beyond_rounding_bound, True)} of all",
        ),
    ]
    if claim.beyond_tolerance is not None:
        told = f"{of}; at most {upper(claim.beyond_tolerance_bound, True)} of all"
        boxes.append((f"Error above {certificate.tolerance:g}", f"{claim.beyond_tolerance:,}", told))
    if claim.mass is None:
        return boxes
    return [
        *boxes,
        ("Retained mass", numbers.mass(claim.mass), f"mean; at least {lower(claim.mass_bound)}"),
        (
            "Largest key read",
            numbers.share(claim.hit_rate),
            f"{of}; at least {lower(claim.hit_rate_bound, True)} of all",
        ),
        (
            f"Mass below {certificate.mass_level:g}",
            f"{claim.low_rows:,}",
            f"{of}; at most {upper(claim.low_rows_bound, True)} of all",
        ),
    ]


def made(certificate: CertificateRow) -> list[tuple[str, str]]:
    """What it was made with: names and values."""
    config = json.loads(certificate.config_json)
    asked = ", ".join(f"{name} {visible(str(value))}" for name, value in config.items() if name != "router")
    tolerance = "rounding only"
    if certificate.tolerance is not None:
        beyond = all_digits(certificate.most_beyond, percent=True)
        tolerance = f"{certificate.tolerance:g} in all but {beyond} of rows"
    without = f"{certificate.dense_layers:,} of {certificate.layers:,}"
    versions = sorted(json.loads(certificate.versions_json).items())
    return [
        ("Made", f"{certificate.created_at[:16].replace('T', ' ')} UTC"),
        ("Model revision", certificate.model_revision),
        ("Asked for", asked or "its own attention"),
        *([] if "router" not in config else [("Router", visible(json.dumps(config["router"])))]),
        ("Random rows of each head", f"{certificate.sampled_rows:,}"),
        ("Tolerance", tolerance),
        *([] if certificate.plan is None else [("Layers without a plan", without)]),
        ("Seed", str(certificate.seed)),
        ("Versions", ", ".join(f"{name} {value}" for name, value in versions)),
        ("Commit", certificate.git_commit or "unknown"),
    ]


def promises(certificate: CertificateRow, claim: ClaimRow) -> str:
    """What the figures say."""
    return (
        f"{claim.rows:,} rows of this prompt, drawn at random once the attention was fixed, were compared with exact "
        f"attention of the same Q, K and V: {certificate.sampled_rows:,} of each head. The output is the function’s "
        f"own, so its kernel and its number format ({certificate.dtype}) are covered. Each bound holds for all rows "
        f"with {confidence(certificate)} confidence, for itself alone."
    )


def not_promised(claim: ClaimRow) -> str:
    """What they do not say."""
    return (
        f"Rare faults: what touches up to {upper(1.0 - claim.share_within, True)} of the rows may have been missed, "
        "and such a row may lose everything. The answer: every layer is compared with exact attention of its own "
        "inputs, which earlier layers have already changed. Another prompt, or another pass of this one. Worst heads "
        "are picked after the fact, from a few rows each, so their own bounds are wide."
    )


def named_note(certificate: CertificateRow) -> str:
    """What the figures of named rows say, and what they do not."""
    return (
        f"These rows were named by whoever asked, and scored in all {certificate.heads:,} heads of all "
        f"{certificate.layers:,} layers. Nobody drew them: their figures are a measurement of these rows, no bound for "
        "any other row, and no claim counts them. They can make the verdict worse, never better: NaN or Inf in one is "
        "broken, one beyond rounding is not exact, and of a tolerance the same share of them may be beyond as of all."
    )


def named_caption(named: Sequence[NamedRow]) -> str:
    """What the lines of ``named_table`` are."""
    return (
        f"n = {len(named):,} named tokens: each label, then the {min(MOST_TOKENS, len(named)):,} tokens farthest off. "
        "As measured, no bounds."
    )


def named_table(named: Sequence[NamedRow], words: bool) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: the labels, then their worst tokens; ``words``: with what these read, where it was kept."""
    worst = sorted(named, key=lambda row: -row.largest_error)[:MOST_TOKENS]
    heads = ["rows named", "token", "at", "mean error", "worst", "beyond rounding"]
    told = named[0].beyond_tolerance is not None
    planned = named[0].mass is not None
    heads += ["beyond tolerance"] if told else []
    heads += ["mass lost", "largest key read"] if planned else []
    lines = []
    shown: list[NamedRow | NamedTotal] = [*totals(named), *worst]
    for one in shown:
        line = _named_place(one, words)
        line += [numbers.small(one.mean_error), f"{_worst(one).largest_error:.3g}"]
        line.append(f"{one.beyond_rounding:,} of {one.rows:,}")
        line += [f"{one.beyond_tolerance:,} of {one.rows:,}"] if told else []
        if one.mass is not None and one.hit_rate is not None:
            line += [numbers.small(1.0 - one.mass), numbers.share(one.hit_rate)]
        lines.append(line)
    return heads, lines


def _worst(one: NamedRow | NamedTotal) -> NamedRow:
    return one if isinstance(one, NamedRow) else one.worst


def _named_place(one: NamedRow | NamedTotal, words: bool) -> list[str]:
    """How it was named, which token it is, and where its largest error is."""
    worst = _worst(one)
    at = f"layer {worst.worst_layer}, head {worst.worst_head}"
    if isinstance(one, NamedTotal):
        return [one.label, f"all {one.tokens:,}", f"token {worst.position:,}, {at}"]
    text = f" “{visible(one.text, '⏎')}”" if words and one.text is not None else ""
    prompt = f"prompt {one.batch_index + 1}, " if one.batch_index else ""
    return [one.label, f"{prompt}{one.position:,}{text}", at]


def claims_table(certificate: CertificateRow, claims: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of claims by head or by layer, each with its bound. claims: with the fields of ClaimRow."""
    planned = any(not numbers.is_missing(claim.mass) for claim in claims)
    heads = ["", "mean error", "at most", "worst row", "its token", "beyond rounding"]
    heads += ["mass", "at least", "largest key read", "at least"] if planned else []
    lines = []
    for claim in claims:
        name = f"layer {int(claim.layer)}"
        if not numbers.is_missing(claim.head):
            name += f", head {int(claim.head)}"
            name += f", prompt {int(claim.batch_index) + 1}" if certificate.batch > 1 else ""
        token = "–" if numbers.is_missing(claim.worst_position) else f"{int(claim.worst_position):,}"
        line = [name, numbers.small(claim.mean_error), upper(claim.mean_error_bound)]
        line += [f"{claim.largest_error:.3g}", token, f"{claim.beyond_rounding:,} of {claim.rows:,}"]
        if planned:
            line += [numbers.mass(claim.mass), lower(claim.mass_bound)]
            line += [numbers.share(claim.hit_rate), lower(claim.hit_rate_bound, True)]
        lines.append(line)
    return heads, lines


def routing_absent(subject: str) -> str:
    """What pages say that expect a run."""
    return f"This is a certificate of {subject}; no routing was recorded"
