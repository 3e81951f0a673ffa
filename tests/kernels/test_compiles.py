"""Every kernel that a layer or a certification launches compiles for the GPUs we name and fits their shared memory.

Needs no GPU: launches on tensors without memory say what they would run (kernels/compile_ahead.py).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide import ahead
from routesparse.engine.method.segments import split
from routesparse.engine.profiles.measure import free_settings
from routesparse.kernels import row_attention
from routesparse.kernels.betting_bound import betting_lower_bound
from routesparse.kernels.compile_ahead import wanted_by
from routesparse.kernels.exact_rows import Kept, launch
from routesparse.kernels.logits import Logits
from tests.stand_in_gpu import stand_in_gpu

triton = pytest.importorskip("triton")
SHARED_BYTES = {80: 166_912, 90: 232_448}
PADDED = {"key_start": torch.zeros(1, dtype=torch.int32), "softcap": 30.0}
SINKS = {"sinks": torch.zeros(8)}
# Capability, head size, data type, tokens, changes of the inputs and of the configuration.
LAYERS = {
    "sm80-padded-softcap": (80, 128, torch.bfloat16, 70_001, PADDED, {"certificate_rows": 200}),
    "sm90-priced": (90, 128, torch.bfloat16, 131_072, {}, {}),
    "sm90-sinks-pooled-certified": (
        *(90, 64, torch.float16, 16_384, PADDED | SINKS),
        {"probe": "pooled", "policy": "certified", "boundary_rows": 0},
    ),
}


@pytest.fixture
def on(monkeypatch, tmp_path):
    """on(capability): Triton compiles for such a GPU, in a cache of its own, and launchers believe that it is here."""
    if triton.knobs.runtime.interpret:
        pytest.skip("Triton interprets in this process")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    return lambda capability: stand_in_gpu(monkeypatch, capability, compiles=True)


def check_compiled(wanted, capability: int) -> bool:
    name = wanted.kernel.__name__
    found = wanted.kernel.warmup(*wanted.args, grid=(1,), **wanted.options)
    ptx = found.asm["ptx"]
    assert found.metadata.shared <= SHARED_BYTES[capability], name
    if name.startswith("hopper"):
        assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx
    else:
        assert "ld.local" not in ptx, name
        assert ("cp.async.bulk.tensor" in ptx) == bool(wanted.options.get("DESCRIPTOR")), name
    # Bins are counted in shared memory, not by votes of a warp.
    assert ("red.shared.add" in ptx) == (name == "score_levels_kernel"), name
    return True


@pytest.mark.parametrize("case", LAYERS.values(), ids=LAYERS.keys())
def test_a_layers_kernels_compile_without_spills(case, on) -> None:
    """The interpreter lets pass what the compiler refuses, such as a variable that changes its shape in a loop."""
    capability, head_dim, dtype, tokens, extras, changes = case
    on(capability)
    config = RouterConfig(segment_tokens=131_072, **changes)
    inputs = ahead.blank_inputs(tokens, heads=8, kv_heads=2, head_dim=head_dim, dtype=dtype)
    segments = split(tokens, tokens, config)
    wanted = ahead.kernels_of(replace(inputs, **extras), segments, free_settings(config), [None])
    assert len(wanted) > 20
    # One after another: where two threads parse at the same time, Python 3.11 and 3.12 now and then raise SystemError.
    assert all(check_compiled(one, capability) for one in wanted)


def test_attention_of_heads_of_256_fits_an_a100(on) -> None:
    on(80)
    inputs = ahead.blank_inputs(16_384, heads=8, kv_heads=2, head_dim=256, dtype=torch.bfloat16)
    config = RouterConfig(segment_tokens=131_072)
    wanted = ahead.kernels_of(inputs, split(16_384, 16_384, config), free_settings(config), [None])
    largest = [w for w in wanted if w.kernel.__name__ in ("sparse_attention_kernel", "block_score_kernel")]
    assert len(largest) == 2 and all(check_compiled(each, 80) for each in largest)


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, torch.bfloat16), (90, torch.bfloat16), (90, torch.float32)], ids=str
)
def test_the_kernels_of_exact_rows_compile(dtype: torch.dtype, capability: int, on) -> None:
    on(capability)

    count = 400 if dtype == torch.float32 else 8

    def blank(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    q, k = blank(1, 4, 8_192, 128), blank(1, 2, 8_192, 128)
    kept = Kept(blank(1, 4, count, 128, kind=torch.bool), 64, blank(1, 4, count, 8_192, kind=torch.bool))
    options = {"first_keys": blank(1, kind=torch.int64), "window": 100, "planned": True, "kept": kept}
    rows = torch.zeros(1, 4, count, dtype=torch.int64)
    logits = Logits(q, k, 1.0, 30.0, blank(4, kind=torch.float32))
    for wanted in wanted_by(lambda: launch.exact_rows(logits, k, q, rows, **options)):
        found = wanted.kernel.warmup(*wanted.args, grid=(1,), **wanted.options)
        assert found.metadata.shared <= SHARED_BYTES[capability]


@pytest.mark.parametrize(
    ("capability", "dtype"), [(80, torch.bfloat16), (90, torch.bfloat16), (90, torch.float32)], ids=str
)
@pytest.mark.parametrize("window", [None, 100], ids=str)
def test_the_kernels_of_row_attention_compile(window, dtype: torch.dtype, capability: int, on) -> None:
    on(capability)
    q, k = (torch.empty(1, h, n, 128, dtype=dtype, device="meta") for h, n in ((12, 512), (2, 16_384)))
    at = row_attention.Places(torch.empty(512, dtype=torch.int64, device="meta"))
    logits = Logits(q, k, 1.0, 30.0, torch.empty(12, device="meta"))
    asked = wanted_by(lambda: row_attention.row_attention(logits, k, at, window=window))
    assert [check_compiled(wanted, capability) for wanted in asked] == [True, True]


def test_the_betting_kernel_compiles(on) -> None:
    on(90)
    x = torch.empty(64, 128, dtype=torch.float64, device="meta")
    (wanted,) = wanted_by(lambda: betting_lower_bound(x, 0.02))
    check_compiled(wanted, 90)
