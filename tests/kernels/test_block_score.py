"""Block scores against a reading by loops in float64, and the kernels against their twin. No GPU: interpreted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from routesparse.kernels.block_score import LEAST_SCORE, launch, naive
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import VARIANCE_WEIGHT

# Rows, keys, sampled rows, first keys, and the other arguments; blocks of 32 rows and 16 keys.
PROBLEMS = {
    "aligned": (128, 128, 8, [0], {}),
    "ragged": (150, 150, 8, [0], {}),
    "chunk": (75, 333, 4, [0], {}),
    "padded": (180, 180, 8, [0, 71], {}),
    "mostly-padded": (96, 300, 8, [250, 16], {}),
    "softcap-sinks": (96, 96, 8, [0], {"softcap": 2.0, "sinks": True}),
    "every-row": (70, 70, 64, [0], {}),
    "half": (90, 130, 8, [5], {"dtype": torch.float16}),
    "bfloat16-head-24": (90, 130, 8, [5], {"dtype": torch.bfloat16, "head": 24}),
}


def problem(rows, keys, picked, first_keys, *, softcap=None, sinks=False, dtype=torch.float32, head=16):
    """Arguments of the operation: queries of a longer chunk, keys of a longer cache, heads side by side."""
    g = torch.Generator().manual_seed(rows)
    batch, first = len(first_keys), 7
    q = torch.randn(batch, rows + first, 4, head, generator=g).to(dtype).transpose(1, 2) * 2
    k = torch.randn(batch, keys + 9, 2, head, generator=g).to(dtype).transpose(1, 2)
    k += torch.randn(batch, 2, 1, head, generator=g).to(dtype)
    place = SegmentGeometry(keys - rows, rows, keys, rows // 32, 32, 16, 1, torch.tensor(first_keys))
    sink = torch.randn(4, generator=g) if sinks else None
    return (q, k, first, place), {"rows": picked, "scale": head**-0.5, "softcap": softcap, "sinks": sink}


def by_loops(q, k, first, geometry, *, rows, scale, softcap, sinks):
    """The definition in float64, one query block at a time; the shape of the result."""
    batch, heads = q.shape[:2]
    group = heads // k.shape[1]
    shape = (batch, heads, geometry.query_blocks, geometry.key_blocks)
    out = torch.full(shape, LEAST_SCORE, dtype=torch.float64)
    step = geometry.block_q // min(rows, geometry.block_q)
    for b, h, m in ((b, h, m) for b in range(batch) for h in range(heads) for m in range(shape[2])):
        shares = []
        for j in range(min(rows, geometry.block_q)):
            row = min(m * geometry.block_q + step * j + (j + m) % step, geometry.rows - 1)
            query = q[b, h, first + row].double() * scale
            logits = torch.full(shape[3:], -torch.inf, dtype=torch.float64)
            for n in range((row + geometry.position) // geometry.block_k + 1):
                low = max(int(geometry.first_keys[b]), n * geometry.block_k)
                own = k[b, h // group, low : min((n + 1) * geometry.block_k, geometry.keys)].double()
                if len(own):
                    spread = own.var(0, correction=0)
                    logit = query @ own.mean(0) + VARIANCE_WEIGHT / 2 * query.square() @ spread
                    logits[n] = (softcap * (logit / softcap).tanh() if softcap else logit) + math.log(
                        len(own)
                    )
            sink = -torch.inf if sinks is None else sinks[h].double()
            whole = torch.logaddexp(logits.logsumexp(0), torch.as_tensor(sink))
            shares.append((logits - whole).exp().nan_to_num(0.0))
        mean = torch.stack(shares).square().mean(0)
        out[b, h, m] = mean.log().mul(0.5).clamp_min(LEAST_SCORE)
    return out


def scored_by_kernels(arguments: tuple, options: dict[str, Any], by_table: bool, device: str) -> torch.Tensor:
    """The launcher's result, in small tiles where a table of addresses says where q and k lie."""
    q, k, first, place = arguments
    q, k = q.to(device), k.to(device)
    place = SegmentGeometry(*list(vars(place).values())[:-1], place.first_keys.to(device))
    options = {name: x.to(device) if torch.is_tensor(x) else x for name, x in options.items()}
    before = launch.LAUNCH
    # Small problems take several tiles.
    launch.LAUNCH = (64, 16, 4, 2)
    try:
        if by_table:
            options["table"] = torch.tensor([q.data_ptr(), k.data_ptr()], device=device)
            kept = q, k
            q, k = (torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device) for x in kept)
        return launch.block_score(q, k, first, place, **options).cpu()
    finally:
        launch.LAUNCH = before


@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_score_is_the_root_mean_square_share_of_the_sampled_rows(case) -> None:
    arguments, options = problem(*case[:4], **case[4])
    wanted = by_loops(*arguments, **options)
    found = naive.block_score(*arguments, **options)
    assert found.dtype == torch.float16
    # Half precision of scores down to -20, and of features where the model's own type is short.
    near = {torch.float32: 0.01, torch.float16: 0.02, torch.bfloat16: 0.08}[arguments[0].dtype]
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=0)
    assert (wanted > LEAST_SCORE).any() and wanted.exp().max() > 0.1


@pytest.mark.parametrize("by_table", [False, True], ids=["tensors", "table"])
@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_the_kernels_compute_what_their_twin_computes(case, by_table, in_triton) -> None:
    arguments, options = problem(*case[:4], **case[4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = in_triton(scored_by_kernels, arguments, options, by_table, device)
    wanted = naive.block_score(*arguments, **options)
    torch.testing.assert_close(found.float(), wanted.float(), atol=0.02, rtol=0)


def test_chunks_of_query_blocks_change_nothing(monkeypatch) -> None:
    arguments, options = problem(*PROBLEMS["padded"][:4])
    whole = naive.block_score(*arguments, **options)
    monkeypatch.setattr(naive, "LOGITS_AT_ONCE", 1)
    torch.testing.assert_close(naive.block_score(*arguments, **options), whole)


def test_neighbouring_query_blocks_sample_other_phases_of_their_strides() -> None:
    place = SegmentGeometry(0, 500, 500, 3, 128, 64, 1, torch.zeros(1, dtype=torch.int64))
    rows = naive.sampled_rows(place, 32)
    assert rows.shape == (4, 32)
    inside = rows[:3] - 128 * torch.arange(3).unsqueeze(-1)
    assert (inside // 4 == torch.arange(32)).all()
    assert (rows[1] - 128 != rows[0]).all()
    assert rows.max() == 499, "rows past the last one are the last one"


def test_a_number_of_rows_that_the_kernel_can_not_take_is_refused() -> None:
    arguments, options = problem(*PROBLEMS["aligned"][:4])
    with pytest.raises(ValueError, match="24 sampled rows"):
        launch.block_score(*arguments, **{**options, "rows": 24})
