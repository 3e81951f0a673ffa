"""Levels of block scores: bins counted in shared memory against Triton's own histogram. Needs a GPU."""

import pytest
import torch

from routesparse.kernels import level_maps as launch
from routesparse.kernels.geometry import SegmentGeometry

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("position", [0, 9_600], ids=["whole", "chunk"])
def test_bins_in_shared_memory_are_those_of_the_portable_kernel(monkeypatch, position):
    """Rows of several pieces, of which some lie between the sink and the local blocks; one prompt is padded."""
    rows, keys = 8_900, 8_900 + position
    first_keys = torch.tensor([0, 1_234], device="cuda")
    place = SegmentGeometry(position, rows, keys, rows // 128, 128, 64, 1, first_keys)
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (2, 3, place.query_blocks, place.key_blocks)
    scores = torch.randn(shape, device="cuda", generator=generator).half()
    scores[0, 0, :, 5] = 30.0
    scores[0, 1] = 1.0
    question = torch.randn(2, 3, place.key_blocks, device="cuda", generator=generator) - 1.0
    budgets = torch.tensor([3, 17, 40, 90], dtype=torch.int32, device="cuda")
    floors = torch.tensor([1.5, 0.5, -0.7], device="cuda")
    found = []
    for ptx in (True, False):
        monkeypatch.setattr(launch, "knows_ptx", lambda ptx=ptx: ptx)
        found.append(launch.score_levels.launch(scores, question, place, budgets, floors))
    for ours, portable in zip(*found, strict=True):
        assert (ours == portable).float().mean() > 0.999
    top_k, floor, top_k_count, floor_count = found[0]
    for levels, counts in ((top_k, top_k_count), (floor, floor_count)):
        counted = torch.stack([(levels <= level).sum(-1) for level in range(counts.shape[-1])], -1)
        assert torch.equal(counted.int(), counts)
    # A row that must read more than a budget's blocks reads those alone.
    assert (top_k_count <= budgets.clamp_min(4)).all()
