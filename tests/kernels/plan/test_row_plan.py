"""The row plan: lowering against a slow twin, masks and densities, joining, and every broken contract."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from routesparse.kernels.interface import PlanError, RowPlan, sparse_attention
from routesparse.kernels.plan.row_plan import allowed_keys

# n_q, n_k, block_q, block_k, key_start, window
SHAPES = [
    (256, 256, 128, 64, None, None),
    (300, 417, 128, 64, None, None),
    (130, 200, 32, 64, None, None),
    (300, 333, 128, 64, (0, 150), None),
    (300, 417, 128, 64, None, 100),
    (257, 257, 64, 32, (40, 256), 50),
    (1, 90, 128, 64, (3, 89), None),
]
shapes = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda s: f"q{s[0]}-k{s[1]}-{s[2]}x{s[3]}-start{s[4]}-window{s[5]}".replace(" ", "")
)


def random_inputs(shape, seed: int = 0):
    """Block mask [2, 3, M, Nk], columns [2, 3, 40] with repeats and out-of-range keys, counts, dense rows."""
    n_q, n_k, block_q, block_k, key_start, window = shape
    generator = torch.Generator().manual_seed(seed)
    rows = (2, 3, -(-n_q // block_q))
    mask = torch.rand(*rows, -(-n_k // block_k), generator=generator) < 0.35
    columns = torch.randint(-5, n_k + 5, (2, 3, 40), generator=generator)
    column_count = torch.randint(0, 41, (2, 3), generator=generator)
    dense_rows = torch.rand(rows, generator=generator) < 0.2
    start = None if key_start is None else torch.tensor(key_start, dtype=torch.int32)
    return mask, columns, column_count, dense_rows, {"key_start": start, "window": window}


def random_plan(shape, seed: int = 0, **changes) -> RowPlan:
    mask, columns, column_count, dense_rows, options = random_inputs(shape, seed)
    lists = {"columns": columns, "column_count": column_count, "dense_rows": dense_rows}
    return RowPlan.from_block_mask(mask, *shape[:4], **{**lists, **options, **changes}).validate()


def slow_lists(shape, mask, columns, column_count, options, batch: int, head: int, i: int):
    """Blocks and columns of one row by the definition, key by key."""
    n_q, n_k, block_q, block_k = shape[:4]
    first = n_k - n_q + i * block_q
    last = min(first + block_q, n_k) - 1
    start = 0 if options["key_start"] is None else int(options["key_start"][batch])

    def read(key: int) -> bool:
        inside = options["window"] is None or any(key > p - options["window"] for p in range(first, last + 1))
        return start <= key <= last and inside

    blocks = []
    for block in range(-(-n_k // block_k)):
        keys = range(block * block_k, min((block + 1) * block_k, n_k))
        diagonal = any(first <= key <= last for key in keys)
        if (bool(mask[batch, head, i, block]) or diagonal) and any(read(key) for key in keys):
            blocks.append(block)
    wanted = columns[batch, head, : int(column_count[batch, head])].tolist()
    singles = sorted({key for key in wanted if 0 <= key < n_k and read(key) and key // block_k not in blocks})
    return blocks, singles


@shapes
def test_from_block_mask_equals_the_slow_twin(shape) -> None:
    mask, columns, column_count, dense_rows, options = random_inputs(shape)
    plan = random_plan(shape)
    for batch, head, i in torch.cartesian_prod(*(torch.arange(size) for size in mask.shape[:3])).tolist():
        row = (batch, head, i)
        blocks, singles = slow_lists(shape, mask, columns, column_count, options, batch, head, i)
        if dense_rows[row]:
            blocks, singles = [], []
        assert plan.blocks[row][: plan.block_count[row]].tolist() == blocks
        assert plan.columns[row][: plan.column_count[row]].tolist() == singles
    assert torch.equal(plan.dense_rows, dense_rows)


@shapes
def test_mask_holds_the_listed_keys_within_causality_padding_and_window(shape) -> None:
    plan = random_plan(shape)
    mask = plan.to_mask()
    n_q, n_k, block_q, block_k, key_start, window = shape
    for batch, head, r in torch.cartesian_prod(*(torch.arange(size) for size in mask.shape[:3])).tolist():
        row = (batch, head, r // block_q)
        listed = set(plan.columns[row][: plan.column_count[row]].tolist())
        for block in plan.blocks[row][: plan.block_count[row]].tolist():
            listed |= set(range(block * block_k, (block + 1) * block_k))
        query = n_k - n_q + r
        lowest = max(
            0 if key_start is None else key_start[batch], 0 if window is None else query - window + 1
        )
        keys = range(lowest, query + 1)
        expected = [key for key in keys if plan.dense_rows[row] or key in listed]
        assert mask[batch, head, r].nonzero().flatten().tolist() == expected


@shapes
def test_density_equals_the_mean_of_the_mask_over_the_causal_area(shape) -> None:
    plan = random_plan(shape)
    kept = plan.to_mask().double().sum((-1, -2))
    area = allowed_keys(plan).expand(plan.batch, 1, -1, -1).double().sum((-1, -2))
    torch.testing.assert_close(plan.head_density(), kept / area)
    assert plan.density == pytest.approx(float(kept.sum() / (area.sum() * plan.heads)))
    dense = RowPlan.dense(2, 3, *shape[:4], key_start=plan.key_start, window=plan.window)
    assert dense.density == 1.0


def test_density_of_nothing_but_padding_is_zero() -> None:
    plan = RowPlan.dense(1, 1, 10, 10, key_start=torch.tensor([10], dtype=torch.int32))
    assert plan.density == 0.0


def test_a_row_above_its_capacity_becomes_dense() -> None:
    shape = SHAPES[1]
    free = random_plan(shape, dense_rows=None)
    tight = random_plan(shape, dense_rows=None, block_capacity=4, column_capacity=9)
    overflow = (free.block_count > 4) | (free.column_count > 9)
    assert overflow.any() and not overflow.all()
    assert torch.equal(tight.dense_rows, overflow)
    assert torch.equal(tight.to_mask()[~expand(tight, overflow)], free.to_mask()[~expand(free, overflow)])
    assert tight.blocks.shape[-1] == 4 and tight.columns.shape[-1] == 9


def expand(plan: RowPlan, rows: torch.Tensor) -> torch.Tensor:
    """[B, H, M] to [B, H, n_q]."""
    return rows.repeat_interleave(plan.block_q, -1)[..., : plan.n_q]


@pytest.mark.parametrize("rows", [(128, 128, 44), (256, 1), (300,)], ids=str)
def test_concat_of_segments_reads_what_each_segment_reads(rows: tuple[int, ...]) -> None:
    """Segments of a chunk of 300 rows after 117 earlier keys."""
    offset, plans, masks = 117, [], []
    for seed, count in enumerate(rows):
        shape = (count, offset + count, 128, 64, (3, 60), None)
        plans.append(random_plan(shape, seed, block_capacity=7 + seed, column_capacity=40 - seed))
        masks.append(torch.nn.functional.pad(plans[-1].to_mask(), (0, 117 + sum(rows) - shape[1])))
        offset += count
    whole = RowPlan.concat(plans).validate()
    assert (whole.n_q, whole.n_k) == (sum(rows), 117 + sum(rows))
    assert torch.equal(whole.to_mask(), torch.cat(masks, 2))
    q, k = torch.randn(2, 3, whole.n_q, 32), torch.randn(2, 1, whole.n_k, 32)
    out, _ = sparse_attention(q, k, k, whole)
    parts, begin = [], 0
    for plan in plans:
        seen = k[:, :, : plan.n_k]
        parts.append(sparse_attention(q[:, :, begin : begin + plan.n_q], seen, seen, plan)[0])
        begin += plan.n_q
    torch.testing.assert_close(out, torch.cat(parts, 2), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "following, message",
    [
        (RowPlan.dense(1, 2, 100, 300), "starts at key 200 but segment 0 ends at 256"),
        (RowPlan.dense(1, 3, 100, 356), "differ in heads: 2 and 3"),
        (RowPlan.dense(1, 2, 100, 356, window=9), "differ in window: None and 9"),
        (RowPlan.dense(1, 2, 100, 356, sinks=torch.zeros(2)), "differ in sinks"),
    ],
    ids=["gap", "heads", "window", "sinks"],
)
def test_concat_refuses_plans_that_do_not_follow_on(following: RowPlan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        RowPlan.concat([RowPlan.dense(1, 2, 256, 256), following])


def test_concat_refuses_a_cut_query_block_and_an_empty_list() -> None:
    with pytest.raises(PlanError, match="segment 0 has 100 rows; all but the last need a multiple"):
        RowPlan.concat([RowPlan.dense(1, 2, 100, 100), RowPlan.dense(1, 2, 100, 200)])
    with pytest.raises(PlanError, match="pass at least one"):
        RowPlan.concat([])


def test_select_heads_keeps_their_rows_and_sinks_in_order() -> None:
    plan = random_plan(SHAPES[1], sinks=torch.arange(3.0))
    chosen = plan.select_heads([2, 0])
    assert torch.equal(chosen.to_mask(), plan.to_mask()[:, [2, 0]])
    assert chosen.sinks is not None and chosen.sinks.tolist() == [2.0, 0.0]


def test_to_moves_every_tensor() -> None:
    plan = random_plan(SHAPES[3], sinks=torch.zeros(3)).to("meta")
    tensors = [value for value in vars(plan).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 7 and all(tensor.device.type == "meta" for tensor in tensors)


def test_dense_rows_may_carry_any_lists() -> None:
    """Their lists are ignored, so they are not checked either."""
    plan = random_plan(SHAPES[0])
    junk, dense = torch.full_like(plan.blocks, 99), torch.ones_like(plan.dense_rows)
    every = dataclasses.replace(plan, blocks=junk, dense_rows=dense)
    assert every.validate().density == 1.0


def broken(name: str) -> RowPlan:
    """A plan of two query blocks (first positions 72 and 200) that breaks one rule in head 1, block 1."""
    mask = torch.zeros(1, 2, 2, 5, dtype=torch.bool)
    mask[..., 0] = True
    plan = RowPlan.from_block_mask(mask, 228, 300, columns=torch.tensor([[[70, 130, 180]] * 2]))
    at = (0, 1, 1)
    # The row lists blocks 0, 3, 4 and the columns 70, 130, 180.
    assert plan.blocks[at][:3].tolist() == [0, 3, 4] and plan.columns[at].tolist() == [70, 130, 180]
    lists = {
        name: getattr(plan, name).clone() for name in ("blocks", "block_count", "columns", "column_count")
    }
    edits = {
        "block_count": lambda: lists["block_count"].__setitem__(at, 6),
        "negative_count": lambda: lists["column_count"].__setitem__(at, -1),
        "block_order": lambda: lists["blocks"].__setitem__((*at, 0), 3),
        "block_range": lambda: lists["blocks"].__setitem__((*at, 0), -1),
        "future_block": lambda: (lists["block_count"][at].fill_(4), lists["blocks"].__setitem__((*at, 3), 5)),
        "column_order": lambda: lists["columns"].__setitem__((*at, 0), 150),
        "future_column": lambda: lists["columns"].__setitem__((*at, 2), 300),
        "column_in_block": lambda: lists["columns"].__setitem__((*at, 0), 63),
        "diagonal": lambda: lists["block_count"].__setitem__(at, 2),
    }
    edits[name]()
    return dataclasses.replace(plan, **lists)


@pytest.mark.parametrize(
    "name, message",
    [
        ("block_count", "block_count 6 is outside 0 to capacity 5"),
        ("negative_count", "column_count -1 is outside 0 to capacity 3"),
        ("block_order", "blocks 3, 3 are not ascending"),
        ("block_range", "block -1 is out of range; this row may list 0 to 4"),
        ("future_block", "block 5 is out of range; this row may list 0 to 4"),
        ("column_order", "columns 150, 130 are not ascending"),
        ("future_column", "column 300 is out of range; this row may list 0 to 299"),
        ("column_in_block", "column 63 lies in the row's block 0"),
        ("diagonal", "diagonal block 4 is missing; .* positions 200 to 299"),
    ],
)
def test_validate_names_the_row_and_the_violation(name: str, message: str) -> None:
    with pytest.raises(PlanError, match=f"batch 0, head 1, query block 1: .*{message}"):
        broken(name).validate()


def test_validate_needs_no_diagonal_where_padding_hides_it() -> None:
    start = torch.tensor([128], dtype=torch.int32)
    plan = RowPlan.from_block_mask(torch.zeros(1, 1, 2, 4, dtype=torch.bool), 256, 256, key_start=start)
    assert plan.validate().block_count.tolist() == [[[0, 2]]]
    with pytest.raises(PlanError, match=r"key_start \[257\]: every value must lie in 0 to n_k = 256"):
        dataclasses.replace(plan, key_start=start + 129).validate()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_q": 301}, "n_q 301, n_k 300"),
        ({"block_k": 0}, "block sizes are positive"),
        ({"window": 0}, "window 0"),
        ({"softcap": -1.0}, "softcap -1.0"),
        ({"block_count": torch.zeros(2, 3, 9, dtype=torch.int32)}, r"block_count is \[2, 3, 9\]; .* needs"),
        ({"block_count": torch.zeros(2, 3, dtype=torch.int32)}, r"pass \[B, H, M\]"),
        ({"column_count": torch.zeros(2, 3, 3)}, "column_count is torch.float32; pass torch.int32"),
        ({"dense_rows": torch.zeros(2, 3, 3, dtype=torch.bool, device="meta")}, "lies on meta"),
        ({"key_start": torch.zeros(3, dtype=torch.int32)}, r"key_start is \[3\]"),
        ({"sinks": torch.zeros(3, dtype=torch.int32)}, "pass a floating dtype"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_construction_refuses_wrong_shapes_dtypes_and_devices(change: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        dataclasses.replace(RowPlan.dense(2, 3, 300, 300), **change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"block_mask": torch.zeros(1, 2, 2, 5, dtype=torch.bool)}, r"need \[B, H, 2, 4\]"),
        ({"block_mask": torch.zeros(1, 2, 2, 4)}, "pass torch.bool"),
        ({"columns": torch.zeros(1, 2, 2, 4, dtype=torch.int32)}, r"\[1, 2, V\]"),
        ({"columns": torch.zeros(1, 2, 4)}, "pass an int tensor"),
        (
            {"columns": torch.zeros(1, 2, 4, dtype=torch.int32), "column_count": torch.ones(2)},
            "column_count is",
        ),
        ({"dense_rows": torch.zeros(1, 2, 3, dtype=torch.bool)}, "dense_rows is"),
    ],
    ids=["blocks", "mask-dtype", "columns", "column-dtype", "column-count", "dense-rows"],
)
def test_from_block_mask_refuses_wrong_shapes(change: dict, message: str) -> None:
    inputs = {"block_mask": torch.zeros(1, 2, 2, 4, dtype=torch.bool), "n_q": 256, "n_k": 256, **change}
    with pytest.raises(PlanError, match=message):
        RowPlan.from_block_mask(**inputs)
