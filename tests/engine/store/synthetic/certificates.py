"""Certificates of somebody else's attention, with a claim per layer and head."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from routesparse.engine.certificate_rows import CertificateRecord, CertificateRow, ClaimRow, NamedRow


def make_certificate(run_id="20261101-120000-ce47f1ca", *, layers=4, heads=4, plan="window=256", **changes):
    """A certificate of a plan (None: of the function alone) whose last head of the last layer loses most."""
    names = {"run_id": run_id, "created_at": "2026-11-01T12:00:00+00:00", "plan": plan}
    row = CertificateRow(
        **names,
        function="sdpa" if plan is None else "routesparse",
        model="demo",
        model_revision="5d1c0ffee0ddba11",
        tokenizer_hash="70ce2120ffee0dd1",
        prompt_name="ledger.txt",
        prompt_sha256=hashlib.sha256(b"ledger").hexdigest(),
        batch=1,
        tokens=4096,
        layers=layers,
        heads=heads,
        kv_heads=heads // 2,
        head_dim=64,
        device="Intel(R) Xeon(R) Processor",
        dtype="float32",
        versions_json=json.dumps({"torch": "2.13.0"}),
        git_commit=None,
        seed=0,
        config_json=json.dumps({} if plan is None else {"method": plan}),
        sampled_rows=64,
        confidence=0.95,
        mass_level=0.5,
        tolerance=None,
        most_beyond=0.01,
        dense_layers=0,
        verdict="exact" if plan is None else "differs",
        sentence="equal to exact attention up to rounding"
        if plan is None
        else "rows differ from exact attention",
        findings_json=json.dumps(["at 95% confidence most rows are close"]),
    )
    row = replace(row, **changes)
    asked = (row.plan, row.tolerance)
    every = [(layer, head) for layer in range(layers) for head in range(heads)]
    worst = len(every)
    claims = [_claim(run_id, "pass", 0.2, 64 * worst, *asked)]
    claims += [
        _claim(run_id, "layer", min(0.1 * (n + 1), 0.9), 64 * heads, *asked, layer=n) for n in range(layers)
    ]
    claims += [
        _claim(
            run_id,
            "head",
            0.5 * (n + 1) / worst,
            64,
            *asked,
            batch_index=0,
            layer=layer,
            head=head,
            worst=100 + n,
        )
        for n, (layer, head) in enumerate(every)
    ]
    named = [_named(row, token, layers * heads) for token in range(4088, 4096)]
    return CertificateRecord(row, tuple(claims), tuple(named))


def _named(certificate, token, rows):
    """A token of "last:8"; the last one loses most."""
    plan = certificate.plan
    error = 1e-7 if plan is None else 0.01 * (token - 4087)
    far = 0 if plan is None else rows // 4
    return NamedRow(
        run_id=certificate.run_id,
        label="last:8",
        batch_index=0,
        position=token,
        text=f"w{token}",
        rows=rows,
        mean_error=error,
        largest_error=2 * error,
        worst_layer=min(1, certificate.layers - 1),
        worst_head=min(2, certificate.heads - 1),
        nonfinite_rows=0,
        beyond_rounding=far,
        beyond_tolerance=None if certificate.tolerance is None else far,
        mass=None if plan is None else 1 - error,
        hit_rate=None if plan is None else 0.75,
    )


def _claim(
    run_id, scope, error, rows, plan, tolerance, *, batch_index=None, layer=None, head=None, worst=None
):
    planned = {"mass": 1 - error, "mass_bound": 0.95 - error, "low_rows": 3, "low_rows_bound": 0.12}
    planned |= {"hit_rate": 0.9, "hit_rate_bound": 0.8, "plan_error": error, "disagreement": 1e-6}
    error = 1e-7 if plan is None else error
    return ClaimRow(
        run_id=run_id,
        scope=scope,
        batch_index=batch_index,
        layer=layer,
        head=head,
        worst_position=worst,
        rows=rows,
        mean_error=error,
        mean_error_bound=min(1.0, error + 0.05),
        largest_error=2 * error,
        share_within=0.05 ** (1 / rows),
        nonfinite_rows=0,
        beyond_rounding=0 if plan is None else rows // 2,
        beyond_rounding_bound=0.05 if plan is None else 0.6,
        beyond_tolerance=None if tolerance is None else 0 if plan is None else rows // 4,
        beyond_tolerance_bound=None if tolerance is None else 0.005 if plan is None else 0.35,
        **({} if plan is None else planned),
    )
