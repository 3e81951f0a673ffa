"""A certified prefill as the records of a bundle (``engine/certificate_rows.py``)."""

from __future__ import annotations

import datetime
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from routesparse.engine.certificate_rows import MOST_TOKEN_TEXT, CertificateRecord, CertificateRow
from routesparse.engine.certification.report import Certified
from routesparse.engine.provenance import git_commit, now, versions


@dataclass(frozen=True)
class About:
    """What a Certified does not know of the model and the prompt that it was made from."""

    model: str = "unnamed"
    model_revision: str = ""
    tokenizer_hash: str = ""
    prompt_name: str = "unnamed"  # a label, never a path
    prompt_sha256: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # what was asked for
    text_of: Callable[[int], str] | None = None  # of a token; None: the prompt's text is not kept


def record_of(found: Certified, about: About) -> CertificateRecord:
    """The certificate, its claims (the pass's, each layer's, each head's) and the named rows."""
    run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    batch, heads, sampled = found.scores[0]["error"].shape
    settings, verdict = found.settings, found.verdict
    certificate = CertificateRow(
        run_id=run_id,
        created_at=now(),
        function=found.name,
        plan=found.plan,
        model=about.model,
        model_revision=about.model_revision,
        tokenizer_hash=about.tokenizer_hash,
        prompt_name=about.prompt_name,
        prompt_sha256=about.prompt_sha256,
        batch=batch,
        tokens=found.keys,
        layers=len(found.layers),
        heads=heads,
        kv_heads=found.kv_heads,
        head_dim=found.head_dim,
        device=found.device,
        dtype=found.dtype,
        versions_json=json.dumps(versions(), sort_keys=True),
        git_commit=git_commit(),
        seed=found.seed,
        config_json=json.dumps(dict(about.config), sort_keys=True),
        sampled_rows=sampled,
        confidence=settings.confidence,
        mass_level=settings.mass_level,
        tolerance=settings.tolerance,
        most_beyond=settings.most_beyond,
        dense_layers=len(found.dense_layers),
        verdict=verdict.level,
        sentence=verdict.sentence,
        findings_json=json.dumps(verdict.findings),
    )
    text_of = about.text_of
    named = tuple(
        replace(row, run_id=run_id, text=None if text_of is None else text_of(row.position)[:MOST_TOKEN_TEXT])
        for row in found.named
    )
    claims = tuple(replace(one, run_id=run_id) for one in (found.run, *found.by_layer, *found.by_head))
    return CertificateRecord(certificate, claims, named)
