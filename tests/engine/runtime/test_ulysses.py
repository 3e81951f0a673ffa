"""A prompt in two halves by DeepSpeed's Ulysses; CPU, gloo. Skipped where DeepSpeed is not installed."""

import importlib.util

import pytest

PROCESSES = 2

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: pip install deepspeed==0.19.8"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, torchrun):
    """What each process found (ulysses_runs.py)."""
    out = tmp_path_factory.mktemp("ranks")
    return torchrun("ulysses_runs.py", PROCESSES, out, out, DS_ACCELERATOR="cpu")


@pytest.mark.parametrize(("price", "is_full"), [("1e-06", True), ("1.0", False)], ids=["full", "priced"])
def test_logits_and_choices_are_those_of_one_process(ranks, price, is_full):
    assert all(found[price]["difference"] < 1e-4 for found in ranks)
    first = ranks[0][price]
    assert first["same"] and first["tokens"] == 512
    assert (first["density"] == 1) == is_full
