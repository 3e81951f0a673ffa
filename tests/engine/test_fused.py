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
EXACT = ("a_shape", "slash levels", "plan", "cover tiles", "cover columns", "probe finite", "row counts")


def _compare(kind, changes, device, by_table):
    import importlib.util

    spec = importlib.util.spec_from_file_location("fused_run", Path(__file__).with_name("fused_run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compare(kind, changes, device, by_table)


@pytest.fixture(scope="module")
def compare():
    """compare(kind, changes, by_table) -> {name: (twin, fused)}."""
    if torch.cuda.is_available():
        yield lambda kind, changes, by_table=False: _compare(kind, changes, "cuda", by_table)
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
        yield lambda kind, changes, by_table=False: pool.submit(
            _compare, kind, changes, "cpu", by_table
        ).result()


@pytest.fixture(scope="module", params=KINDS.values(), ids=KINDS.keys())
def pairs(request, compare):
    """One comparison per kind of inputs; the interpreter is slow."""
    return compare(*request.param)


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
