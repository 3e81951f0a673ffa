"""Levels of block scores by top-k and by floors: the twin's rules, and the kernel against it. No GPU: interpreted."""

from __future__ import annotations

import itertools

import pytest
import torch

from routesparse.kernels import level_maps as launch
from routesparse.kernels.causal_blocks import forced_and_causal
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.level_maps import MAX_LEVELS, NEVER, naive

FLOORS = torch.tensor([1.5, 0.5, -0.7, -3.0])
BUDGETS = torch.tensor([3, 6, 9], dtype=torch.int32)
# Rows, keys and first keys; blocks of 32 rows and 16 keys.
PLACES = {
    "ragged": (300, 300, [0]),
    "chunk": (70, 300, [0]),
    "padded": (270, 270, [0, 133]),
}


def problem(rows, keys, first_keys):
    """Scores with a head of equal ones, one with an outlier, and a question that raises some."""
    g = torch.Generator().manual_seed(rows)
    batch = len(first_keys)
    place = SegmentGeometry(keys - rows, rows, keys, rows // 32, 32, 16, 1, torch.tensor(first_keys))
    scores = torch.randn(batch, 3, place.query_blocks, place.key_blocks, generator=g).half()
    scores[:, 1], scores[:, 2, :, 2] = -2.0, 15.0
    question = torch.randn(batch, 3, place.key_blocks, generator=g) - 1.0
    question[:, 1] = -torch.inf
    return scores, question, place, BUDGETS, FLOORS


def by_kernel(arguments, device):
    """The launcher's results, rows in small pieces."""
    scores, question, place, *levels = arguments
    place = SegmentGeometry(*list(vars(place).values())[:-1], place.first_keys.to(device))
    before, launch.SCORE_CHUNK = launch.SCORE_CHUNK, 4
    try:
        found = launch.score_levels(
            scores.to(device), question.to(device), place, *(x.to(device) for x in levels)
        )
        return [x.cpu() for x in found]
    finally:
        launch.SCORE_CHUNK = before


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_level_of_the_floors_is_the_first_floor_that_a_score_reaches(place) -> None:
    scores, question, place, budgets, floors = problem(*place)
    _, found, _, counts = naive.score_levels(scores, question, place, budgets, floors)
    forced, causal = (x.expand(scores.shape) for x in forced_and_causal(place))
    for at in itertools.product(*map(range, scores.shape)):
        b, h, _, n = at
        score = max(float(scores[at]), float(question[b, h, n]))
        reached = [level for level, floor in enumerate(floors.tolist()) if score >= floor]
        level = NEVER if not causal[at] else 0 if forced[at] else min(reached, default=NEVER)
        assert found[at] == level
    for level in range(len(floors)):
        assert torch.equal((found <= level).sum(-1).int(), counts[..., level])


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_the_kernel_computes_what_its_twin_computes(place, in_triton) -> None:
    arguments = problem(*place)
    wanted = naive.score_levels(*arguments)
    found = in_triton(by_kernel, arguments, "cuda" if torch.cuda.is_available() else "cpu")
    # A score on a bin's edge may round to either side.
    assert (found[0] == wanted[0]).float().mean() > 0.995
    assert (found[2] == wanted[2]).float().mean() > 0.98
    assert torch.equal(found[1], wanted[1]) and torch.equal(found[3], wanted[3])


@pytest.mark.parametrize("levels", [naive.score_levels, launch.score_levels.launch], ids=["naive", "kernel"])
def test_more_levels_than_a_row_can_hold_are_refused(levels) -> None:
    scores, question, place, budgets, _ = problem(*PLACES["chunk"])
    with pytest.raises(ValueError, match=f"17 floors; {MAX_LEVELS} of each"):
        levels(scores, question, place, budgets, -torch.arange(17.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("position", [0, 9_600], ids=["whole", "chunk"])
def test_bins_in_shared_memory_are_those_of_the_portable_kernel(monkeypatch, position) -> None:
    """Needs a GPU. Rows of several pieces, some of them between the sink and the local blocks; one prompt is padded."""
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
