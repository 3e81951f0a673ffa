"""The Triton kernels compile for the GPUs we name and fit their shared memory. Needs no GPU."""

from __future__ import annotations

import importlib

import pytest

SMALL_STEPS = {
    "place": ("probe_rows.kernel", "place_kernel", {"P": 512}),
    "describe-units": ("descriptors.kernel", "describe_units_kernel", {"ROWS": 64, "OCTAVES": 16}),
    "route-priced": (
        "route.kernel",
        "route_kernel",
        {"BOUNDARY": 16, "TESTS": 3, "ROWS": 64, "CERTIFICATE": 128, "C": 32, "S": 4},
    ),
    "route-certified-one-test": (
        "route.kernel",
        "route_kernel",
        {"following_ptr": None, "BOUNDARY": 0, "TESTS": 1, "ROWS": 64, "CERTIFICATE": 128, "C": 16, "S": 2},
    ),
    "climb": (
        "route.climb_kernel",
        "climb_kernel",
        {"TESTS": 3, "FALLBACK": True, "CERTIFICATE": 128, "HEADS": 16},
    ),
    "certify": (
        "route.kernel",
        "certify_kernel",
        {"BISECTIONS": 24, "BITS": 4, "TESTS": 3, "FALLBACK": True, "CERTIFICATE": 128, "S": 4},
    ),
    "certify-logarithms": (
        "route.kernel",
        "certify_kernel",
        {"BISECTIONS": 24, "BITS": 4, "TESTS": 1, "FALLBACK": False, "CERTIFICATE": 256, "S": 2},
    ),
    "betting": (
        "betting_bound.kernel",
        "betting_kernel",
        {"TARGET": 4.1, "BET_CAP": 0.98, "BISECTIONS": 24, "BITS": 4, "C": 128},
    ),
    "single": ("pictures.kernel", "single_kernel", {"BLOCK_K": 64, "LEVELS": 6}),
    "laps": ("clock.kernel", "laps_kernel", {"COUNT": 16}),
    "picture": (
        "pictures.kernel",
        "picture_kernel",
        {"BLOCK_Q": 128, "BLOCK_K": 64, "COLUMNS": 1024, "MASK_COLUMNS": 256}
        | {"PARTS": 2, "MASK_PARTS": 4, "LAST": 15, "STRIDES": ((1, 0), (32, 1), (32, 1)), "COLUMNS_OF": 1},
    ),
}
DOUBLE = ("draws", "settings", "scratch", "x", "bound", "laps")
SINGLE = ("mass", "row_mass", "tiles", "density", "entropy", "local", "agreement", "spread")
WHOLE = ("first_key", "choice", "times", "rows", "drawn")
BYTES = ("single", "finite", "masks")
MAPS = ("*u8",) * 3  # an odd number of families, of which the first has one map for all heads


@pytest.mark.parametrize(("module", "name", "constants"), SMALL_STEPS.values(), ids=SMALL_STEPS.keys())
def test_the_kernels_of_the_small_steps_compile(module: str, name: str, constants: dict, ptx_of) -> None:
    """The interpreter lets pass what the compiler refuses, such as a variable that changes its shape in a loop."""
    kernel = getattr(importlib.import_module(f"routesparse.kernels.{module}"), name)
    types = {f"{argument}_ptr": "*fp64" for argument in DOUBLE}
    types |= {f"{argument}_ptr": "*fp32" for argument in SINGLE}
    types |= {f"{argument}_ptr": "*i64" for argument in WHOLE}
    types |= {f"{argument}_ptr": "*u8" for argument in BYTES} | {"picture_ptr": "*fp16", "maps": MAPS}
    types["columns_ptr"] = "*i64" if name == "single_kernel" else "*fp32"
    types["out_ptr"] = {"place_kernel": "*i64", "describe_units_kernel": "*fp32"}.get(name, "*fp64")
    ptx = ptx_of(kernel, constants, types, is_aligned=False, num_warps=4, enable_fp_fusion=False)
    assert "ld.local" not in ptx


INDEX_KERNELS = {
    "score": (
        "level_maps.score_kernel",
        "score_levels_kernel",
        {"CHUNK": 128, "BITS": 8, "FLOORS": 7, "PTX": True},
    ),
    "slash": ("level_maps.kernel", "slash_levels_kernel", {"N": 256, "FROM_LAST": False}),
    "window": ("level_maps.kernel", "slash_levels_kernel", {"N": 256, "FROM_LAST": True}),
    "readers": ("level_maps.kernel", "readers_kernel", {"DEPTH": 6, "CHUNK": 64, "ROWS": 4, "N": 256}),
    "bands": ("level_maps.kernel", "band_levels_kernel", {"BUDGETS": 6, "SOME": 16, "N": 256}),
    "by-position": ("retained_mass.kernel", "by_position_kernel", {"ROWS": 32}),
    "columns": ("retained_mass.kernel", "column_mass_kernel", {"CHUNK": 512, "ROWS": 32, "COLUMNS": 64}),
    "rows": ("retained_mass.kernel", "cover_rows_kernel", {"PIECES": 32, "N": 128}),
    "totals": ("retained_mass.kernel", "totals_kernel", {"N": 1_024}),
    "lower": ("lower_plan.kernel", "lower_kernel", {"OF_LANE": 8}),
    "density": ("lower_plan.kernel", "density_kernel", {"N": 1_024}),
}
OF_ALL = {"BLOCK_Q": 128, "BLOCK_K": 64, "LOCAL_BLOCKS": 1, "DEPTHS": (4, 6, 7), "CANDIDATES": 18}
OF_ALL |= {"STRIDES": ((1, 0), (32, 1), (32, 1)), "COLUMNS_OF": 1, "BY_ROW": (False, False, True)}
OF_ALL |= {"HEAD": 128, "HEAD_PADDED": 128, "UPCAST": False, "PRECISION": "tf32"}
TYPES = {
    "*fp16": ("scores",),
    "*bf16": ("q", "k"),
    "*fp32": ("question", "bands", "floors", "lse", "mass", "sink_mass", "column_mass"),
    "*i64": ("first_key", "row", "position", "choice"),
    "*u8": ("band_levels", "levels", "dense"),
}


@pytest.mark.parametrize(
    ("capability", "options"), [(80, True), (90, False)], ids=["sm80-all-options", "sm90"]
)
@pytest.mark.parametrize("name", INDEX_KERNELS)
def test_index_kernel_compiles_without_spills(name: str, capability: int, options: bool, ptx_of) -> None:
    module, function, own = INDEX_KERNELS[name]
    kernel = getattr(importlib.import_module(f"routesparse.kernels.{module}"), function)
    constants = OF_ALL | dict.fromkeys(("SOFTCAP", "POOLED", "INDIRECT"), options) | own
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = {f"{tensor}_ptr": kind for kind, tensors in TYPES.items() for tensor in tensors}
    types |= {"maps": MAPS, "counts": ("*i32",) * 3}
    types |= {"scale": "fp32", "softcap": "fp32", "table_ptr": "*i64" if name == "columns" else "*i32"}
    types["out_ptr"] = "*fp64" if name == "density" else "*fp32"
    warps = {"columns": 2, "by-position": 4, "totals": 4, "density": 4, "bands": 4}.get(name, 1)
    ptx = ptx_of(kernel, constants, types, capability, num_warps=warps)
    assert "ld.local" not in ptx
    # Bins are counted in shared memory, not by votes of a warp.
    assert ("red.shared.add" in ptx) == (name == "score")
