"""Attention of rows at given positions: the kernels and torch against every key's weight written out in float64."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from routesparse.kernels.logits import Logits
from routesparse.kernels.row_attention import Places, launch, naive

PROBLEMS = {
    "plain": {},
    "one-row": {"rows": [0]},
    "few-keys-of-many-groups": {"heads": 12, "kv_heads": 2, "keys": 70, "rows": [0, 1, 69]},
    "window": {"window": 50},
    "window-of-one-key": {"window": 1},
    "softcap-and-sinks": {"softcap": 3.0, "sinks": True},
    "sinks-and-window": {"sinks": True, "window": 90},
    "bfloat16-head-80": {"dtype": torch.bfloat16, "size": 80},
    "float16-other-value-size": {"dtype": torch.float16, "value_size": 48},
}
ROWS = [*range(3, 19), 64, *range(120, 136), *range(300, 316), 399]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def problem(
    keys=400,
    rows=ROWS,
    heads=4,
    kv_heads=2,
    size=32,
    value_size=None,
    dtype=torch.float32,
    window=None,
    softcap=None,
    sinks=False,
):
    """Arguments of row_attention, laid out as a model lays them out."""
    g = torch.Generator().manual_seed(0)

    def normal(count: int, length: int, width: int) -> torch.Tensor:
        return torch.randn(1, length, count, width, generator=g).transpose(1, 2).to(dtype)

    q, k = normal(heads, len(rows), size), normal(kv_heads, keys, size)
    logits = Logits(q, k, size**-0.5, softcap, torch.linspace(-1.0, 4.0, heads) if sinks else None)
    return logits, normal(kv_heads, keys, value_size or size), torch.tensor(rows), window


def written_out(logits, v, rows, window):
    q, k = (x[0].double() for x in (logits.q, logits.k))
    scores = q @ k.repeat_interleave(logits.group, 0).mT * logits.scale
    if logits.softcap:
        scores = logits.softcap * torch.tanh(scores / logits.softcap)
    key = torch.arange(k.shape[1])
    seen = (key <= rows[:, None]) & (key > rows[:, None] - (window or k.shape[1]))
    weights = scores.masked_fill(~seen, -torch.inf)
    if logits.sinks is not None:
        joined = logits.sinks.double().view(-1, 1, 1).expand(-1, len(rows), 1)
        weights = torch.cat([weights, joined], -1)
    weights = weights.softmax(-1)[..., : k.shape[1]]
    return (weights @ v[0].double().repeat_interleave(logits.group, 0))[None]


def launched(logits, v, rows, window, programs):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    there = Logits(*(x.to(device) if torch.is_tensor(x) else x for x in vars(logits).values()))
    with mock.patch.object(launch, "PROGRAMS", programs):
        return launch.row_attention(there, v.to(device), Places(rows.to(device)), window=window).cpu()


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_rows_read_every_key_before_them(case, backend, in_triton):
    logits, v, rows, window = problem(**case)
    wanted = written_out(logits, v, rows, window)
    limit = TOLERANCE[logits.q.dtype]
    found = (
        [naive.row_attention(logits, v, Places(rows), window=window)]
        if backend == "torch"
        # One span of all keys, and spans that end between rows.
        else [in_triton(launched, logits, v, rows, window, programs) for programs in (1, 24)]
    )
    for one in found:
        assert one.dtype == logits.q.dtype
        torch.testing.assert_close(one.double(), wanted, atol=limit, rtol=limit)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_long_prompts_rows_equal_torchs_own() -> None:
    """Needs a GPU: 12 heads on 2 KV heads of 128, 32,011 keys, bfloat16, 512 rows; equal bits twice."""
    rows = [start + i for start in range(100, 32_000, 997) for i in range(16)]
    logits, v, at, _ = problem(32_011, rows, 12, 2, 128, dtype=torch.bfloat16)
    found, again = (launched(logits, v, at, None, launch.PROGRAMS) for _ in range(2))
    assert torch.equal(found, again)
    wanted = written_out(logits, v, at, None)
    assert float((found.double() - wanted).norm() / wanted.norm()) < 4e-3
