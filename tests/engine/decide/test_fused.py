"""The kernels of the probe, the builders, scoring and lowering against their torch twins.

On the GPU where there is one, else interpreted, in a process of its own: the interpreter must be chosen before
Triton is first imported.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

KINDS = {
    "ragged-n333": ({"n_q": 333}, {}),
    "by-address-n210": ({"n_q": 210}, {}, True),
    "chunk-nq150-nk411": ({"n_q": 150, "n_k": 411}, {}),
    "padded-b2-n250": ({"n_q": 250, "batch": 2, "key_start": [0, 77]}, {}),
    "softcap-sinks-n230": ({"n_q": 230, "softcap": 3.0, "sinks": True}, {}),
    "pooled-n270": ({"n_q": 270}, {"probe": "pooled"}),
    "recent-100-n300": ({"n_q": 300}, {"recent_rows": 100, "tail_tokens": 128}),
    "head-24-g4-n200": ({"n_q": 200, "head_dim": 24, "kv_heads": 1}, {}),
}
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the interpreter is slow")
# Rows of several pieces, of which some lie between the sink and the local blocks.
LONG = pytest.param(({"n_q": 9_000}, {}), id="several-pieces-n9000", marks=NEEDS_GPU)
EXACT = (
    "picture",
    "a_shape",
    "slash levels",
    "plan",
    "cover tiles",
    "cover columns",
    "probe finite",
    "row counts",
    "placed rows",
    "row order",
)
ROUTED = {
    "default-rows": ({"certificate_rows": 128}, 0.93, 21),
    "32-certificate-rows": ({"tau": 0.82}, 0.9, 20),
    "one-test": ({"max_tests": 1, "tau": 0.8}, 0.85, 9),
    "five-tests": ({"max_tests": 5, "tau": 0.8, "alpha": 0.3}, 0.8, 21),
    "no-fallback": ({"fallback": False, "tau": 0.83}, 0.9, 13),
    "no-boundary": ({"boundary_rows": 0, "recent_rows": 100, "routing_rows": 33, "tau": 0.82}, 0.9, 16),
    "200-certificate-rows": ({"certificate_rows": 200, "tau": 0.95}, 0.96, 11),
    "all-admissible": ({"tau": 0.84}, 0.0, 21),
}
MEANS = ("mass", "recent_mass", "disagreement")


def _run(name, *arguments):
    """A function of fused_run.py, wherever this runs."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("fused_run", Path(__file__).parents[1] / "fused_run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(*arguments)


@pytest.fixture(scope="module")
def run():
    """run(function of fused_run.py, arguments...), the device last."""
    if torch.cuda.is_available():
        yield lambda name, *arguments: _run(name, *arguments, "cuda")
        return
    pytest.importorskip("triton")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(os.getpid).result()
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
        yield lambda name, *arguments: pool.submit(_run, name, *arguments, "cpu").result()


@pytest.fixture(scope="module", params=[*(pytest.param(k, id=name) for name, k in KINDS.items()), LONG])
def pairs(request, run):
    """One comparison per kind of inputs; the interpreter is slow."""
    kind, changes, *by_table = request.param
    return run("compare", kind, changes, bool(by_table))


def test_every_kernel_computes_what_its_twin_computes(pairs):
    assert any(twin.any() for name, (twin, _) in pairs.items() if name.endswith("keys"))
    for name, (twin, fused) in pairs.items():
        if name in ("columns", "block_sparse", "block_top_p"):
            continue
        if name.startswith("binned"):
            # A score on a bin's edge may round to either side.
            assert (twin == fused).float().mean() > 0.995, name
        elif name.startswith(EXACT):
            assert torch.equal(twin, fused), name
        else:
            torch.testing.assert_close(
                fused, twin, atol=3e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}"
            )


def test_binned_budgets_are_nested_and_never_exceeded_and_close_to_the_ranks(pairs):
    for name in ("block_sparse", "block_top_p"):
        twin, fused = pairs[name]
        never = twin == 255
        assert (twin == fused).float().mean() > 0.9, name
        for level in range(int(twin[~never].max()) + 1):
            kept, wanted = (fused <= level).sum(-1), (twin <= level).sum(-1)
            if name == "block_sparse":
                assert (kept <= wanted).all()
            assert (kept.sum() - wanted.sum()).abs() <= 0.05 * wanted.sum()
    wanted, found = pairs["columns"]
    assert torch.equal(wanted.sort(-1).values, found.sort(-1).values)


@pytest.mark.parametrize(("changes", "gate", "width"), ROUTED.values(), ids=ROUTED.keys())
def test_the_route_kernel_decides_and_records_what_its_twins_do(run, changes, gate, width):
    pairs = run("route", changes, gate, width)
    for name, (twin, found) in pairs.items():
        if name in MEANS:
            torch.testing.assert_close(found, twin, atol=1e-6, rtol=0, msg=name)
        elif name in ("step5_bounds", "step5_lower_mass"):
            # A bisection may end one step of 2^-24 beside.
            torch.testing.assert_close(found, twin, atol=1.3e-7, rtol=0, equal_nan=True, msg=name)
        else:
            assert torch.equal(twin, found), name
    kinds = set(pairs["step5_kind"][0].tolist())
    assert len(kinds) > 1 or "fallback" in changes


def test_lap_times_are_exact_to_the_nanosecond(run):
    wanted, found = run("laps")
    assert torch.equal(wanted, found)


def test_a_whole_fused_decision_is_the_twins_but_for_the_binned_budgets(run):
    pairs = run("decide", {"n_q": 300, "batch": 2, "key_start": [0, 61]})
    twin, fused = pairs["plan density"]
    torch.testing.assert_close(fused, twin, atol=1e-12, rtol=0)
    for name in ("mass", "recent_mass", "disagreement", "density"):
        twin, fused = pairs[name]
        assert (twin - fused).abs().mean() < 0.01, name
    twin, fused = pairs["choice"]
    assert (twin == fused).float().mean() >= 0.75
    twin, fused = pairs["density by plan"]
    assert (twin - fused).abs().mean() < 0.05


@pytest.mark.parametrize(
    "case",
    [
        (700, (1, 8, 2, 128), 80, None, 0, torch.bfloat16),
        (777, (2, 4, 4, 64), 37, [0, 300], 0, torch.float16),
        (1_003, (2, 3, 1, 128), 90, [500, 0], 0, torch.float16),
        (64, (1, 2, 1, 128), 5, None, 0, torch.bfloat16),
        (2_100, (1, 7, 1, 64), 40, None, 1_500, torch.bfloat16),
        (17_000, (1, 2, 1, 64), 70, None, 0, torch.bfloat16),
    ],
    ids=["g4", "padded-d64", "padded-g3", "one-block", "chunk-of-600", "long"],
)
def test_block_log_sum_exps_of_many_rows_and_keys_are_the_oracles(run, case):
    wanted, found = run("block_lse", *case)["block_lse"]
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=1e-5)
