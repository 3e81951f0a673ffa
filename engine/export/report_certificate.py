"""A certificate as one HTML page, in the manner of ``report_page.py``: no server, no network, no script."""

from __future__ import annotations

import json
from collections.abc import Sequence

from routesparse.engine.certificate_rows import CertificateRecord, CertificateRow, ClaimRow
from routesparse.engine.export import certificate_words, numbers
from routesparse.engine.export.certificate_words import lower, upper
from routesparse.engine.export.report_html import document, facts, isolated, note, section, table, text
from routesparse.engine.verdict import SIGNS

_MOST_HEADS = 24


def page(record: CertificateRecord, *, words: bool) -> str:
    """The page of a certificate; ``words``: with those of the named tokens, where their text was kept."""
    row = record.certificate
    whole = next(claim for claim in record.claims if claim.scope == "pass")
    layers = [claim for claim in record.claims if claim.scope == "layer"]
    heads = [claim for claim in record.claims if claim.scope == "head"]
    worst = sorted(heads, key=lambda claim: -claim.mean_error)[:_MOST_HEADS]
    planned = whole.mass is not None
    body = (
        f"<header><h1>Certificate of {isolated(row.subject)}</h1>",
        note(
            f"RouteSparse report · {row.run_id} · made {row.created_at} · prompt {row.prompt_name} · {row.tokens:,} "
            f"tokens · {row.model} · {numbers.device(row.device)}, {row.dtype} · attention function {row.function}"
        ),
        "</header>",
        _verdict(row),
        facts(certificate_words.figures(row, whole)),
        section(
            "What this says",
            note(certificate_words.promises(row, whole)),
            note(f"It does not speak of these. {certificate_words.not_promised(whole)}"),
        ),
        _named(record, words),
        section(
            "Worst heads", _table(row, worst, planned, f"n = the {len(worst)} worst of {len(heads):,} heads")
        ),
        section(
            "Layers", _table(row, layers, planned, f"n = {len(layers):,} layers, the heads of each pooled")
        ),
        _made(row),
    )
    return document(f"RouteSparse certificate of {row.subject}, {row.run_id}", "".join(body))


def _verdict(row: CertificateRow) -> str:
    level = certificate_words.level(row.verdict, row.tolerance)
    others = "".join(f"<li>{text(told)}.</li>" for told in certificate_words.findings(row))
    word = certificate_words.word(row.verdict, row.tolerance)
    return (
        f'<section class="verdict {level}" aria-label="Verdict"><p><span class="level">{SIGNS[level]} '
        f"{word}.</span> {text(row.sentence)}.</p><ul>{others}</ul></section>"
    )


def _table(row: CertificateRow, claims: Sequence[ClaimRow], planned: bool, caption: str) -> str:
    heads = ["", "mean error", "at most", "worst row", "its token", "beyond rounding"]
    heads += ["mass", "at least", "largest key read", "at least"] if planned else []
    cells = []
    for claim in claims:
        name = f"layer {claim.layer}" + ("" if claim.head is None else f", head {claim.head}")
        name += f", prompt {claim.batch_index + 1}" if claim.batch_index is not None and row.batch > 1 else ""
        token = "–" if claim.worst_position is None else f"{claim.worst_position:,}"
        line = [
            name,
            numbers.small(claim.mean_error),
            upper(claim.mean_error_bound),
            f"{claim.largest_error:.3g}",
        ]
        line += [token, f"{claim.beyond_rounding:,} of {claim.rows:,}"]
        if planned:
            line += [numbers.mass(claim.mass), lower(claim.mass_bound)]
            line += [numbers.share(claim.hit_rate), lower(claim.hit_rate_bound, True)]
        cells.append(line)
    told = f"{caption}. At most, at least: over all rows, at {certificate_words.confidence(row)} confidence each."
    return table(told, heads, cells)


def _named(record: CertificateRecord, words: bool) -> str:
    """The rows that somebody named: a line a label, then the tokens that are farthest off."""
    if not record.named:
        return ""
    heads, lines = certificate_words.named_table(record.named, words)
    return section(
        "Rows that were named",
        note(certificate_words.named_note(record.certificate)),
        table(certificate_words.named_caption(record.named), heads, lines, left=(0, 1, 2)),
    )


def _made(row: CertificateRow) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in sorted(json.loads(row.versions_json).items()))
    rows = [
        ("asked for", row.config_json),
        ("rows of each head", f"{row.sampled_rows:,}"),
        ("seed", row.seed),
        ("model revision", row.model_revision),
        ("versions", versions),
        ("commit", row.git_commit or "unknown"),
    ]
    return section("Made with", table("Settings and versions.", ("name", "value"), rows, left=(0, 1)))
