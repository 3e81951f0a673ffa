"""A certificate in words and figures, as its page and its report print them."""

from __future__ import annotations

import json

from routesparse.engine.certificate_rows import CertificateRow, ClaimRow
from routesparse.engine.certification.rounding import all_digits, at_least, at_most
from routesparse.engine.export import numbers
from routesparse.engine.verdict import Level

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


def routing_absent(subject: str) -> str:
    """What pages say that expect a run."""
    return f"This is a certificate of {subject}; no routing was recorded"
