"""Sampled rows against float64 attention with every logit in memory, and against every plan's whole mask. CPU."""

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from routesparse.engine.certification.certify import Request, certify_attention
from routesparse.engine.certification.reads import reads_of
from routesparse.engine.certification.rows import draw_rows, score_rows
from routesparse.engine.errors import ConfigError
from routesparse.kernels.interface import RowPlan

LAYERS = {
    "plain": {"n_q": 389},
    "chunk": {"n_q": 200, "n_k": 389},
    "padded": {"n_q": 389, "batch": 2, "key_start": [0, 137]},
    "softcap": {"n_q": 389, "softcap": 3.0},
    "sinks": {"n_q": 389, "sinks": True},
}
HEADS = 4


def inputs_shape(inputs):
    return (*inputs.q.shape[:3], inputs.k.shape[2])


def random_plan(inputs, seed=0):
    batch, heads, n_q = inputs.q.shape[:3]
    n_k = inputs.k.shape[2]
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.rand(batch, heads, -(-n_q // 32), -(-n_k // 16), generator=generator) < 0.4
    dense = torch.rand(batch, heads, -(-n_q // 32), generator=generator) < 0.2
    columns = torch.randint(0, n_k, (batch, heads, 9), generator=generator)
    return RowPlan.from_block_mask(blocks, n_q, n_k, 32, 16, columns=columns, dense_rows=dense)


@pytest.mark.parametrize("window", [None, 70], ids=["whole", "window"])
@pytest.mark.parametrize("kind", LAYERS)
def test_rows_are_what_float64_attention_says(oracle, kind, window):
    inputs = oracle.draw_inputs(3, **LAYERS[kind])
    plan = random_plan(inputs)
    n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
    weights, sink = oracle.softmax(inputs)
    if window is not None:
        key, query = torch.arange(n_k), torch.arange(n_k - n_q, n_k).view(-1, 1)
        weights = weights.masked_fill(key <= query - window, 0.0)
        total = weights.sum(-1) + sink
        weights, sink = (weights / total.unsqueeze(-1)).nan_to_num(), (sink / total).nan_to_num()
    values = inputs.v.double().repeat_interleave(inputs.groups, 1)
    exact, kept = weights @ values, weights * plan.to_mask()
    mass = kept.sum(-1) + sink
    sparse = kept @ values / mass.clamp_min(1e-30).unsqueeze(-1)
    out = exact + 0.1 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    rows = draw_rows(inputs, 60, "salt", 0, 2)
    assert bool((rows >= (inputs.first_keys() - (n_k - n_q)).clamp_min(0).view(-1, 1, 1)).all())
    found = score_rows(inputs, out, rows, window, reads_of(plan, 0, inputs_shape(inputs)), planned=True)

    def near(name, wanted):
        mine = getattr(found, name).double()
        assert torch.allclose(mine, wanted.gather(2, rows).double(), rtol=2e-4, atol=2e-5), name

    apart, norm = (out - exact).norm(dim=-1), exact.norm(dim=-1)
    near("error", apart / norm)
    near("deviation", apart / (weights @ values.norm(dim=-1, keepdim=True)).squeeze(-1))
    near("mass", mass)
    near("plan_error", (exact - sparse).norm(dim=-1) / norm)
    largest = weights.argmax(-1, keepdim=True)
    hit = plan.to_mask().expand(*weights.shape).gather(-1, largest).squeeze(-1)
    assert torch.equal(found.hit, hit.gather(2, rows))
    assert torch.equal(found.largest, largest.squeeze(-1).gather(2, rows))
    assert torch.equal(found.positions, rows + n_k - n_q)


def test_rows_come_back_in_the_order_in_which_they_were_drawn(oracle, monkeypatch):
    """The betting bound needs them so; chunks are scored by ascending row, and a plan's rows come in chunks, too."""
    monkeypatch.setattr("routesparse.kernels.exact_rows.naive.CHUNK_SCORES", 2_000)
    monkeypatch.setattr("routesparse.engine.certification.rows.MOST_READ", 20_000)
    inputs = oracle.draw_inputs(0, n_q=300)
    out = oracle.attention(inputs).float()
    out[:, :, torch.arange(300)] *= 1 + torch.arange(300).view(-1, 1) / 300
    rows = draw_rows(inputs, 50, "", 0, 0)
    found = score_rows(inputs, out, rows)
    assert torch.allclose(found.error, rows / 300, atol=1e-4)
    plan = random_plan(inputs)
    reads = reads_of(plan, 0, inputs_shape(inputs))
    planned = score_rows(inputs, out, rows, reads=reads, planned=True)
    assert torch.allclose(planned.error, rows / 300, atol=1e-4)
    # A dense row of the plan keeps everything, whatever is scored beside it.
    dense = plan.dense_rows.gather(2, rows // 32)
    assert 0 < dense.sum() < dense.numel() and torch.allclose(planned.mass[dense], torch.ones(()))
    assert float(planned.mass[~dense].min()) < 0.5


def test_values_may_be_of_another_size_than_keys(oracle):
    inputs = oracle.draw_inputs(0, n_q=300)
    q, k = inputs.q.float(), inputs.k.float()
    v = torch.randn(1, k.shape[1], 300, 24, generator=torch.Generator().manual_seed(0))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    found = certify_attention(q, k, v, out, request=Request(rows=40))
    assert found.verdict.level == "exact" and found.run.largest_error < 1e-5


def whole_mask(reads, batch, n_q, n_k):
    """What ``Reads.at`` says of every row: bool [B, H, n_q, n_k], causal."""
    rows = torch.arange(n_q)
    found = [[reads.at(b, torch.full_like(rows, h), rows, n_k) for h in range(HEADS)] for b in range(batch)]
    causal = torch.arange(n_k) <= torch.arange(n_k - n_q, n_k).view(-1, 1)
    return torch.stack([torch.stack(heads) for heads in found]) & causal


@pytest.mark.parametrize("kind", ["plain", "chunk"])
def test_a_row_plan_is_read_as_its_mask(oracle, kind):
    inputs = oracle.draw_inputs(0, **LAYERS[kind])
    plan = random_plan(inputs)
    n_q, n_k = inputs.q.shape[2], inputs.k.shape[2]
    reads = reads_of(plan, 0, inputs_shape(inputs))
    assert torch.equal(whole_mask(reads, 1, n_q, n_k), plan.to_mask())


def test_flex_attention_block_masks_are_read_as_flex_attention_reads_them():
    """A document mask with an index tensor, per head: partial blocks, full ones and absent ones."""
    document = torch.arange(400) // 90
    far = torch.tensor([400, 400, 150, 40])

    def predicate(b, h, q, k):
        return (q >= k) & (document[q] == document[k]) & (q - k < far[h])

    mask = create_block_mask(predicate, 2, HEADS, 400, 400, device="cpu", BLOCK_SIZE=(64, 32))
    wanted = create_mask(predicate, 2, HEADS, 400, 400, device="cpu")
    found = whole_mask(reads_of(mask, 0, (2, HEADS, 400, 400)), 2, 400, 400)
    assert torch.equal(found, wanted) and 0 < wanted.double().mean() < 0.5


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_a_block_mask_may_be_of_all_layers_of_one_or_by_layer(make):
    rng = np.random.default_rng(0)
    masks = rng.random((3, HEADS, 4, 7)) < 0.5
    shape, block = (1, HEADS, 100, 100), (32, 16)
    wanted = torch.as_tensor(masks[2]).repeat_interleave(32, 1).repeat_interleave(16, 2)[:, :100, :100].tril()
    for plan in (make(masks), {2: make(masks[2])}, make(masks[2]), lambda layer: make(masks[layer])):
        assert torch.equal(whole_mask(reads_of(plan, 2, shape, block), 1, 100, 100)[0], wanted)
    assert reads_of({2: make(masks[2])}, 1, shape, block) is None


def causal(b, h, q, k):
    return q >= k


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (np.ones((HEADS, 4, 6), bool), r"bool \[4, 4, 7\]"),
        (np.ones((HEADS, 4, 7)), "float64"),
        (np.ones((3, 4, 7), bool), "block sizes"),
        (np.ones((1, HEADS, 4, 7), bool), "layer 2 is not in it"),
        (RowPlan.dense(1, HEADS, 90, 90), "the plan of this prompt"),
        (RowPlan.dense(2, HEADS, 100, 100), "the plan of this prompt"),
        (create_block_mask(causal, 2, 1, 100, 100, device="cpu"), "has 2 prompts"),
        (
            create_block_mask(causal, 1, 1, 160, 160, device="cpu"),
            "160 queries and 160 keys, the call .* 100",
        ),
        (create_block_mask(causal, 1, 1, 100, 120, device="cpu"), "100 queries and 120 keys"),
        ({2: create_block_mask(causal, 1, 1, 99, 99, device="cpu")}, "99 queries and 99 keys"),
        (lambda layer: create_block_mask(causal, 1, 1, 128, 128, device="cpu"), "128 queries and 128 keys"),
        (create_block_mask(causal, 1, 2, 100, 100, device="cpu"), "2 heads"),
        (
            create_block_mask(causal, 1, 1, 100, 100, device="cpu", BLOCK_SIZE=(32, 16))[
                :, :, torch.tensor([0, 2])
            ],
            "2 blocks of 32 queries",
        ),
        (create_block_mask(causal, 1, 1, 100, 100, device="cpu").to("meta"), "lies on meta"),
        ({"2": np.ones((HEADS, 4, 7), bool)}, "has the key '2'"),
        ("mask.npy", "str is no plan"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan, told):
    with pytest.raises(ConfigError, match=told):
        reads_of(plan, 2, (1, HEADS, 100, 100), (32, 16))


@pytest.mark.parametrize("rows", [(100, 389), (386, 389)], ids=["fewer blocks", "as many blocks"])
def test_a_chunk_is_not_judged_by_the_whole_prompt_s_mask(oracle, rows):
    """Its own mask is read, and cut by the chunk's place in the prompt."""
    n_q, n_k = rows
    inputs = oracle.draw_inputs(0, n_q=n_q, n_k=n_k)
    out = oracle.attention(inputs).float()

    def near(b, h, q, k):
        return q + (n_k - n_q) - k < 40

    mask = create_block_mask(near, 1, 1, n_q, n_k, device="cpu")
    weights, _ = oracle.softmax(inputs)
    row, key = torch.arange(n_q).view(-1, 1), torch.arange(n_k)
    kept = (weights * near(0, 0, row, key)).sum(-1)
    found = certify_attention(inputs.q, inputs.k, inputs.v, out, request=Request(plan=mask))
    drawn = torch.as_tensor(found.scores[0]["positions"]) - (n_k - n_q)
    assert np.allclose(found.scores[0]["mass"], kept.gather(2, drawn), atol=1e-4)
    whole = np.ones((HEADS, 4, 7), bool), create_block_mask(near, 1, 1, n_k, n_k, device="cpu")
    for plan in whole:
        with pytest.raises(ConfigError, match=str(n_k)):
            certify_attention(inputs.q, inputs.k, inputs.v, out, request=Request(plan=plan))


@pytest.mark.parametrize(
    "own",
    [
        {"window": 32},
        {"key_start": torch.tensor([90], dtype=torch.int32)},
        {"softcap": 2.0},
        {"sinks": torch.zeros(HEADS)},
    ],
    ids=lambda own: next(iter(own)),
)
def test_a_row_plan_of_other_attention_is_not_said_to_keep_what_it_does_not_read(oracle, own):
    inputs = oracle.draw_inputs(0, n_q=100)
    plan = RowPlan.dense(1, HEADS, 100, 100, **own)
    with pytest.raises(ConfigError, match=f"the RowPlan's {next(iter(own))} is"):
        certify_attention(inputs.q, inputs.k, inputs.v, inputs.q, request=Request(plan=plan))


def test_a_mask_by_layer_is_not_taken_for_one_by_prompt(oracle):
    inputs = oracle.draw_inputs(0, n_q=100, batch=2)
    request = Request(plan=np.ones((2, HEADS, 1, 2), bool))
    with pytest.raises(ConfigError, match="by layer, not by prompt"):
        certify_attention(inputs.q, inputs.k, inputs.v, inputs.q, request=request)


def test_nan_is_an_infinite_error_and_breaks_the_verdict(oracle):
    inputs = oracle.draw_inputs(0, n_q=300)
    out = oracle.attention(inputs).float()
    out[0, 1, 200:] = torch.nan
    found = certify_attention(inputs.q, inputs.k, inputs.v, out, request=Request(rows=40))
    assert found.verdict.level == "broken" and found.run.nonfinite_rows > 0
    assert found.run.largest_error == np.inf and found.run.mean_error_bound < 1
    assert found.worst_heads(1)[0].head == 1 and found.worst_heads(1)[0].worst_position >= 200


def test_nan_in_the_inputs_is_said_to_be_the_worst(oracle):
    inputs = oracle.draw_inputs(0, n_q=300)
    inputs.v[0, 0, 100] = torch.nan
    out = torch.nn.functional.scaled_dot_product_attention(
        inputs.q, inputs.k, inputs.v, is_causal=True, enable_gqa=True
    )
    request = Request(rows=40, plan=np.ones((HEADS, 3, 5), bool))
    found = certify_attention(inputs.q, inputs.k, inputs.v, out, request=request)
    assert found.verdict.level == "broken" and found.run.nonfinite_rows > 20
    assert found.worst_heads(1)[0].head in (0, 1) and np.isfinite(found.run.mass_bound)


def test_a_mask_that_reads_nothing_has_no_mass(oracle):
    inputs = oracle.draw_inputs(0, n_q=300)
    out = torch.zeros_like(inputs.q)
    request = Request(plan=np.zeros((HEADS, 3, 5), bool))
    found = certify_attention(inputs.q, inputs.k, inputs.v, out, request=request).run
    assert (found.mass, found.hit_rate, found.mean_error, found.disagreement) == (0.0, 0.0, 1.0, 0.0)
