"""Block scores against a reading by loops in float64, and the kernels against their twin. No GPU: interpreted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from routesparse.kernels import block_score as launch
from routesparse.kernels.block_score import LEAST_SCORE, naive
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits
from routesparse.kernels.rules import NORMALISER_STEP, VARIANCE_WEIGHT

TILE = 16  # so that short prompts have many

# Rows, keys, rows scored, first keys, and the other arguments; blocks of 32 rows and 16 keys.
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
    "one-cluster": (150, 180, 8, [0, 40], {"clusters": 1}),
    "sampled-tiles": (64, 1_700, 8, [0, 400], {}),
    "sampled-tiles-one-cluster": (64, 3_000, 8, [200], {"clusters": 1}),
}
SLOW_TO_INTERPRET = {"sampled-tiles", "sampled-tiles-one-cluster"}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch) -> None:
    monkeypatch.setattr(naive, "TILE", TILE)


def problem(
    rows, keys, picked, first_keys, *, clusters=2, softcap=None, sinks=False, dtype=torch.float32, head=16
):
    """Arguments of the operation: queries of a longer chunk, keys of a longer cache, heads side by side."""
    g = torch.Generator().manual_seed(rows)
    batch, first = len(first_keys), 7
    q = torch.randn(batch, rows + first, 4, head, generator=g).to(dtype).transpose(1, 2) * 2
    k = torch.randn(batch, keys + 9, 2, head, generator=g).to(dtype).transpose(1, 2)
    k += torch.randn(batch, 2, 1, head, generator=g).to(dtype)
    place = SegmentGeometry(keys - rows, rows, keys, rows // 32, 32, 16, 1, torch.tensor(first_keys))
    sink = torch.randn(4, generator=g) if sinks else None
    return (Logits(q, k, head**-0.5, softcap, sink), first, place), {"rows": picked, "clusters": clusters}


def rows_by_loops(queries: torch.Tensor, block: int, count: int, last: int) -> list[int]:
    """Rows of one query block: half of them farthest from the mean, of the others every stride-th."""
    size = 32
    place = [min(block * size + i, last) for i in range(size)]
    own = queries[place].double()
    distance = (own - own.mean(0)).square().sum(-1).tolist()
    count = min(count, size)
    standing = sorted(range(size), key=lambda i: (-round(distance[i], 6), i))[: count // 2]
    others = [i for i in range(size) if i not in standing]
    stride = (size - count // 2) // (count - count // 2)
    picked = others[block % stride :: stride][: count - count // 2]
    return [place[i] for i in sorted(standing + picked)]


def clusters_by_loops(own: torch.Tensor, clusters: int) -> list[torch.Tensor]:
    """The keys of one KV block, apart: those near the one farthest from the mean, after one step of k-means."""
    if clusters == 1:
        return [own]

    def apart(centre: torch.Tensor) -> torch.Tensor:
        return (own - centre).square().sum(-1)

    def mean(side: torch.Tensor) -> torch.Tensor:
        return own[side].mean(0) if side.any() else torch.zeros(own.shape[1], dtype=own.dtype)

    from_mean = apart(own.mean(0))
    near = apart(own[from_mean.argmax()]) < from_mean
    near = apart(mean(near)) < apart(mean(~near))
    return [own[~near], own[near]]


def tile_weight(n: int, m: int, clusters: int, geometry, first_key: int) -> float:
    """What KV block n counts in the normalisers of query block m."""
    width = TILE // clusters
    begin = first_key // geometry.block_k // width + 1
    end = (m // 8 * 8 * geometry.block_q + geometry.position) // geometry.block_k // width
    sampled = list(range(begin, end))[NORMALISER_STEP // 2 :: NORMALISER_STEP]
    if not begin <= n // width < end or end - begin < 2 * NORMALISER_STEP:
        return 1.0
    return (end - begin) / len(sampled) if n // width in sampled else 0.0


def by_loops(logits_of, first, geometry, *, rows, clusters):
    """The definition in float64, one query block at a time; the shape of the result."""
    q, k, scale, softcap, sinks, _ = vars(logits_of).values()
    batch, heads = q.shape[:2]
    group = heads // k.shape[1]
    shape = (batch, heads, geometry.query_blocks, geometry.key_blocks)
    out = torch.full(shape, LEAST_SCORE, dtype=torch.float64)
    for b, h, m in ((b, h, m) for b in range(batch) for h in range(heads) for m in range(shape[2])):
        shares = []
        first_key = int(geometry.first_keys[b])
        weight = torch.tensor([tile_weight(n, m, clusters, geometry, first_key) for n in range(shape[3])])
        for row in rows_by_loops(q[b, h, first:], m, rows, geometry.rows - 1):
            query = q[b, h, first + row].double() * scale
            logits = torch.full((clusters, shape[3]), -torch.inf, dtype=torch.float64)
            for n in range((row + geometry.position) // geometry.block_k + 1):
                low = max(first_key, n * geometry.block_k)
                own = k[b, h // group, low : min((n + 1) * geometry.block_k, geometry.keys)].double()
                for c, cluster in enumerate(clusters_by_loops(own, clusters) if len(own) else []):
                    if len(cluster):
                        spread = cluster.var(0, correction=0)
                        logit = query @ cluster.mean(0) + VARIANCE_WEIGHT / 2 * query.square() @ spread
                        capped = softcap * (logit / softcap).tanh() if softcap else logit
                        logits[c, n] = capped + math.log(len(cluster))
            sink = -torch.inf if sinks is None else sinks[h].double()
            whole = torch.logaddexp((logits + weight.log()).logsumexp((0, 1)), torch.as_tensor(sink))
            share = (logits - whole).exp().nan_to_num(0.0).clamp_max(1.0)
            shares.append(share.sum(0).clamp_max(1.0))
        mean = torch.stack(shares).square().mean(0)
        out[b, h, m] = mean.log().mul(0.5).clamp_min(LEAST_SCORE)
    return out


def scored_by_kernels(
    arguments: tuple, options: dict[str, Any], tiles: tuple, by_table: bool, device: str
) -> torch.Tensor:
    """The launcher's result, in small tiles, where a table of addresses says where q and k lie."""
    logits, first, place = arguments
    moved = {name: x.to(device) for name, x in vars(logits).items() if torch.is_tensor(x)}
    there = logits = replace(logits, **moved)
    place = replace(place, first_keys=place.first_keys.to(device))
    before = launch.LAUNCH, launch.TILE
    # Small problems take several tiles.
    launch.LAUNCH, launch.TILE = tiles
    try:
        if by_table:
            q, k = (
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
                for x in (there.q, there.k)
            )
            table = torch.tensor([there.q.data_ptr(), there.k.data_ptr()], device=device)
            logits = replace(there, q=q, k=k, table=table)
        return launch.block_score(logits, first, place, **options).cpu()
    finally:
        launch.LAUNCH, launch.TILE = before


@pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS.keys())
def test_a_score_is_the_root_mean_square_share_of_the_scored_rows(case) -> None:
    arguments, options = problem(*case[:4], **case[4])
    wanted = by_loops(*arguments, **options)
    found = naive.block_score(*arguments, **options)
    assert found.dtype == torch.float16
    # Half precision of scores down to -20, and of features where the model's own type is short.
    near = {torch.float32: 0.01, torch.float16: 0.02, torch.bfloat16: 0.08}[arguments[0].q.dtype]
    torch.testing.assert_close(found.double(), wanted, atol=near, rtol=0)
    assert (wanted > LEAST_SCORE).any() and wanted.exp().max() > 0.01


@pytest.mark.parametrize(
    ("name", "by_table"),
    # A table changes nothing of tiles, and those are slow to interpret.
    [(name, False) for name in PROBLEMS]
    + [(name, True) for name in PROBLEMS if name not in SLOW_TO_INTERPRET],
    ids=lambda value: ("table" if value else "tensors") if isinstance(value, bool) else value,
)
def test_the_kernels_compute_what_their_twin_computes(name, by_table, in_triton) -> None:
    case = PROBLEMS[name]
    arguments, options = problem(*case[:4], **case[4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = in_triton(scored_by_kernels, arguments, options, ((64, 16, 4, 2), TILE), by_table, device)
    wanted = naive.block_score(*arguments, **options)
    torch.testing.assert_close(found.float(), wanted.float(), atol=0.02, rtol=0)


def test_products_narrower_than_a_tile_sample_the_same_tiles(in_triton, monkeypatch) -> None:
    arguments, options = problem(32, 32 * 16 * 11, 8, [0], clusters=1)
    monkeypatch.setattr(naive, "TILE", 32)
    weights = naive.sampled_tiles(arguments[2], 1, 0)
    assert (weights == 0).any() and (weights > 1).any()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = in_triton(scored_by_kernels, arguments, options, ((32, 16, 4, 2), 32), False, device)
    wanted = naive.block_score(*arguments, **options)
    torch.testing.assert_close(found.float(), wanted.float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["ragged", "padded", "one-cluster", "sampled-tiles"])
def test_the_size_of_the_pieces_changes_nothing(name, monkeypatch) -> None:
    case = PROBLEMS[name]
    arguments, options = problem(*case[:4], **case[4])
    whole = naive.block_score(*arguments, **options)
    monkeypatch.setattr(naive, "LOGITS_AT_ONCE", 1)
    monkeypatch.setattr(naive, "VALUES_AT_ONCE", 1)
    torch.testing.assert_close(naive.block_score(*arguments, **options), whole)


def test_a_tile_that_the_normaliser_leaves_out_takes_nothing_from_the_others() -> None:
    """Its logits stand hundreds of nats above all that count: its share ends at 1."""
    case = PROBLEMS["sampled-tiles"]
    arguments, options = problem(*case[:4], **case[4])
    k, place = arguments[0].k, arguments[2]
    left_out = (naive.sampled_tiles(place, 2, 0)[0] == 0).nonzero()[0, 0].item()
    k[:, :, left_out * 16 : (left_out + 1) * 16] *= 200.0
    found, wanted = naive.block_score(*arguments, **options), by_loops(*arguments, **options)
    torch.testing.assert_close(found.double(), wanted, atol=0.01, rtol=0)
    assert (found[..., left_out] > -0.5).any() and (found[..., 0] > LEAST_SCORE).any()


def test_what_the_padding_holds_and_one_key_out_of_range_leave_the_other_blocks_alone() -> None:
    arguments, options = problem(96, 300, 8, [64, 64])
    wanted, k = naive.block_score(*arguments, **options), arguments[0].k
    k[:, :, :64] = torch.nan
    torch.testing.assert_close(naive.block_score(*arguments, **options), wanted)
    k[:, :, 150, 0] = 1e20  # its square overflows
    found = naive.block_score(*arguments, **options)
    assert found.isfinite().all() and (found > LEAST_SCORE).any()


def test_a_row_that_stands_out_is_scored_and_the_rest_is_sampled_in_other_phases() -> None:
    place = SegmentGeometry(0, 500, 500, 3, 128, 64, 1, torch.zeros(1, dtype=torch.int64))
    q = torch.randn(1, 2, 500, 16, generator=torch.Generator().manual_seed(1)) * 0.1
    q[0, 1, [3, 200]] += 3.0
    rows = naive.scored_rows(q, 0, place, 32)
    assert rows.shape == (1, 2, 4, 32)
    assert 3 in rows[0, 1, 0] and 200 in rows[0, 1, 1]
    assert rows.max() <= 499, "rows past the last one are the last one"
    flat = naive.scored_rows(torch.zeros_like(q), 0, place, 32)[0, 0]
    assert flat[0].tolist() == [*range(16), *range(16, 128, 7)], "equal rows: the first ones, then a stride"
    assert flat[1].tolist() == [*range(128, 144), *range(145, 256, 7)]


def test_one_key_apart_in_its_block_keeps_its_share() -> None:
    """Sixty-three keys alike and one that a row looks up: the mean loses it, a second cluster does not."""
    place = SegmentGeometry(0, 1_024, 1_024, 8, 128, 64, 1, torch.zeros(1, dtype=torch.int64))
    g = torch.Generator().manual_seed(0)
    k, q = (torch.randn(1, 1, 1_024, 32, generator=g) * 0.3 for _ in range(2))
    k[0, 0, 100] = q[0, 0, 900] = 3.0
    score = {
        clusters: naive.block_score(Logits(q, k, 32**-0.5), 0, place, rows=32, clusters=clusters)
        for clusters in (1, 2)
    }
    logits = (q @ k.mT * 32**-0.5).masked_fill(torch.ones(1_024, 1_024).triu(1).bool(), -torch.inf)
    exact = logits.softmax(-1)[0, 0, 900].unflatten(0, (16, 64)).sum(-1)[1]
    assert exact > 0.99
    rms = score[2][0, 0, 7, 1].float().exp() * 32**0.5
    assert 0.9 < rms < 1.1 and score[1][0, 0, 7, 1].float().exp() * 32**0.5 < 0.5


@pytest.mark.parametrize("rows", [24, 1])
def test_a_number_of_rows_that_the_kernel_can_not_take_is_refused(rows) -> None:
    arguments, options = problem(*PROBLEMS["aligned"][:4])
    with pytest.raises(ValueError, match=f"{rows} rows"):
        launch.block_score.launch(*arguments, **{**options, "rows": rows})
