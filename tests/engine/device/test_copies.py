"""Constants, packed copies and laps. CPU only; test_no_sync.py has the GPU's side."""

import time

import numpy as np
import pytest
import torch

from routesparse.engine.device.constants import constant, holding
from routesparse.engine.device.copies import Packed, Readout
from routesparse.engine.device.timing import Laps, Stamps


def test_packed_tensors_come_back_with_their_names_shapes_and_types():
    tensors = {
        "mass": torch.rand(3, 4, dtype=torch.float64),
        "choice": torch.tensor([[5, -1], [2**40, 0]]),
        "limited": torch.tensor(True),
        "tested": torch.tensor([[True, False]]),
        "none": torch.zeros(0, 7),
    }
    layout = {name: (tuple(x.shape), x.numpy().dtype) for name, x in tensors.items()}
    values = torch.cat([x.flatten().double() for x in tensors.values()])
    found = Readout(Packed(values, layout)).numpy()
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        wanted = tensor.numpy()
        assert found[name].dtype == wanted.dtype
        np.testing.assert_array_equal(found[name], wanted)


def test_a_constant_is_moved_once_and_told_apart_by_value_type_and_shape():
    cpu = torch.device("cpu")
    values = np.arange(6)
    first = constant(values, cpu)
    assert constant(values.copy(), cpu) is first
    values[0] = 9
    assert constant(values, cpu)[0] == 9 and first[0] == 0
    assert constant(np.arange(6).reshape(2, 3), cpu).shape == (2, 3)
    assert constant(np.arange(6, dtype=np.int32), cpu).dtype == torch.int32


def test_held_constants_outlive_the_cache_and_are_found_again():
    """A captured graph reads them by address, so its second run must move nothing and meet the same tensors."""
    cpu, held = torch.device("cpu"), {}
    with holding(held):
        first = constant(np.arange(4), cpu)
    assert constant(np.arange(4), cpu) is first
    for other in range(5_000):
        constant(np.array([other]), cpu)
    assert constant(np.arange(4), cpu) is not first
    with holding(held):
        assert constant(np.arange(4), cpu) is first


@pytest.mark.parametrize("kind", ["laps", "stamps"])
def test_laps_are_the_times_between_their_marks_in_microseconds(kind):
    cpu, began = torch.device("cpu"), time.perf_counter()
    laps = Laps(cpu) if kind == "laps" else Stamps(cpu, laps=2)
    for seconds in (0.02, 0.06):
        time.sleep(seconds)
        laps.lap()
    whole = (time.perf_counter() - began) * 1e6
    short, long = (float(x) for x in laps.elapsed_us())
    assert short >= 20_000 and long >= 60_000 and short + long <= whole
