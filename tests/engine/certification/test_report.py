"""What a certification says of itself: the verdict beside a tolerance, and the sentences. CPU."""

import numpy as np
import pytest
import torch

from routesparse.engine import certify, certify_attention
from routesparse.engine.certification.certify import Request
from routesparse.engine.certification.report import Settings
from routesparse.engine.errors import PromptError
from routesparse.engine.store import bundle
from tests.engine.certification import trials


def certified(rows=512, dtype=torch.float32, sparse=False, **settings):
    """Dense attention, or half of it, certified."""
    q, k, v = trials.problem(0, dtype)
    out = trials.dense(q, k, v, 0) * (0.5 if sparse else 1.0)
    tokens = q.shape[2]
    plan = np.tri(-(-tokens // 128), -(-tokens // 64), 1, dtype=bool)[None] if sparse else None
    return certify_attention(
        q, k, v, out, request=Request(Settings(**settings), rows, plan=plan, plan_name="half")
    )


def test_a_report_leaves_a_bundle_that_the_dashboard_takes_in(tmp_path):
    q, k, v = trials.problem(0, torch.float32)
    with certify(lambda q, k, v: trials.dense(q, k, v, 0) * 0.5, rows=64) as report:
        with pytest.raises(PromptError, match="nothing was certified yet"):
            report.to_bundle(tmp_path)
        report.attention(q, k, v)
    path = report.to_bundle(tmp_path)
    bundle.verify_bundle(path)
    row = bundle.read_certificate(path).certificate
    assert (row.verdict, row.function, row.model, row.prompt_name) == (
        "differs",
        "<lambda>",
        "unnamed",
        "unnamed",
    )
    assert (row.heads, row.kv_heads, row.head_dim) == (q.shape[1], k.shape[1], q.shape[3])
    assert row.tokens == k.shape[2] and row.device


def test_exact_output_passes_a_tolerance_only_where_enough_rows_show_it():
    few, enough = certified(rows=32, tolerance=0.1), certified(tolerance=0.1)
    assert few.run.beyond_tolerance == 0 and few.run.beyond_rounding == 0
    assert not few.verdict.passed and "pass more rows" in few.verdict.sentence
    assert enough.verdict.level == "exact" and certified(rows=32).verdict.level == "exact"


def test_a_tolerance_below_the_rounding_is_not_kept_by_exact_output():
    found = certified(dtype=torch.bfloat16, tolerance=1e-6)
    assert found.run.beyond_rounding == 0 and found.run.beyond_tolerance > 0
    assert found.verdict.level == "differs" and "pass more rows" not in found.verdict.sentence
    assert certified(dtype=torch.bfloat16).verdict.level == "exact"


@pytest.mark.parametrize(
    "settings", [{}, {"tolerance": 0.6, "most_beyond": 0.00123}, {"tolerance": 0.1}], ids=str
)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "half"])
def test_every_sentence_with_a_bound_names_its_confidence(settings, sparse):
    verdict = certified(sparse=sparse, confidence=0.995, **settings).verdict
    bounded = [told for told in (verdict.sentence, *verdict.findings) if "at most" in told]
    assert len(bounded) == 2 + sparse and all("at 99.5% confidence" in told for told in bounded)
    if settings.get("most_beyond") and sparse:
        assert "and 0.123% may be" in verdict.sentence
