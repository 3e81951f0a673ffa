"""Block scores by Hopper's own instructions: against the Triton kernel and the twin. Needs a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from routesparse.kernels import block_score as launch
from routesparse.kernels.block_score import hopper_launch, naive
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits

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
    logits = Logits(q, k, size**-0.5, sinks=normal(4).float() if sinks else None)
    arguments, options = (7, place), {"rows": 16, "clusters": 1}
    found = launch.block_score(logits, *arguments, **options)
    table = torch.tensor([q.data_ptr(), k.data_ptr()], device="cuda")
    # Blank tensors of the same layout; the table says where the real ones lie.
    by_table = replace(logits, q=torch.zeros_like(q), k=torch.zeros_like(k), table=table)
    assert torch.equal(launch.block_score(by_table, *arguments, **options), found)
    twin = naive.block_score(logits, *arguments, **options)
    monkeypatch.setattr(hopper_launch, "can_run", lambda *_: False)
    other = launch.block_score(logits, *arguments, **options)
    # One step of half precision near LEAST_SCORE is 1/64.
    torch.testing.assert_close(found.float(), other.float(), atol=0.02, rtol=0)
    torch.testing.assert_close(found.float(), twin.float(), atol=0.02, rtol=0)
