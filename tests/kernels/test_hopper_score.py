"""Block scores by Hopper's own instructions: against the Triton kernel and the twin on a GPU, compiled without one."""

from __future__ import annotations

import pytest
import torch

from routesparse.kernels import block_score as launch
from routesparse.kernels.block_score import LEAST_SCORE, hopper_launch, naive
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import NORMALISER_STEP

# Rows, keys, head size, first keys, sinks: products with and without masks, sampled tiles, prompts shorter than a tile.
PROBLEMS = {
    "aligned": (8_192, 8_192, 128, [0], False),
    "aligned-64": (8_192, 8_192, 64, [0], False),
    "ragged": (5_003, 5_003, 128, [0], False),
    "chunk-of-sampled-tiles": (1_500, 40_111, 128, [0], False),
    "padded": (7_000, 7_000, 64, [0, 4_777], False),
    "mostly-padded": (1_000, 9_000, 128, [8_700], False),
    "short": (200, 200, 128, [0], False),
    "sinks": (6_000, 6_000, 128, [0], True),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_hopper_kernel_scores_as_the_other_kernel_and_the_twin_do(case, monkeypatch) -> None:
    """Needs a GPU of compute capability 9; on another both ways are the same kernel."""
    rows, keys, size, first_keys, sinks = case
    g = torch.Generator("cuda").manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, device="cuda").bfloat16()

    batch = len(first_keys)
    q = normal(batch, rows + 7, 4, size).transpose(1, 2) * 2
    k = normal(batch, keys + 9, 2, size).transpose(1, 2) + normal(batch, 2, 1, size)
    first = torch.tensor(first_keys, device="cuda")
    place = SegmentGeometry(keys - rows, rows, keys, rows // 128, 128, 64, 1, first)
    options = {"rows": 16, "clusters": 1, "scale": size**-0.5, "softcap": None}
    options["sinks"] = normal(4).float() if sinks else None
    found = launch.block_score(q, k, 7, place, **options)
    table = torch.tensor([q.data_ptr(), k.data_ptr()], device="cuda")
    others = (
        torch.zeros_like(q),
        torch.zeros_like(k),
    )  # of the same layout; the table says where the real ones lie
    assert torch.equal(launch.block_score(*others, 7, place, **options, table=table), found)
    twin = naive.block_score(q, k, 7, place, **options)
    monkeypatch.setattr(hopper_launch, "can_run", lambda *_: False)
    other = launch.block_score(q, k, 7, place, **options)
    # One step of half precision near LEAST_SCORE is 1/64.
    torch.testing.assert_close(found.float(), other.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(found.float(), twin.float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
@pytest.mark.parametrize("head_size", [64, 128], ids=["d64", "d128"])
def test_the_hopper_kernel_compiles_and_fits(head_size: int, sinks: bool, ptx_of) -> None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from routesparse.kernels.block_score.hopper_kernel import hopper_score_kernel as kernel

    constants = {
        "LEAST": LEAST_SCORE,
        "BLOCK_Q": 128,
        "BLOCK_K": 64,
        "STEP": NORMALISER_STEP,
        "HEAD": head_size,
    }
    constants |= {"SINKS": sinks, "INDIRECT": not sinks, "stride_qd": 1, **hopper_launch.settings(head_size)}
    types = {
        "q_ptr": "*bf16",
        "table_ptr": "*i64",
        "first_key_ptr": "*i64",
        "out_ptr": "*fp16",
        "scale": "fp32",
    }
    types |= {"count_ptr": "*fp32", "sinks_ptr": "*fp32"}
    types["desc"] = f"tensordesc<bf16[64, 64],{gl.NVMMASharedLayout(128, 16, rank=2)!r}>"
    ptx = ptx_of(kernel, constants, types, source=GluonASTSource, num_warps=4)
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx
