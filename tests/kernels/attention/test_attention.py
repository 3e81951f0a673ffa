"""Every backend against the float64 oracle, on one matrix of shapes and options.

No test needs a GPU; where there is one, the Triton tests run on it, else in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from routesparse.kernels import reference
from routesparse.kernels.attention import torch_cpu, torch_span
from routesparse.kernels.interface import RowPlan, sparse_attention
from routesparse.kernels.plan.row_plan import allowed_keys


@dataclass(frozen=True)
class Case:
    """Shapes and options of one random problem."""

    name: str
    n_q: int
    n_k: int
    batch: int = 1
    heads: int = 2
    kv_heads: int = 1
    head_size: int = 64
    block_q: int = 128
    block_k: int = 64
    columns: int = 0
    dense: float = 0.0  # share of dense rows
    empty: float = 0.0  # share of rows without any key
    key_start: tuple[int, ...] | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    def __str__(self) -> str:
        return (
            f"{self.name}-B{self.batch}-H{self.heads}x{self.kv_heads}-q{self.n_q}-k{self.n_k}"
            f"-d{self.head_size}-{self.block_q}x{self.block_k}"
        )

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        """q [B, H, n_q, D] as a model hands it over (not contiguous), k and v [B, Hkv, n_k, D]."""
        generator = torch.Generator().manual_seed(self.n_q * 7 + self.n_k)
        q = torch.randn(self.batch, self.n_q, self.heads, self.head_size, generator=generator)
        kv = torch.randn(2, self.batch, self.kv_heads, self.n_k, self.head_size, generator=generator)
        return q.to(dtype).transpose(1, 2), kv[0].to(dtype), kv[1].to(dtype)

    def plan(self) -> RowPlan:
        """A random valid plan."""
        generator = torch.Generator().manual_seed(self.n_q + self.n_k)
        rows = (self.batch, self.heads, -(-self.n_q // self.block_q))
        mask = torch.rand(*rows, -(-self.n_k // self.block_k), generator=generator) < 0.4
        columns = torch.randint(0, self.n_k, (*rows[:2], self.columns), generator=generator)
        plan = RowPlan.from_block_mask(
            mask,
            self.n_q,
            self.n_k,
            self.block_q,
            self.block_k,
            columns=columns if self.columns else None,
            dense_rows=torch.rand(rows, generator=generator) < self.dense,
            **self.options(),
        ).validate()
        if not self.empty:
            return plan
        empty = torch.rand(rows, generator=generator) < self.empty
        return dataclasses.replace(
            plan,
            block_count=plan.block_count.masked_fill(empty, 0),
            column_count=plan.column_count.masked_fill(empty, 0),
            dense_rows=plan.dense_rows & ~empty,
        )

    def options(self) -> dict:
        """The fields of RowPlan that a family may or may not have."""
        start = None if self.key_start is None else torch.tensor(self.key_start, dtype=torch.int32)
        sinks = torch.linspace(-1.0, 2.0, self.heads) if self.sinks else None
        return {"key_start": start, "window": self.window, "softcap": self.softcap, "sinks": sinks}


CASES = [
    Case("square", 256, 256),
    Case("ragged", 300, 300, heads=4, kv_heads=2),
    Case("no-group", 200, 200, heads=2, kv_heads=2, block_q=64, block_k=32),
    Case("group-of-6", 130, 130, heads=6, kv_heads=1),
    Case("chunk", 150, 417),
    Case("chunk-on-blocks", 128, 384, heads=4, kv_heads=2),
    Case("one-row", 1, 333, columns=8),
    Case("one-key", 1, 1),
    Case("columns", 256, 300, columns=90),
    Case("dense-rows", 384, 450, dense=0.5, columns=20),
    Case("empty-rows", 384, 384, empty=0.4, dense=0.3, columns=9),
    Case("padded", 300, 300, batch=2, heads=2, key_start=(0, 77), dense=0.3, columns=20),
    Case("padded-chunk", 200, 333, batch=3, key_start=(130, 64, 301), dense=0.3, columns=20),
    Case("window", 300, 350, window=100, dense=0.5, columns=40),
    Case("window-padded", 260, 260, batch=2, window=1, key_start=(3, 200), columns=20),
    Case("softcap", 200, 260, softcap=5.0, dense=0.3, columns=20),
    Case("sinks", 300, 350, heads=4, kv_heads=2, sinks=True, empty=0.3, dense=0.3, columns=20),
    Case(
        "everything",
        200,
        301,
        batch=2,
        heads=4,
        kv_heads=2,
        head_size=80,
        columns=30,
        dense=0.3,
        empty=0.1,
        key_start=(0, 33),
        window=150,
        softcap=8.0,
        sinks=True,
    ),
    Case("head-96", 150, 200, head_size=96, columns=20),
    Case("head-128", 150, 200, head_size=128, columns=20),
    Case("head-128-small-blocks", 150, 200, head_size=128, block_q=32, block_k=16, columns=20),
    Case("wide-blocks", 200, 300, block_q=64, block_k=128, columns=20),
]
cases = pytest.mark.parametrize("case", CASES, ids=str)
MANY_SPANS = Case("threads", 700, 900, heads=4, kv_heads=2, columns=30, dense=0.2)


def assert_same(actual, expected, tolerance: float) -> None:
    """out and lse against the oracle's; an empty row must be exactly 0 and -inf."""
    out, lse = (tensor.double() for tensor in actual)
    torch.testing.assert_close(out, expected[0].double(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, expected[1].double(), atol=tolerance, rtol=tolerance)
    empty = expected[1] == -torch.inf
    assert (out[empty] == 0).all()
    assert actual[1].dtype == torch.float32


@cases
def test_random_plan_equals_the_float64_oracle(case: Case, attention) -> None:
    q, k, v = case.tensors()
    plan = case.plan()
    assert_same(attention(q, k, v, plan), reference.plan_attention(q, k, v, plan), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", [CASES[1], CASES[9], CASES[17]], ids=str)
def test_half_precision_stays_within_its_rounding(case: Case, dtype: torch.dtype, attention) -> None:
    q, k, v = case.tensors(dtype)
    plan = case.plan()
    out, lse = attention(q, k, v, plan)
    assert out.dtype == dtype
    # The interpreter truncates to bfloat16 where hardware rounds.
    tolerance = 3e-2 if dtype == torch.bfloat16 else 3e-3
    expected = reference.plan_attention(q, k, v, plan)
    torch.testing.assert_close(out.double(), expected[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), expected[1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", [CASES[1], CASES[9], CASES[12], CASES[17], CASES[18]], ids=str)
def test_tiles_through_descriptors_stay_within_half_precision(case: Case, triton_attention) -> None:
    q, k, v = case.tensors(torch.float16)
    plan = case.plan()
    out, lse = triton_attention(q, k, v, plan, loads="descriptor")
    expected = reference.plan_attention(q, k, v, plan)
    torch.testing.assert_close(out.double(), expected[0], atol=3e-3, rtol=3e-3)
    torch.testing.assert_close(lse.double(), expected[1], atol=1e-3, rtol=1e-3)


def test_loads_that_the_tensors_do_not_allow_are_refused(triton_attention) -> None:
    q, k, v = CASES[0].tensors()
    with pytest.raises(ValueError, match="loads 'descriptor' are not possible here; pass one of pointer"):
        triton_attention(q, k, v, CASES[0].plan(), loads="descriptor")


def test_triton_asks_for_a_positive_scale(triton_attention) -> None:
    q, k, v = CASES[0].tensors()
    with pytest.raises(ValueError, match=r'scale -1\.0: backend "triton" takes a positive factor'):
        triton_attention(q, k, v, CASES[0].plan(), -1.0)


@cases
def test_dense_plan_equals_torch_sdpa(case: Case, attention) -> None:
    """SDPA has no soft cap, sinks or empty rows; those cases run without them."""
    q, k, v = case.tensors()
    plan = RowPlan.dense(
        case.batch,
        case.heads,
        case.n_q,
        case.n_k,
        case.block_q,
        case.block_k,
        key_start=case.options()["key_start"],
        window=case.window,
    )
    mask = allowed_keys(plan)
    group = case.heads // case.kv_heads
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=mask
    )
    seen = mask.any(-1).expand(q.shape[:3])
    out, _ = attention(q, k, v, plan)
    torch.testing.assert_close(out[seen], expected[seen], atol=1e-5, rtol=1e-5)
    assert (out[~seen] == 0).all()


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[9], CASES[13], CASES[15]], ids=str)
def test_a_future_token_changes_no_earlier_output(case: Case, attention) -> None:
    """Bitwise, for a fixed plan: the diagonal tiles leak nothing."""
    q, k, v = case.tensors()
    plan = case.plan()
    before = attention(q, k, v, plan)
    changed = case.n_k - case.n_q + case.n_q // 2 + 5
    k, v = k.clone(), v.clone()
    k[:, :, changed:] = 50.0
    v[:, :, changed:] = -1e4
    after = attention(q, k, v, plan)
    unchanged = changed - (case.n_k - case.n_q)
    assert torch.equal(before[0][:, :, :unchanged], after[0][:, :, :unchanged])
    assert torch.equal(before[1][:, :, :unchanged], after[1][:, :, :unchanged])


@pytest.mark.parametrize("order", ["ascending", "shuffled"])
def test_a_plan_that_lists_the_future_reads_none_of_it(order: str, attention) -> None:
    """Such a plan is invalid and its result unspecified, but causality holds inside the kernel."""
    case = Case("future", 300, 350)
    q, k, v = case.tensors()
    generator = torch.Generator().manual_seed(5)
    count = 6 if order == "shuffled" else case.plan().key_blocks
    blocks = torch.stack([torch.randperm(6, generator=generator) for _ in range(6)]).view(1, 2, 3, 6)
    if order == "ascending":
        blocks = blocks.sort(-1).values
    columns = torch.randint(0, case.n_k, (1, 2, 3, 40), generator=generator)
    rows = torch.zeros(1, 2, 3)
    plan = RowPlan(
        case.n_q,
        case.n_k,
        case.block_q,
        case.block_k,
        blocks.int(),
        torch.full_like(rows, count, dtype=torch.int32),
        columns.int(),
        torch.full_like(rows, 40, dtype=torch.int32),
        rows.bool(),
    )
    before = attention(q, k, v, plan)
    k, v = k.clone(), v.clone()
    k[:, :, 200:] = 50.0
    v[:, :, 200:] = -1e4
    after = attention(q, k, v, plan)
    assert torch.equal(before[0][:, :, :150], after[0][:, :, :150])
    assert torch.equal(before[1][:, :, :150], after[1][:, :, :150])


def test_float64_runs_in_float64() -> None:
    case = CASES[9]
    q, k, v = case.tensors(torch.float64)
    out, _ = sparse_attention(q, k, v, case.plan())
    expected, _ = reference.plan_attention(q, k, v, case.plan())
    torch.testing.assert_close(out, expected, atol=1e-13, rtol=1e-13)


@cases
def test_torch_without_the_fused_operator_gives_the_same(case: Case, monkeypatch) -> None:
    """This is also the path of devices other than the CPU."""
    monkeypatch.setattr(torch_span, "_fused_attention", None)
    q, k, v = case.tensors()
    plan = case.plan()
    assert_same(sparse_attention(q, k, v, plan), reference.plan_attention(q, k, v, plan), 1e-5)


@pytest.fixture
def small_spans(monkeypatch) -> None:
    """So that threads have several each."""
    monkeypatch.setattr(torch_cpu, "_SPAN_ROWS", 128)


@pytest.mark.usefixtures("small_spans")
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_and_is_kept(threads: int) -> None:
    case = MANY_SPANS
    q, k, v = case.tensors()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        actual = sparse_attention(q, k, v, case.plan())
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert_same(actual, reference.plan_attention(q, k, v, case.plan()), 1e-5)


@pytest.mark.usefixtures("small_spans")
def test_two_threads_write_what_inference_mode_made(monkeypatch) -> None:
    """Also while somebody, as vLLM's worker does, holds torch.set_num_threads."""
    case = MANY_SPANS
    q, k, v = case.tensors()
    wanted = sparse_attention(q, k, v, case.plan())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with monkeypatch.context() as patched, torch.inference_mode():
            patched.setattr(torch, "set_num_threads", lambda _: pytest.fail("set_num_threads was called"))
            out, lse = sparse_attention(q + 0, k + 0, v + 0, case.plan())
        assert out.is_inference() and torch.get_num_threads() == 2
        assert not sparse_attention(q, k, v, case.plan())[0].requires_grad
    finally:
        torch.set_num_threads(before)
    assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted[1])


def test_strided_keys_and_values_are_read_in_place(attention) -> None:
    """A cache may hand over every second head, reversed layouts, or a slice of a longer buffer."""
    case = CASES[1]
    q, k, v = case.tensors()
    wide = torch.full((1, case.n_k + 50, 2 * case.kv_heads, case.head_size), torch.nan)
    wide[:, : case.n_k, ::2] = k.transpose(1, 2)
    wide[:, : case.n_k, 1::2] = v.transpose(1, 2)
    strided = wide[:, : case.n_k].transpose(1, 2)
    plan = case.plan()
    expected = attention(q, k, v, plan)
    actual = attention(q, strided[:, ::2], strided[:, 1::2], plan)
    assert torch.equal(actual[0], expected[0]) and torch.equal(actual[1], expected[1])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": (1, 2, 255, 64)}, "the plan is for"),
        ({"q": (1, 2, 256, 32)}, "do not fit"),
        ({"q": (1, 3, 256, 64), "k": (1, 2, 256, 64), "v": (1, 2, 256, 64)}, "multiple of the KV heads"),
        ({"v": (1, 1, 256, 32)}, "k, v of one shape"),
        ({"q": (2, 256, 64)}, "pass q"),
    ],
    ids=["rows", "head-size", "heads", "value-shape", "dimensions"],
)
def test_shapes_that_do_not_fit_are_refused(change: dict, message: str) -> None:
    shapes = {"q": (1, 2, 256, 64), "k": (1, 1, 256, 64), "v": (1, 1, 256, 64)} | change
    with pytest.raises(ValueError, match=message):
        sparse_attention(*(torch.zeros(shapes[name]) for name in "qkv"), RowPlan.dense(1, 2, 256, 256))


