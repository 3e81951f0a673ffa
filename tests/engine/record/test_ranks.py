"""One record of a prompt whose heads several processes served. No torch needed."""

import json
from dataclasses import replace

import pytest

from routesparse.engine.record.ranks import merged, shifted
from routesparse.engine.store.bundle import read_bundle, write_bundle


@pytest.fixture(scope="module")
def parts(factory):
    """Two processes' records; the second one took three times as long, and a layer of it promises less."""
    first = factory.priced(factory.make_record("3f9a1c20d4e5b678"))
    slower = tuple(
        replace(layer, kernel_us=3 * layer.kernel_us, probe_us=3 * layer.probe_us) for layer in first.layers
    )
    slower = (replace(slower[0], lower_mass=0.125, over_budget=True), *slower[1:])
    second = replace(factory.rename(first, "aaaaaaaaaaaaaaaa"), layers=slower)
    return first, shifted(second, first.run.heads)


def test_every_heads_rows_are_there_once_under_one_run(parts):
    whole, heads = merged(parts), parts[0].run.heads
    assert (whole.run.heads, whole.run.units) == (2 * heads, 2 * parts[0].run.units)
    assert {choice.run_id for choice in whole.choices} == {parts[0].run.run_id}
    keys = [(c.batch_index, c.layer, c.segment, c.head) for c in whole.choices]
    assert keys == sorted(set(keys)) and {key[-1] for key in keys} == set(range(2 * heads))
    for name in ("candidates", "fallbacks", "audits", "probes"):
        assert len(getattr(whole, name)) == sum(len(getattr(part, name)) for part in parts) > 0


def test_a_layers_time_is_the_slowest_processes_and_its_claim_the_least(parts):
    whole = merged(parts)
    for layer, slow in zip(whole.layers, parts[1].layers, strict=True):
        assert (layer.kernel_us, layer.probe_us) == (slow.kernel_us, slow.probe_us)
    assert whole.layers[0].lower_mass == 0.125 and whole.layers[0].over_budget
    assert whole.run.over_budget_layers >= 1
    assert whole.run.kernel_ms == pytest.approx(sum(layer.kernel_us for layer in whole.layers) / 1e3)
    config = json.loads(whole.run.config_json)
    assert config["ranks"] == 2 and 1 < config["rank_load"] < 1.5


def test_the_bundle_reads_back(parts, tmp_path):
    whole = merged(parts)
    back = read_bundle(write_bundle(whole, tmp_path))
    assert (back.run, back.layers) == (whole.run, whole.layers)
    for name in ("choices", "candidates", "fallbacks", "audits", "probes"):
        assert set(getattr(back, name)) == set(getattr(whole, name))
