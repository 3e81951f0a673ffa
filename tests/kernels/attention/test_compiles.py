"""The attention kernels and the row order compile for the GPUs we name and fit their shared memory. Needs no GPU."""

from __future__ import annotations

import pytest

FLAGS = ("COLUMNS", "KEY_START", "WINDOW", "SOFTCAP", "SINKS")


def pointer_types(*tensors: str) -> dict[str, str]:
    types = {"lse_ptr": "*fp32", "sinks_ptr": "*fp32", "dense_rows_ptr": "*u8"}
    return types | {f"{name}_ptr": "*bf16" for name in tensors}


@pytest.mark.parametrize(
    "capability, head_size, options, descriptor",
    [(80, 128, True, False), (80, 256, False, False), (90, 64, True, True), (90, 128, False, True)],
    ids=["sm80-d128-all-options", "sm80-d256", "sm90-d64-descriptor-all-options", "sm90-d128-descriptor"],
)
def test_bf16_kernel_compiles(
    capability: int, head_size: int, options: bool, descriptor: bool, ptx_of
) -> None:
    from routesparse.kernels.attention.triton_kernel import sparse_attention_kernel as kernel

    constants = {"BLOCK_Q": 128, "BLOCK_K": 64, "HEAD": head_size, "HEAD_PADDED": head_size}
    constants |= dict.fromkeys(FLAGS, options) | {"UPCAST": False, "PRECISION": "tf32"}
    constants |= {"DESCRIPTOR": descriptor, "stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = pointer_types("q", "k", "v", "out")
    for name in ("k_desc", "v_desc"):
        if descriptor:
            types[name] = f"tensordesc<bf16[1,1,64,{head_size}]>"
        else:
            constants[name] = None
    stages = 2 if head_size <= 128 else 1
    ptx = ptx_of(kernel, constants, types, capability, num_warps=8, num_stages=stages)
    assert "ld.local" not in ptx
    assert ("cp.async.bulk.tensor" in ptx) == descriptor


@pytest.mark.parametrize("columns", [False, True], ids=["blocks", "columns"])
@pytest.mark.parametrize("head_size", [64, 128], ids=["d64", "d128"])
def test_hopper_kernel_compiles(head_size: int, columns: bool, ptx_of) -> None:
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from routesparse.kernels.attention.hopper_kernel import hopper_attention_kernel as kernel
    from routesparse.kernels.attention.hopper_launch import settings

    constants = {"HEAD": head_size, "COLUMNS": columns, "SINKS": True, **settings(head_size)}
    box = gl.NVMMASharedLayout(128, 16, rank=4)
    types = pointer_types("k", "v")
    types |= {f"{name}_desc": f"tensordesc<bf16[1, 1, 64, 64],{box!r}>" for name in ("q", "k", "v", "out")}
    ptx = ptx_of(kernel, constants, types, source=GluonASTSource, num_warps=4)
    assert "wgmma.mma_async" in ptx


@pytest.mark.parametrize("capability", [80, 90], ids=["sm80", "sm90"])
def test_row_order_kernel_compiles(capability: int, ptx_of) -> None:
    from routesparse.kernels.attention.row_order_kernel import order_kernel

    constants = {"BLOCK_Q": 128, "BLOCK_K": 64, "STEPS": 256, "AT_ONCE": 1_024}
    ptx = ptx_of(order_kernel, constants, {"dense_ptr": "*u8"}, capability, num_warps=8)
    assert "ld.local" not in ptx
