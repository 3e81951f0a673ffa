"""Exact rows by kernels against the twin, on a GPU or interpreted; the twin's own tests: engine/certification."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from routesparse.kernels.exact_rows import Kept, launch, naive
from routesparse.kernels.logits import Logits

# Several parts share the keys, and their tiles end inside a part.
PARTS = 4
PROBLEMS = {
    "plain": {},
    "chunk": {"n_q": 90},
    "padded": {"batch": 2, "first_keys": (0, 93)},
    "window": {"window": 50},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": True},
    "more-rows-than-a-tile": {"count": 40, "n_q": 100, "n_k": 100, "blocks": 64},
    "blocks-of-a-plan": {"blocks": 64, "sinks": True},
    "small-blocks-and-single-keys": {"blocks": 48, "single": True, "window": 110},
    "single-keys-alone": {"single": True, "first_keys": (40,)},
    "a-plan-that-keeps-everything": {"planned": True, "sinks": True},
    "bfloat16-head-80": {"dtype": torch.bfloat16, "size": 80, "blocks": 64},
    "float16-other-value-size": {"dtype": torch.float16, "value_size": 48},
}


def problem(
    n_q=170,
    n_k=170,
    batch=1,
    count=5,
    size=32,
    value_size=None,
    dtype=torch.float32,
    first_keys=None,
    window=None,
    softcap=None,
    sinks=False,
    planned=False,
    blocks=0,
    single=False,
):
    """Arguments and options of exact_rows; 4 heads on 2 KV heads, laid out as a model lays them out."""
    g = torch.Generator().manual_seed(0)

    def normal(heads: int, length: int, width: int) -> torch.Tensor:
        return torch.randn(batch, length, heads, width, generator=g).transpose(1, 2).to(dtype)

    wide = value_size or size
    tensors = normal(4, n_q, size), normal(2, n_k, size), normal(2, n_k, wide), normal(4, n_q, wide)
    hidden = max(0, max(first_keys or (0,)) - (n_k - n_q))
    rows = torch.randint(hidden, n_q, (batch, 4, count), generator=g)

    def drawn(width: int) -> torch.Tensor:
        return torch.rand(batch, 4, count, width, generator=g) < 0.3

    kept = None
    if blocks or single:
        whole = drawn(-(-n_k // blocks)) if blocks else None
        kept = Kept(whole, blocks, drawn(n_k) if single else None)
    options = {
        "first_keys": None if first_keys is None else torch.tensor(first_keys),
        "window": window,
        "planned": planned or kept is not None,
        "kept": kept,
    }
    q, k, v, out = tensors
    logits = Logits(q, k, size**-0.5, softcap, torch.linspace(-1.0, 4.0, 4) if sinks else None)
    return (logits, v, out, rows), options


def moved(value, device):
    """On the device; None and numbers as they are."""
    if isinstance(value, Kept):
        return Kept(*(moved(x, device) for x in value))
    if isinstance(value, Logits):
        return Logits(*(moved(x, device) for x in vars(value).values()))
    return value.to(device) if torch.is_tensor(value) else value


def launched(arguments, options, programs=PARTS * 2):
    """The kernels' result on a CPU; rows stay on the host."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    *tensors, rows = arguments
    there = {name: moved(x, device) for name, x in options.items()}
    with mock.patch.object(launch, "PROGRAMS", programs):
        found = launch.exact_rows(*(moved(x, device) for x in tensors), rows, **there)
    return {name: moved(value, "cpu") for name, value in vars(found).items()}


@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_kernels_say_of_rows_what_the_twin_says(case, in_triton) -> None:
    """16-bit values too: weights are not rounded to their type."""
    arguments, options = problem(**case)
    found = in_triton(launched, arguments, options)
    wanted = vars(naive.exact_rows(*arguments, **options))
    assert {name for name, x in found.items() if x is not None} == {
        name for name, x in wanted.items() if x is not None
    }
    for name, value in wanted.items():
        if value is not None and value.is_floating_point():
            torch.testing.assert_close(
                found[name], value, rtol=2e-5, atol=2e-6, msg=lambda m, n=name: f"{n}: {m}"
            )
        elif value is not None:
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("place", ["out", "q", "k", "v"])
def test_nan_is_the_worst_that_can_be_said_of_a_row(place, in_triton) -> None:
    arguments, options = problem(blocks=64)
    logits, v, out, _ = arguments
    named = {"q": logits.q, "k": logits.k, "v": v, "out": out}
    named[place][0, :, 0] = torch.nan
    arguments[-1][0, :, 0] = 0
    arguments[-1][0, :, 1] = 169
    found = in_triton(launched, arguments, options)
    row = (0, slice(None), 0 if place in ("q", "out") else 1)
    assert bool(found["error"][row].isinf().all()) and bool(found["deviation"][row].isinf().all())
    assert bool(found["disagreement"][row].isinf().all())
    if place == "out":
        assert not found["finite"][row].any() and bool(found["plan_error"][row].isfinite().all())
    if place in ("q", "k"):
        assert not found["mass"][row].any() and not found["hit"][row].any()
    assert not any(value.isnan().any() for value in found.values() if value.is_floating_point())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_many_rows_of_a_long_layer_equal_float64_attention() -> None:
    """Needs a GPU: 32 heads on 8 KV heads of 128, 20,011 keys, bfloat16, 64 rows a head; equal bits twice."""
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v, out = (
        torch.randn(1, heads, 20_011, 128, generator=g, device="cuda").bfloat16() for heads in (32, 8, 8, 32)
    )
    rows = torch.randint(0, 20_011, (1, 32, 64), generator=torch.Generator().manual_seed(0))
    logits, options = Logits(q, k, 128**-0.5), {"first_keys": None, "window": None}
    found, again = (launch.exact_rows(logits, v, out, rows, **options) for _ in range(2))
    assert torch.equal(found.error, again.error) and torch.equal(found.deviation, again.deviation)
    key = torch.arange(20_011, device="cuda")
    for h in range(0, 32, 5):
        at = rows[0, h].cuda()
        logits = q[0, h, at].double() @ k[0, h // 4].double().T * 128**-0.5
        weights = logits.masked_fill(key > at.unsqueeze(1), -torch.inf).softmax(-1)
        exact = weights @ v[0, h // 4].double()
        apart = (out[0, h, at].double() - exact).norm(dim=-1)
        reach = weights @ v[0, h // 4].double().norm(dim=-1)
        torch.testing.assert_close(found.error[0, h].double(), apart / exact.norm(dim=-1), rtol=1e-5, atol=0)
        torch.testing.assert_close(found.deviation[0, h].double(), apart / reach, rtol=1e-5, atol=0)
