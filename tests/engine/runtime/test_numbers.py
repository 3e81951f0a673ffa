"""Numbers at the edge of their range, through the whole decision: an exact result, a recorded reason, or an error.

Every output is compared with the float64 oracle on the keys that the recorded plan kept, and every certificate with
the true mass of these keys, so that nothing wrong goes by in silence. CPU.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from routesparse.engine.errors import NumericsError
from routesparse.kernels.reference import masked_attention

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def scaled(inputs, **factors):
    """The same inputs, tensors multiplied: scaled(inputs, q=0.0)."""
    return replace(inputs, **{name: getattr(inputs, name) * factor for name, factor in factors.items()})


def check(oracle, start, inputs):
    """Attend; the output is the oracle's on the plan's keys, and no certificate promises more than is true."""
    session, call = start()
    out, mask = call(inputs)
    kept = oracle.visible(inputs) if mask is None else mask & oracle.visible(inputs)
    exact, _ = masked_attention(
        inputs.q, inputs.k, inputs.v, kept, inputs.scale, inputs.softcap, inputs.sinks
    )
    assert out.dtype == inputs.q.dtype and out.isfinite().all()
    size = max(1.0, exact.abs().max().item())
    # Logits near 100,000 lie .008 apart in float32, and near ties between keys go either way.
    logits = (
        inputs.q.double().norm(dim=-1).max() * inputs.k.double().norm(dim=-1).max()
    ).item() * inputs.scale
    tolerance = TOLERANCE[inputs.q.dtype] + min(0.02, torch.finfo(torch.float32).eps * logits)
    assert (out.double() - exact).abs().max().item() <= tolerance * size
    promised = [choice for choice in session.trace.decisions if choice.lower_mass is not None]
    if promised:
        weights, _ = oracle.softmax(inputs)
        body = slice(0, inputs.q.shape[2] - 32)  # the tail is dense
        true = (weights * kept).sum(-1)[:, :, body]
        for choice in promised:
            first = 0 if inputs.key_start is None else int(inputs.key_start[choice.batch_index])
            rows = true[choice.batch_index, choice.head, first:]
            assert choice.lower_mass <= rows.mean().item() + 1e-6, choice
    return session, mask


EDGES = {
    "zero queries": {"q": 0.0},
    "zero keys": {"k": 0.0},
    "zero values": {"v": 0.0},
    "all zero": {"q": 0.0, "k": 0.0, "v": 0.0},
    "tiny": {"q": 1e-30, "k": 1e-30},
    "huge logits": {"q": 1e4},
    "largest logits": {"q": 1e15, "k": 1e15},
    "huge values": {"v": 1e30},
}


@pytest.mark.parametrize("factors", EDGES.values(), ids=EDGES.keys())
def test_finite_extremes_are_exact_on_the_keys_that_were_kept(oracle, start, factors):
    check(oracle, start, scaled(oracle.draw_inputs(3), **factors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_exact_to_its_rounding(oracle, start, dtype):
    check(oracle, start, oracle.draw_inputs(4, dtype=dtype))


def test_scores_that_float16_cannot_hold_are_an_error_on_a_cpu(oracle, start):
    """Logits near 100,000, beyond 65,504: bfloat16, which holds them, is served."""
    check(oracle, start, scaled(oracle.draw_inputs(4, dtype=torch.bfloat16), q=60.0, k=60.0))
    _, call = start()
    with pytest.raises(NumericsError, match=r"layer 0: NaN or Inf in .* load the model in bfloat16"):
        call(scaled(oracle.draw_inputs(4, dtype=torch.float16), q=60.0, k=60.0))


@pytest.mark.parametrize("name", ["q", "k"])
def test_logits_beyond_float32_are_an_error_and_leave_no_record(oracle, start, name):
    inputs = scaled(oracle.draw_inputs(5), q=1e20, k=1e20)
    assert getattr(inputs, name).isfinite().all()
    session, call = start()
    with pytest.raises(NumericsError, match="layer 0: NaN or Inf"):
        call(inputs)
    assert len(session.trace.decisions) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("row", [0, 350, 699], ids=["first", "middle", "last"])
def test_one_bad_number_in_one_row_is_an_error(oracle, start, value, row):
    for name in ("q", "k"):
        inputs = oracle.draw_inputs(6)
        getattr(inputs, name)[0, 0, row, 0] = value
        session, call = start()
        with pytest.raises(NumericsError, match="layer 0: NaN or Inf"):
            call(inputs)
        assert len(session.trace.decisions) == 0


@pytest.mark.parametrize("key_start", [[0, 699], [0, 690], [137, 400], [0, 668]], ids=str)
def test_prompts_of_almost_nothing_but_padding(oracle, start, key_start):
    """Rows without a key give 0, here as in the oracle."""
    session, _ = check(oracle, start, oracle.draw_inputs(7, batch=2, key_start=key_start))
    assert {choice.batch_index for choice in session.trace.decisions} <= {0, 1}


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 161])
def test_lengths_around_blocks_and_the_tail(oracle, start, n):
    session, mask = check(oracle, start, oracle.draw_inputs(8, n_q=n))
    if mask is None:  # too short to be routed: dense, untouched, and nothing claimed
        assert len(session.trace.decisions) == 0


@pytest.mark.parametrize("n_q", [1, 31, 33, 129])
def test_chunks_around_blocks_after_a_long_cache(oracle, start, n_q):
    first = oracle.draw_inputs(9, n_q=600)
    _, call = start()
    call(first)
    whole = oracle.draw_inputs(9, n_q=600 + n_q)
    kept = replace(
        whole,
        q=whole.q[:, :, 600:],
        k=torch.cat((first.k, whole.k[:, :, 600:]), 2),
        v=torch.cat((first.v, whole.v[:, :, 600:]), 2),
    )
    out, mask = call(kept)
    seen = oracle.visible(kept) if mask is None else mask & oracle.visible(kept)
    exact, _ = masked_attention(kept.q, kept.k, kept.v, seen, kept.scale)
    assert (out.double() - exact).abs().max().item() <= 1e-5
