"""A layer as one graph is the layer piece by piece. A fake replays it on a CPU; test_no_sync.py replays real ones."""

from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import MOST_COPIED_BYTES, attended, begin, is_whole, plan_of
from routesparse.engine.device.graphs import Gpu, Graphs
from routesparse.engine.method.attend import execute
from routesparse.engine.method.segments import split

CONFIG = RouterConfig(segment_tokens=4_096, price=2.0)


def tensors_of(value):
    """All tensors inside records, dictionaries and tuples, in order."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))


class Replaying(Gpu):
    """Replays by running the function again, and writes into the tensors that were captured."""

    replays = 0

    def capture(self, function):
        result = function()

        def replay():
            self.replays += 1
            for there, here in zip(tensors_of(result), tensors_of(function()), strict=True):
                if there.dtype != torch.int64 or there.numel() != 2:  # clocks
                    there.copy_(here)

        return SimpleNamespace(replay=replay), result


@pytest.mark.parametrize("key_start", [None, [300]], ids=["plain", "padded"])
def test_a_layer_as_one_graph_is_the_layer_piece_by_piece(oracle, key_start):
    gpu = Replaying()
    graphs, kept = Graphs(gpu=gpu), []
    for layer in range(4):
        inputs = oracle.draw_inputs(layer, n_q=1_200, key_start=key_start)
        (segment,) = split(1_200, 1_200, CONFIG, 0)
        settings = LayerSettings(CONFIG, 1.0, oracle.PROFILE, None, 5)
        wanted = begin(inputs, segment, layer, settings)
        attention, finite = execute(inputs, plan_of(wanted, inputs), "fused", [wanted.choice])
        out, found, copies = attended(inputs, segment, layer, settings, None, graphs)
        kept.append((out, attention))
        left = {name: np.array(value) for name, value in copies.numpy().items()}
        assert bool(finite) and left["finite"] and left["kernel_us"].shape == (1,)
        torch.testing.assert_close(out, attention)
        own, its = wanted.read(), found.read()
        assert (own.choice == its.choice).all() and own.scores.mass.tolist() == its.scores.mass.tolist()
        for mine, theirs in zip(wanted.heatmaps.read(), found.heatmaps.read(), strict=True):
            assert np.array_equal(mine.mass, theirs.mass)
    assert gpu.replays == 3  # the second call is captured, then replayed as those behind it
    for out, attention in kept:  # a later layer writes to no output that somebody keeps
        torch.testing.assert_close(out, attention)


def test_long_prompts_and_what_has_no_graph_go_piece_by_piece(oracle):
    def on_gpu(tokens, **more):
        q, k = torch.empty(1, 8, 1, 64, dtype=torch.bfloat16), torch.empty(1, 2, 1, 64, dtype=torch.bfloat16)
        q, k = (SimpleNamespace(is_cuda=True, nbytes=x.nbytes * tokens) for x in (q, k))
        return SimpleNamespace(q=q, k=k, v=k, sinks=more.get("sinks"))

    most = MOST_COPIED_BYTES // (2 * 64 * 2 * (8 + 2))
    assert is_whole(on_gpu(most), CONFIG) and not is_whole(on_gpu(most + 1), CONFIG)
    assert not is_whole(on_gpu(most, sinks=1), CONFIG)
    assert not is_whole(on_gpu(most), replace(CONFIG, probe="pooled"))
    assert not is_whole(on_gpu(most), replace(CONFIG, launch="grouped"))
    assert not is_whole(oracle.draw_inputs(0, n_q=64), CONFIG)