def test_mixed_dtypes_and_unknown_backends_are_refused() -> None:
    q, k, v = CASES[0].tensors()
    plan = CASES[0].plan()
    with pytest.raises(ValueError, match="pass one floating dtype"):
        sparse_attention(q, k.half(), v, plan)
    with pytest.raises(ValueError, match='pass "auto", "triton" or "torch"'):
        sparse_attention(q, k, v, plan, backend="cuda")


def test_triton_refuses_what_it_cannot_run() -> None:
    """On CPU tensors without the interpreter it says what to pass instead."""
    pytest.importorskip("triton")
    q, k, v = CASES[0].tensors()
    with pytest.raises(ValueError, match='pass CUDA tensors or backend="torch"'):
        sparse_attention(q, k, v, CASES[0].plan(), backend="triton")


@pytest.mark.parametrize(
    "sizes, dtype, message",
    [
        ((64, 100, 64), torch.float32, "block_q 100: Triton tiles are powers of two"),
        ((256, 128, 64), torch.float32, "head size 256 in torch.float32 is above 128"),
        ((64, 128, 64), torch.float64, "pass float16, bfloat16 or float32"),
    ],
    ids=["block", "head-size", "float64"],
)
def test_triton_names_unsupported_sizes(sizes, dtype, message: str, triton_attention) -> None:
    head_size, block_q, block_k = sizes
    q, k, v = (torch.zeros(1, 1, 128, head_size, dtype=dtype) for _ in range(3))
    with pytest.raises(ValueError, match=message):
        triton_attention(q, k, v, RowPlan.dense(1, 1, 128, 128, block_q, block_k))
