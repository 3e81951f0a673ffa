"""What the command line says of a run, above all of one of the policy "priced". Synthetic records: no model, no GPU."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from routesparse.engine.cli import analysis_text, bundles
from routesparse.engine.cli.output import analysis_object
from routesparse.engine.rows import AuditRow
from routesparse.engine.store.bundle import write_bundle


@pytest.fixture(scope="module")
def other(factory):
    shape = dict(layers=3, heads=4, segments=1, tokens=2048)
    return factory.make_record(**shape, probe=False, prompt=False, hardness=0.9)


@pytest.fixture(scope="module")
def priced(factory, other):
    return factory.priced(other)


@pytest.fixture
def without(priced):
    """As if fallback had been off: layer 2 is below its tau."""
    return replace(priced, layers=(*priced.layers[:2], replace(priced.layers[2], lower_mass=0.6)))


def test_the_json_object_has_price_taus_and_a_certificate_of_every_layer(priced):
    found = analysis_object(priced, Path("bundle"))
    assert (found["policy"], found["price"], found["tau"], found["tau_layer"]) == ("priced", 0.3, 0.4, 0.7)
    assert found["layer_certificates"] == [
        {"layer": row.layer, "lower_mass": row.lower_mass, "raised": row.raised, "uncertified": False}
        for row in priced.layers
    ]
    assert found["uncertified_layers"] == 0
    assert [c["gate_threshold"] for c in found["choices"]] == [c.gate_threshold for c in priced.choices]


def test_other_policies_have_null_where_only_priced_measures(other, capsys):
    found = analysis_object(other, Path("bundle"))
    names = ("price", "tau_layer", "uncertified_layers", "layer_certificates")
    assert {name: found[name] for name in names} == dict.fromkeys(names)
    assert found["tau"] == 0.9
    analysis_text.print_summary(other, Path("bundle"))
    assert "layer mass" not in capsys.readouterr().out


def test_the_summary_names_the_least_certified_layer_and_what_a_floor_is(priced, capsys):
    analysis_text.print_summary(priced, Path("bundle"))
    out = capsys.readouterr().out
    least = min(row.lower_mass for row in priced.layers)
    assert f"price 0.3; least certified layer mass {least:.3f}" in out and "1 of 3 layers raised" in out
    assert "tau_head 0.4 is a floor for single heads, not a measure of quality" in out


def test_a_layer_below_its_tau_is_counted_and_named(without, capsys):
    assert "1 of 3 layers ran without certified mass" in analysis_text.uncertified_layers_text(without)
    assert analysis_text.uncertified_layers_text(without).endswith("layer 2")
    found = analysis_object(without, Path("bundle"))
    assert found["uncertified_layers"] == 1 and found["layer_certificates"][2]["uncertified"]
    analysis_text.print_summary(without, Path("bundle"))
    assert "least certified layer mass 0.600 (layer 2" in capsys.readouterr().out


def test_a_run_of_dense_layers_says_that_none_needs_a_certificate(priced):
    layers = tuple(replace(row, lower_mass=None) for row in priced.layers)
    choices = tuple(replace(c, pattern="dense", lower_mass=None) for c in priced.choices)
    record = replace(priced, layers=layers, choices=choices)
    assert "no layer needs a certificate" in analysis_text.layers_text(record)
    assert record.uncertified_layers == ()


def test_fallbacks_and_uncertified_units_are_counted_and_named(other):
    """Head 1 of each layer, as the policy strict leaves it without time."""
    choices = [replace(c, pattern="a_shape", lower_mass=0.9 - 0.1 * (c.head == 1)) for c in other.choices]
    choices = [replace(c, unmet=True) if c.head == 1 else c for c in choices]
    record = replace(other, run=replace(other.run, dense_fallback_units=6), choices=tuple(choices))
    fallbacks, uncertified = analysis_text.warnings(record, fallback_limit=0.25)
    assert fallbacks.startswith("6 of 12 units fell back to dense, more than 25%")
    assert uncertified.startswith("3 of 12 units ran without certified mass, bound below tau 0.9 (T_l left 3")
    assert uncertified.endswith("layer 0 head 1, layer 1 head 1, layer 2 head 1")
    found = analysis_object(record, Path("bundle"))
    assert found["uncertified_units"] == 3
    assert [c["uncertified"] for c in found["choices"]] == [c["head"] == 1 for c in found["choices"]]


def test_a_kernel_that_wrote_something_else_failed(other, capsys):
    unit = AuditRow(other.run.run_id, 0, 1, 0, 0, 9, 0.9, 0.8, 0.85, True, 0.1, 0.2, 0.4, 0.3, 0)
    run = replace(other.run, coverage=1.0, mean_error=0.1, max_error=0.2, dtype="bfloat16")
    for error, told in ((2e-7, "at most 2.0e-07"), (0.02, "FAILED"), (None, "")):
        audits = (unit, replace(unit, head=1, executed_error=error))
        record = replace(other, run=run, audits=audits)
        analysis_text.print_summary(record, Path("bundle"))
        line = "".join(x for x in capsys.readouterr().out.splitlines() if "rebuilt rows" in x)
        assert bool(line) == (error is not None) and told in line
        found = analysis_object(record, Path("bundle"))["audit"]
        assert (found["executed_error"], found["deviating_units"]) == (error, error and int(error == 0.02))
        if error == 0.02:
            assert "in 1 of 1 audited units, worst in layer 1, head 1, segment 0" in line


def test_the_list_of_runs_shows_the_layer_s_tau_not_the_floor(without, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path))
    write_bundle(without, tmp_path / "spool")
    bundles.runs(limit=5, json_output=False)
    out = capsys.readouterr().out
    assert "0.7 a layer" in out and "layers 1" in out
    bundles.runs(limit=5, json_output=True)
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["price"], run["tau_layer"], run["uncertified_layers"]) == (0.3, 0.7, 1)
