"""Exact rows by kernels against the twin, on a GPU or interpreted; the twin's own tests: engine/certification."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from routesparse.kernels.exact_rows import Kept, launch, naive

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
        "scale": size**-0.5,
        "softcap": softcap,
        "sinks": torch.linspace(-1.0, 4.0, 4) if sinks else None,
        "planned": planned or kept is not None,
        "kept": kept,
    }
    return (*tensors, rows), options


def moved(value, device):
    """On the device; None and numbers as they are."""
    if isinstance(value, Kept):
        return Kept(*(moved(x, device) for x in value))
    return value.to(device) if torch.is_tensor(value) else value


def launched(arguments, options, programs=PARTS * 2):
    """The kernels' result on a CPU; rows stay on the host."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    *tensors, rows = arguments
    there = {name: moved(x, device) for name, x in options.items()}
    with mock.patch.object(launch, "PROGRAMS", programs):
        found = launch.exact_rows(*(x.to(device) for x in tensors), rows, **there)
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
    named = dict(zip(("q", "k", "v", "out"), arguments, strict=False))
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
    options = {"first_keys": None, "window": None, "scale": 128**-0.5, "softcap": None, "sinks": None}
    found, again = (launch.exact_rows(q, k, v, out, rows, **options) for _ in range(2))
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


@pytest.mark.parametrize(("capability", "dtype"), [(80, "bf16"), (90, "bf16"), (90, "fp32")])
@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_the_kernels_compile_and_fit(many: bool, dtype: str, capability: int, ptx_of) -> None:
    from routesparse.kernels.exact_rows.kernel import attend_rows_kernel, compare_rows_kernel

    tile, width, warps, stages = launch.shape_of(1_000 if many else 32, 4 if dtype == "fp32" else 2)
    constants = {"HEAD": 128, "HEAD_PADDED": 128, "VALUE": 128, "VALUE_PADDED": 128, "UPCAST": False}
    constants |= {"PRECISION": "ieee" if dtype == "fp32" else "tf32", "RANGE": 1.0, "STAGES": stages}
    constants |= {
        "BLOCK": 64,
        "SINGLE": True,
        "PLANNED": True,
        "KEY_START": True,
        "WINDOW": True,
        "SOFTCAP": True,
    }
    constants |= {"ROWS": tile, "KEYS": width, "stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = {f"{name}_ptr": f"*{dtype}" for name in ("q", "k", "v", "ran")}
    types |= {f"{name}_ptr": "*fp32" for name in ("top", "sum", "reach", "out", "value", "sinks")}
    types |= {"first_key_ptr": "*i64", "key_ptr": "*i64", "scale": "fp32", "softcap": "fp32"}
    types |= {f"{name}_ptr": "*u8" for name in ("blocks", "single", "flag")}
    ptx_of(attend_rows_kernel, constants, types, capability, num_warps=warps)
    constants = {"VALUE": 128, "VALUE_PADDED": 128, "PARTS": 128, "SOME": launch.SOME, "RANGE": 1.0}
    constants |= {"SINKS": True, "PLANNED": True, "KEPT": True, "stride_od": 1}
    ptx = ptx_of(compare_rows_kernel, constants, types, capability, num_warps=4)
    assert "ld.local" not in ptx
