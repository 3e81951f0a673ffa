"""A routed forward pass never waits for the GPU: what it decided is read when it is over. Needs a GPU."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.decide.layer import is_whole
from routesparse.engine.errors import NumericsError
from routesparse.engine.runtime import session as session_module
from routesparse.engine.runtime.route import route
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by
from routesparse.engine.runtime.vllm.batch import Row
from routesparse.engine.runtime.vllm.replay import KeptRows

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]
TOKENS = 3_000
BUDGET = LatencyBudget(0.5, "fraction")
CONFIG = RouterConfig(segment_tokens=1_024, break_even_tokens=0, tau=0.5, gate_threshold=0.6)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=4_096, initializer_range=0.2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()


@pytest.fixture(scope="module")
def profile(oracle):
    return replace(oracle.PROFILE, block_q=128, block_k=64)


@pytest.fixture
def ids():
    return torch.randint(0, 256, (1, TOKENS), generator=torch.Generator().manual_seed(1)).cuda()


@contextmanager
def no_sync_in_layers(model):
    """From before the first layer until after the last: transformers looks at its own tensors before."""
    layers = model.model.layers
    hooks = [
        layers[0].register_forward_pre_hook(lambda *_: torch.cuda.set_sync_debug_mode("error")),
        layers[-1].register_forward_hook(lambda *_: torch.cuda.set_sync_debug_mode("default")),
    ]
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, probe="pooled"),
        replace(CONFIG, budget=BUDGET),
        replace(CONFIG, policy="budgeted", budget=BUDGET),
        replace(CONFIG, policy="strict", budget=BUDGET),
    ],
    ids=["certified", "pooled", "ceiling", "budgeted", "strict"],
)
@torch.no_grad()
def test_a_routed_forward_makes_no_host_synchronisation(model, profile, ids, config):
    with route(model, config, profile=profile) as trace:
        model(ids, logits_to_keep=1, use_cache=False)
        for _ in range(2):
            with no_sync_in_layers(model):
                model(ids, logits_to_keep=1, use_cache=False)
        choices = trace.decisions
    assert len(choices) == 3 * 3 * 4 and {c.pattern for c in choices} - {"dense"}
    assert all(time > 0 for time in trace.timings.values())


@torch.no_grad()
def test_a_left_padded_batch_makes_none_in_its_layers_either(model, profile, ids):
    """Padding is resolved before the first layer, with one look at the mask."""
    both, mask = ids.expand(2, -1), torch.ones(2, TOKENS, dtype=torch.int64, device="cuda")
    mask[1, :700] = 0
    with route(model, CONFIG, profile=profile) as trace:
        model(both, attention_mask=mask, logits_to_keep=1, use_cache=False)
        with no_sync_in_layers(model):
            model(both, attention_mask=mask, logits_to_keep=1, use_cache=False)
        assert {c.batch_index for c in trace.decisions} == {0, 1}


@torch.no_grad()
@pytest.mark.parametrize("place", ["q_proj", "v_proj"])
def test_nan_is_raised_when_the_forward_is_over_and_nothing_is_recorded(model, profile, ids, place):
    weight = getattr(model.model.layers[1].self_attn, place).weight
    kept = weight[0, 0].item()
    session = RoutingSession(CONFIG, profile=profile)
    weight[0, 0] = float("nan")
    try:
        with pytest.raises(NumericsError, match="layer 1: NaN or Inf"), routed_by(model, session):
            model(ids, logits_to_keep=1, use_cache=False)
    finally:
        weight[0, 0] = kept
    assert not session.trace.prompts


def test_the_hidden_states_that_a_replay_needs_are_kept_without_waiting():
    """Behind it a server launches what makes the first token."""
    hidden = torch.randn(TOKENS, 256, device="cuda")
    kept = KeptRows(np.arange(TOKENS), 1, whole=False)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for first, tokens in ((0, 2_000), (2_000, TOKENS - 2_000)):
            kept.keep(Row("a", 0, 0, tokens, first, TOKENS), hidden[first : first + tokens])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert kept.is_complete and len(kept.rows)
    assert torch.equal(kept.hidden_at(kept.rows), hidden[torch.from_numpy(kept.rows).cuda()])


@torch.no_grad()
def test_the_gpu_decides_what_the_cpu_decides_for_nearly_every_head(model, profile, ids):
    """Scores differ by rounding and by the binned block ranking, so a few heads may take a neighbouring budget."""
    with route(model, CONFIG, profile=profile, salt="same") as on_gpu:
        model(ids, logits_to_keep=1, use_cache=False)
    mirror = transformers.LlamaForCausalLM(model.config).eval()
    mirror.load_state_dict({name: value.float().cpu() for name, value in model.state_dict().items()})
    with route(mirror, CONFIG, profile=profile, salt="same") as on_cpu:
        mirror(ids.cpu(), logits_to_keep=1, use_cache=False)
    first = [[c for c in trace.decisions if c.layer == 0] for trace in (on_gpu, on_cpu)]
    same = [a.pattern == b.pattern for a, b in zip(*first, strict=True)]
    assert sum(same) >= 0.75 * len(same)
    # The mirror computes in float32, the GPU in bfloat16: the means agree better than any one head.
    for name in ("entropy", "agreement", "local_band"):
        gaps = [abs(getattr(a, name) - getattr(b, name)) for a, b in zip(*first, strict=True)]
        assert sum(gaps) / len(gaps) < 0.05, name
    alike = [(a, b) for a, b in zip(*first, strict=True) if (a.pattern, a.budget) == (b.pattern, b.budget)]
    assert len(alike) >= 0.5 * len(same)
    for name in ("mass", "recent_mass"):
        gaps = [abs(getattr(a, name) - getattr(b, name)) for a, b in alike]
        assert sum(gaps) / len(gaps) < 0.05, name


@torch.no_grad()
def test_a_layer_as_one_graph_is_the_layer_piece_by_piece(model, profile, ids, monkeypatch):
    """Eager, captured and replayed: the same outputs, choices and densities, to the last bit."""
    config, found = replace(CONFIG, segment_tokens=4_096), []
    for whole in (True, False):
        monkeypatch.setattr(session_module, "is_whole", is_whole if whole else lambda *_: False)
        session = RoutingSession(config, profile=profile, salt="same")
        for _ in range(3):
            session._prompt._begun = 0
            with routed_by(model, session):
                logits = model(ids, logits_to_keep=1, use_cache=False).logits
        choices = session.trace.record().choices
        found.append((logits, [(c.pattern, c.budget, c.density, c.mass) for c in choices]))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]


@torch.no_grad()
def test_a_replayed_decision_is_the_eager_one(model, profile, ids):
    """The third prompt of a session replays what the second captured; an own session decides eagerly."""
    found = []
    for warm in (0, 3):
        session = RoutingSession(CONFIG, profile=profile)
        for prompt in range(warm + 1):
            if prompt == warm:
                session._prompt._begun = 0
            with routed_by(model, session):
                model(ids.roll(0 if prompt == warm else prompt + 1, 1), logits_to_keep=1, use_cache=False)
        found.append(session.trace.record().choices)
    for eager, replayed in zip(*found, strict=True):
        assert (eager.pattern, eager.budget) == (replayed.pattern, replayed.budget)
        assert abs(eager.mass - replayed.mass) < 1e-3 and abs(eager.entropy - replayed.entropy) < 1e-2
