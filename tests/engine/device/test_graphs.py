"""Graphs of decisions: which calls run eagerly, which are captured, what is kept. The device's part is played by fakes
on a CPU; test_no_sync.py replays real ones."""

import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from routesparse.engine.device.graphs import KEPT, Gpu, Graphs


class FakeGpu(Gpu):
    """Captures by noting what runs. Replaying a graph runs the captured function again on the static buffers.

    calls: what happened, in order: ("eager" | "captured" | "replayed", address read from the table).
    """

    def __init__(self, step=0, most=float("inf")):
        self.calls, self.on, self.taken, self.step, self.most = [], None, 0, step, most

    def stream(self, device):
        return self.on

    def reserved(self, device):
        self.taken += self.step
        return self.taken

    def most_bytes(self, device, held):
        return self.most

    def capture(self, function):
        result = function()
        self.calls[-1] = ("captured", self.calls[-1][1])

        def replay():
            again = function()
            self.calls[-1] = ("replayed", self.calls[-1][1])
            result.copy_(again)

        return SimpleNamespace(replay=replay), result

    def kinds(self):
        return [kind for kind, _ in self.calls]

    def decide(self, inputs, draws):
        """Notes the address of the queries that it would read from the static buffers."""
        self.calls.append(("eager", None if inputs.table is None else int(inputs.table[0])))
        return draws.sum() + (0 if inputs.key_start is None else inputs.key_start.sum())


@pytest.fixture
def gpu():
    return FakeGpu()


def draws(value):
    return torch.full((1, 4, 3), float(value), dtype=torch.float64)


def test_the_first_call_is_eager_the_second_captured_the_third_replayed(oracle, gpu):
    kept = Graphs(gpu=gpu)
    inputs = [oracle.draw_inputs(seed, n_q=64) for seed in range(3)]
    found = [float(kept.run("key", x, draws(i), gpu.decide)) for i, x in enumerate(inputs)]
    assert found == [0.0, 12.0, 24.0]
    assert gpu.kinds() == ["eager", "captured", "replayed", "replayed"]
    assert [address for _, address in gpu.calls] == [inputs[i].q.data_ptr() for i in (0, 1, 1, 2)]


@pytest.mark.parametrize("failing", [1, 2], ids=["eager", "capturing"])
def test_a_key_whose_call_fails_begins_anew(oracle, gpu, failing):
    kept = Graphs(gpu=gpu)
    inputs = oracle.draw_inputs(0, n_q=64)

    def fails(inputs, draws):
        if len(gpu.calls) + 1 == failing:
            raise MemoryError
        return gpu.decide(inputs, draws)

    for _ in range(failing - 1):
        kept.run("key", inputs, draws(1), fails)
    with pytest.raises(MemoryError):
        kept.run("key", inputs, draws(1), fails)
    kept.run("key", inputs, draws(1), gpu.decide)
    assert gpu.kinds() == ["eager"] * failing


@pytest.mark.parametrize(
    "change", [{"key": "other"}, {"n_q": 80}, {"heads": 2}, {"transposed": True}], ids=str
)
def test_another_key_shape_or_layout_is_another_graph(oracle, gpu, change):
    kept = Graphs(gpu=gpu)
    kept.run("key", oracle.draw_inputs(0, n_q=64), draws(1), gpu.decide)
    other = oracle.draw_inputs(0, n_q=change.get("n_q", 64), heads=change.get("heads", 4))
    if "transposed" in change:
        other = replace(other, q=other.q.transpose(1, 2).contiguous().transpose(1, 2))
    kept.run(change.get("key", "key"), other, draws(1), gpu.decide)
    assert gpu.kinds() == ["eager", "eager"]


def test_another_stream_is_another_graph(oracle, gpu):
    kept, inputs = Graphs(gpu=gpu), oracle.draw_inputs(0, n_q=64)
    for stream in (1, 2, 1, 2, 1):
        gpu.on = stream
        kept.run("key", inputs, draws(1), gpu.decide)
    kinds = "eager eager captured replayed captured replayed replayed"
    assert gpu.kinds() == kinds.split()


def test_inference_mode_has_graphs_of_its_own(oracle, gpu):
    kept, inputs = Graphs(gpu=gpu), oracle.draw_inputs(0, n_q=64)
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            kept.run("key", inputs, draws(1), gpu.decide)
    assert gpu.kinds() == ["eager", "eager", "captured", "replayed", "captured", "replayed"]


