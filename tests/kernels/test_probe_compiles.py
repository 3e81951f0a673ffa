"""The probe's kernels compile for the GPUs we name and fit their shared memory. Needs no GPU."""

from __future__ import annotations

import importlib

import pytest

# Module, kernel, constants, warps.
KERNELS = {
    "collect": (
        "block_lse.kernel",
        "collect_rows_kernel",
        {"ROWS": 64, "SOME": 16, "BLOCK": 64, "BLOCKS": 2},
        4,
    ),
    "lse": ("block_lse.kernel", "block_lse_kernel", {"ROWS": 64, "BLOCK": 64, "BLOCKS": 2, "STAGES": 2}, 4),
    "recent": (
        "recent_marginals.kernel",
        "recent_kernel",
        {"ROWS": 64, "HEADS": 2, "KEYS": 64, "LANES": 16, "STEP": 64, "STEPS": 3, "ADD": True},
        4,
    ),
    "bands": (
        "recent_marginals.kernel",
        "band_kernel",
        {"PARTS": 4, "RATIO": 1, "STEP": 64, "STEPS": 3, "LAST": 2, "N": 32, "ADD": True},
        4,
    ),
    "rows": ("row_mass.kernel", "row_mass_kernel", {"N": 2_048, "OCTAVES": 16}, 2),
    "means": ("block_means.kernel", "block_means_kernel", {"BLOCK": 128, "LOW": True, "PLACE": 0}, 1),
    "described": (
        "block_score.kernel",
        "block_features_kernel",
        {"WEIGHT": 0.375, "MOST": 3e38, "BLOCK": 64, "CLUSTERS": 2},
        1,
    ),
    "row-distances": ("block_score.kernel", "row_distances_kernel", {"BLOCK_Q": 128, "PIECE": 64}, 2),
    "scored-rows": ("block_score.kernel", "scored_rows_kernel", {"BLOCK_Q": 128, "PICKED": 32}, 1),
    "block-score": (
        "block_score.kernel",
        "block_score_kernel",
        {
            **{
                "LEAST": -20.0,
                "BLOCK_Q": 128,
                "BLOCK_K": 64,
                "PICKED": 32,
                "ROWS": 128,
                "N": 64,
                "STAGES": 3,
            },
            **{"TILE": 64, "STEP": 4, "ALIGNED": 8, "CLUSTERS": 2},
        },
        8,
    ),
    "stamp": ("clock.kernel", "stamp_kernel", {}, 1),
}
TYPES = {
    "*bf16": ("q", "k", "x", "query", "features"),
    "*fp32": (
        "distance",
        "lse",
        "column",
        "part",
        "band",
        "block_lse",
        "sink_mass",
        "entropy",
        "local",
        "spread",
        "sinks",
    ),
    "*i64": ("table", "sample", "first_key", "low"),
    "*u8": ("finite",),
}
# Positions are int64 where the caller made them, int32 where the kernel before did.
OWN = {
    "described": {"out_ptr": "*bf16", "count_ptr": "*fp32"},
    "scored-rows": {"out_ptr": "*i32"},
    "block-score": {"out_ptr": "*fp16", "picked_ptr": "*i32", "count_ptr": "*fp32"},
    "rows": {"position_ptr": "*i64"},
    "stamp": {"out_ptr": "*i64"},
}


@pytest.mark.parametrize(
    ("capability", "options"), [(80, True), (90, False)], ids=["sm80-all-options", "sm90"]
)
@pytest.mark.parametrize("name", KERNELS)
def test_probe_kernel_compiles(name: str, capability: int, options: bool, ptx_of) -> None:
    module, function, own, warps = KERNELS[name]
    kernel = getattr(importlib.import_module(f"routesparse.kernels.{module}"), function)
    constants = {"HEAD": 128, "HEAD_PADDED": 128, "UPCAST": False, "PRECISION": "tf32"}
    constants |= dict.fromkeys(("SOFTCAP", "KEY_START", "SINKS", "INDIRECT"), options) | own
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = {f"{tensor}_ptr": kind for kind, tensors in TYPES.items() for tensor in tensors}
    types |= {"scale": "fp32", "softcap": "fp32", "out_ptr": "*fp32", **OWN.get(name, {})}
    ptx = ptx_of(kernel, constants, types, capability, num_warps=warps)
    assert "ld.local" not in ptx
