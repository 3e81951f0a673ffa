"""The Triton kernel compiles for the GPUs we name and fits their shared memory. Needs no GPU."""

from __future__ import annotations

import pytest

SHARED_BYTES = {80: 166_912, 90: 232_448}


@pytest.mark.parametrize(
    "capability, head_size, options",
    [(80, 128, True), (80, 256, False), (90, 64, True), (90, 128, False)],
    ids=["sm80-d128-all-options", "sm80-d256", "sm90-d64-all-options", "sm90-d128"],
)
def test_bf16_kernel_compiles(capability: int, head_size: int, options: bool, tmp_path, monkeypatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from routesparse.kernels.triton_kernel import sparse_attention_kernel

    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets in this process")
    flags = ("COLUMNS", "KEY_START", "WINDOW", "SOFTCAP", "SINKS")
    constants = {"BLOCK_Q": 128, "BLOCK_K": 64, "HEAD": head_size, "HEAD_PADDED": head_size}
    constants |= dict.fromkeys(flags, options) | {"UPCAST": False, "PRECISION": "tf32"}
    constants |= {"stride_qd": 1, "stride_kd": 1, "stride_vd": 1}
    types = {"lse_ptr": "*fp32", "sinks_ptr": "*fp32", "dense_rows_ptr": "*u8"}
    types |= {f"{name}_ptr": "*bf16" for name in ("q", "k", "v", "out")}

    def type_of(name: str) -> str:
        if name in constants:
            return "constexpr"
        default = "*i32" if name.endswith("_ptr") else "fp32" if name.endswith("_log2") else "i32"
        return types.get(name, default)

    source = triton.compiler.ASTSource(
        sparse_attention_kernel,
        {name: type_of(name) for name in sparse_attention_kernel.arg_names},
        constants,
    )
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    stages = 2 if head_size <= 128 else 1
    compiled = triton.compile(source, target=target, options={"num_warps": 8, "num_stages": stages})
    assert compiled.metadata.shared <= SHARED_BYTES[capability]
    assert "ld.local" not in compiled.asm["ptx"]
