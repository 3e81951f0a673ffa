"""Graphs of decisions: which calls run eagerly, which are captured, what is kept. The device's part is played by fakes
on a CPU; test_no_sync.py replays real ones."""

from dataclasses import replace

import pytest
import torch

from routesparse.engine.device import graphs as module
from routesparse.engine.device.graphs import KEPT, Graphs


class FakeGraph:
    """Replaying runs the captured function again on the static buffers."""

    def __init__(self, run):
        self.run = run

    def replay(self):
        self.run()


@pytest.fixture
def calls(monkeypatch):
    """What happened, in order: ("eager" | "captured", address read from the table)."""
    seen = []

    def capture(inputs, draws, function):
        result = function(inputs, draws)
        seen[-1] = ("captured", seen[-1][1])

        def run():
            again = function(inputs, draws)
            seen[-1] = ("replayed", seen[-1][1])
            result.copy_(again)

        return FakeGraph(run), result

    monkeypatch.setattr(module, "_capture", capture)
    return seen


@pytest.fixture
def decide(calls):
    """A function of the static buffers that notes the address of the queries it would read."""

    def function(inputs, draws):
        address = None if inputs.table is None else int(inputs.table[0])
        calls.append(("eager", address))
        start = 0 if inputs.key_start is None else inputs.key_start.sum()
        return draws.sum() + start

    return function


def draws(value):
    return torch.full((1, 4, 3), float(value), dtype=torch.float64)


def test_the_first_call_is_eager_the_second_captured_the_third_replayed(oracle, calls, decide):
    kept = Graphs()
    inputs = [oracle.draw_inputs(seed, n_q=64) for seed in range(3)]
    found = [float(kept.run("key", x, draws(i), decide)) for i, x in enumerate(inputs)]
    assert found == [0.0, 12.0, 24.0]
    assert [kind for kind, _ in calls] == ["eager", "captured", "replayed", "replayed"]
    assert [address for _, address in calls] == [inputs[i].q.data_ptr() for i in (0, 1, 1, 2)]


@pytest.mark.parametrize("failing", [1, 2], ids=["eager", "capturing"])
def test_a_key_whose_call_fails_begins_anew(oracle, calls, decide, failing):
    kept = Graphs()
    inputs = oracle.draw_inputs(0, n_q=64)

    def fails(inputs, draws):
        if len(calls) + 1 == failing:
            raise MemoryError
        return decide(inputs, draws)

    for _ in range(failing - 1):
        kept.run("key", inputs, draws(1), fails)
    with pytest.raises(MemoryError):
        kept.run("key", inputs, draws(1), fails)
    kept.run("key", inputs, draws(1), decide)
    assert [kind for kind, _ in calls] == ["eager"] * failing


@pytest.mark.parametrize(
    "change", [{"key": "other"}, {"n_q": 80}, {"heads": 2}, {"transposed": True}], ids=str
)
def test_another_key_shape_or_layout_is_another_graph(oracle, calls, decide, change):
    kept = Graphs()
    kept.run("key", oracle.draw_inputs(0, n_q=64), draws(1), decide)
    other = oracle.draw_inputs(0, n_q=change.get("n_q", 64), heads=change.get("heads", 4))
    if "transposed" in change:
        other = replace(other, q=other.q.transpose(1, 2).contiguous().transpose(1, 2))
    kept.run(change.get("key", "key"), other, draws(1), decide)
    assert [kind for kind, _ in calls] == ["eager", "eager"]


def test_another_stream_is_another_graph(oracle, calls, decide, monkeypatch):
    kept, inputs = Graphs(), oracle.draw_inputs(0, n_q=64)
    for stream in (1, 2, 1, 2, 1):
        monkeypatch.setattr(module, "_stream", lambda device, stream=stream: stream)
        kept.run("key", inputs, draws(1), decide)
    kinds = "eager eager captured replayed captured replayed replayed"
    assert [kind for kind, _ in calls] == kinds.split()


def test_inference_mode_has_graphs_of_its_own(oracle, calls, decide):
    kept, inputs = Graphs(), oracle.draw_inputs(0, n_q=64)
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            kept.run("key", inputs, draws(1), decide)
    assert [kind for kind, _ in calls] == ["eager", "eager", "captured", "replayed", "captured", "replayed"]


def test_padding_enters_through_its_own_buffer(oracle, calls, decide):
    kept = Graphs()
    for pad in (3, 5, 9):
        inputs = oracle.draw_inputs(0, n_q=64, batch=2, key_start=[0, pad])
        assert float(kept.run("key", inputs, draws(0), decide)) == pad


def test_no_query_or_key_is_kept_and_old_graphs_make_room(oracle, decide):
    kept = Graphs()
    for number in range(KEPT + 3):
        kept.run(number, oracle.draw_inputs(0, n_q=64), draws(1), decide)
    assert len(kept._entries) == KEPT
    for entry in kept._entries.values():
        held = [x for x in vars(entry).values() if isinstance(x, torch.Tensor)]
        assert sum(x.numel() for x in held) <= 2 + 12


def test_graphs_beyond_their_share_of_memory_make_room_oldest_first(oracle, calls, decide, monkeypatch):
    taken = iter(range(0, 1_000, 10))
    monkeypatch.setattr(module, "_reserved", lambda device: next(taken))
    monkeypatch.setattr(module, "_most_bytes", lambda device: 25)
    kept = Graphs()
    inputs = oracle.draw_inputs(0, n_q=64)
    for key in (1, 2, 3, 4):
        for _ in range(2):
            kept.run(key, inputs, draws(1), decide)
    assert [key[0] for key in kept._entries] == [3, 4]
    assert [entry.size for entry in kept._entries.values()] == [10, 10]


def test_keys_that_do_not_fit_together_do_not_capture_each_other_away(oracle, calls, decide, monkeypatch):
    taken = iter(range(0, 100_000, 10))
    monkeypatch.setattr(module, "_reserved", lambda device: next(taken))
    monkeypatch.setattr(module, "_most_bytes", lambda device: 65)
    kept = Graphs()
    inputs = oracle.draw_inputs(0, n_q=64)
    for _layer in range(20):
        for segment in range(8):
            assert float(kept.run(segment, inputs, draws(segment), decide)) == 12 * segment
    kinds = [kind for kind, _ in calls]
    assert kinds.count("captured") <= 8 and kinds.count("replayed") >= 6 * 18
