"""A certificate as one HTML page, in the manner of ``report_page.py``: no server, no network, no script."""

from __future__ import annotations

from routesparse.engine.certificate_rows import CertificateRecord
from routesparse.engine.export import certificate_words, numbers
from routesparse.engine.export.report_html import document, facts, isolated, note, section, table, verdict
from routesparse.engine.verdict import SIGNS

_MOST_HEADS = 24


def page(record: CertificateRecord, *, words: bool) -> str:
    """The page of a certificate; ``words``: with those of the named tokens, where their text was kept."""
    row = record.certificate
    whole = next(claim for claim in record.claims if claim.scope == "pass")
    layers = [claim for claim in record.claims if claim.scope == "layer"]
    heads = [claim for claim in record.claims if claim.scope == "head"]
    worst = sorted(heads, key=lambda claim: -claim.mean_error)[:_MOST_HEADS]
    level = certificate_words.level(row.verdict, row.tolerance)
    sign = f"{SIGNS[level]} {certificate_words.word(row.verdict, row.tolerance)}."
    found = [("", finding, "") for finding in certificate_words.findings(row)]
    bounds = f"At most, at least: over all rows, at {certificate_words.confidence(row)} confidence each."
    named = ""
    if record.named:
        named = section(
            "Rows that were named",
            note(certificate_words.named_note(row)),
            table(
                certificate_words.named_caption(record.named),
                *certificate_words.named_table(record.named, words),
                left=(0, 1, 2),
            ),
        )
    body = (
        f"<header><h1>Certificate of {isolated(row.subject)}</h1>",
        note(
            f"RouteSparse report · {row.run_id} · made {row.created_at} · prompt {row.prompt_name} · {row.tokens:,} "
            f"tokens · {row.model} · {numbers.device(row.device)}, {row.dtype} · attention function {row.function}"
        ),
        "</header>",
        verdict(level, sign, row.sentence, found),
        facts(certificate_words.figures(row, whole)),
        section(
            "What this says",
            note(certificate_words.promises(row, whole)),
            note(f"It does not speak of these. {certificate_words.not_promised(whole)}"),
        ),
        named,
        section(
            "Worst heads",
            table(
                f"n = the {len(worst)} worst of {len(heads):,} heads. {bounds}",
                *certificate_words.claims_table(row, worst),
            ),
        ),
        section(
            "Layers",
            table(
                f"n = {len(layers):,} layers, the heads of each pooled. {bounds}",
                *certificate_words.claims_table(row, layers),
            ),
        ),
        section(
            "Made with",
            table("Settings and versions.", ("name", "value"), certificate_words.made(row), left=(0, 1)),
        ),
    )
    return document(f"RouteSparse certificate of {row.subject}, {row.run_id}", "".join(body))