def test_padding_enters_through_its_own_buffer(oracle, gpu):
    kept = Graphs(gpu=gpu)
    for pad in (3, 5, 9):
        inputs = oracle.draw_inputs(0, n_q=64, batch=2, key_start=[0, pad])
        assert float(kept.run("key", inputs, draws(0), gpu.decide)) == pad


def test_no_query_or_key_is_kept_and_old_graphs_make_room(oracle, gpu):
    kept, seen = Graphs(gpu=gpu), []
    for number in range(KEPT + 3):
        inputs = oracle.draw_inputs(0, n_q=64)
        seen += [weakref.ref(inputs.q), weakref.ref(inputs.k)]
        kept.run(number, inputs, draws(1), gpu.decide)
    del inputs
    assert not any(tensor() is not None for tensor in seen)
    again = oracle.draw_inputs(0, n_q=64)
    for number in (KEPT + 2, 3, 0):
        kept.run(number, again, draws(1), gpu.decide)
    # A captured call replays at once; the first keys had to make room.
    assert gpu.kinds()[-5:] == ["captured", "replayed", "captured", "replayed", "eager"]


def test_graphs_beyond_their_share_of_memory_make_room_oldest_first(oracle):
    gpu = FakeGpu(step=10, most=25)
    kept, inputs = Graphs(gpu=gpu), oracle.draw_inputs(0, n_q=64)
    for key in (1, 2, 3, 4):
        for _ in range(2):
            kept.run(key, inputs, draws(1), gpu.decide)
    before = len(gpu.calls)
    for key in (4, 3, 2, 1):
        kept.run(key, inputs, draws(1), gpu.decide)
    assert gpu.kinds()[before:] == ["replayed", "replayed", "eager", "eager"]


def test_keys_that_do_not_fit_together_do_not_capture_each_other_away(oracle):
    gpu = FakeGpu(step=10, most=65)
    kept, inputs = Graphs(gpu=gpu), oracle.draw_inputs(0, n_q=64)
    for _layer in range(20):
        for segment in range(8):
            assert float(kept.run(segment, inputs, draws(segment), gpu.decide)) == 12 * segment
    assert gpu.kinds().count("captured") <= 8 and gpu.kinds().count("replayed") >= 6 * 18


def test_copied_inputs_lie_where_the_graph_reads_them(oracle, gpu):
    """And count among the bytes that are kept."""
    kept, calls = Graphs(gpu=gpu), []
    inputs = [oracle.draw_inputs(seed, n_q=64) for seed in range(3)]

    def attends(inputs, draws):
        calls.append((inputs.q.data_ptr(), int(inputs.table[0])))
        gpu.decide(inputs, draws)
        return inputs.q.sum() + inputs.k.sum() + inputs.v.sum()

    for x in inputs:
        found = kept.run("key", x, draws(0), attends, copied=True)
        assert torch.equal(found, x.q.sum() + x.k.sum() + x.v.sum())
    assert len({*calls}) == 1 and calls[0][0] == calls[0][1] != inputs[0].q.data_ptr()
    assert gpu.kinds() == ["eager", "captured", "replayed", "replayed"]
    assert kept._held() == sum(x.nbytes for x in (inputs[0].q, inputs[0].k, inputs[0].v))


def test_without_memory_for_copies_a_call_is_eager_and_what_was_kept_goes(oracle, gpu, monkeypatch):
    kept, inputs = Graphs(gpu=gpu), oracle.draw_inputs(0, n_q=64)
    kept.run("other", inputs, draws(0), gpu.decide)

    def full(_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "empty_like", full)
    assert float(kept.run("key", inputs, draws(2), gpu.decide, copied=True)) == 24.0
    assert gpu.calls[-1] == ("eager", None) and kept._held() == 0 and not kept._entries


def test_graphs_hold_no_more_than_stays_free(monkeypatch):
    """Of 80 GiB, of which a server left 6: 5 % where there is room, else half of what is free and held."""
    gib, gpu = 2**30, Gpu()
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 9 * gib)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 8 * gib)
    for free, held, most in ((60, 0, 4), (5, 0, 3), (3, 2, 3), (0, 3, 2)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free * gib, 80 * gib))
        assert gpu.most_bytes(torch.device("cuda"), held * gib) == most * gib
