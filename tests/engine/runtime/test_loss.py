"""The predicted loss of an analysed prompt: with and without a fit, beside dense attention. A tiny model, CPU."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.analyze import analyze_prompt
from routesparse.engine.calibrate.fitting import Heads, fitted_from
from routesparse.engine.calibration import fitted
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ConfigError
from routesparse.engine.models.load import load_model
from routesparse.engine.prompts.text import decode_prompt
from routesparse.engine.runtime import loss, replay
from routesparse.engine.runtime.loss import Replay, Seen, with_loss
from routesparse.engine.runtime.route import route
from routesparse.engine.store.bundle import read_bundle, write_bundle
from tests.engine.calibration.test_fitted import HEADER, rows

TEXT = "A grey ship lay beyond the pier, and nobody in the harbour had seen it come. " * 11


@pytest.fixture
def loaded(tiny_model, home, monkeypatch):
    """A tiny model whose predictions are sharp; so short prompts are replayed, too."""
    monkeypatch.setattr(replay, "LEAST_ROWS", 64)
    found = load_model(str(tiny_model.save_profiled(home)))
    with torch.no_grad():
        found.model.lm_head.weight.mul_(8)
    return found


def analysed(loaded, **wishes):
    prompt = loaded.tokenize(decode_prompt(TEXT.encode(), "ship.txt"))
    config = RouterConfig(
        segment_tokens=1_024, tail_tokens=64, price=8.0, break_even_tokens=512, tau_layer=0.0, tau_head=0.0
    )
    return analyze_prompt(prompt, loaded, config, **wishes)


def test_a_model_without_a_fit_has_a_prediction_by_the_stated_factor_and_the_truth_beside_it(
    loaded, tmp_path
):
    record = analysed(loaded, loss_target=0.02)
    run = record.run
    assert run.sparse_units and len(record.losses) == 4 and sum(row.tokens for row in record.losses) == 64
    seen, truth = (np.mean([getattr(row, name) for row in record.losses]) for name in ("replayed", "dense"))
    assert 0 < seen == pytest.approx(truth, rel=0.5)
    assert run.loss_nats == pytest.approx(fitted.STATED_FACTOR * seen)
    assert (run.loss_bound, run.loss_fit, run.loss_alarm, run.loss_target) == (
        None,
        None,
        None,
        0.02,
    ) and run.loss_ms > 0
    assert {choice.loss_nats for choice in record.choices} == {None}
    assert read_bundle(write_bundle(record, tmp_path)).losses == record.losses
    alone = analysed(loaded, check_answer=False)
    assert {row.dense for row in alone.losses} == {None}
    assert [row.replayed for row in alone.losses] == [row.replayed for row in record.losses]


def test_a_fit_adds_a_bound_and_each_heads_part(loaded, home):
    weights = tuple(
        tuple(1.0 + layer + head for head in range(loaded.heads)) for layer in range(loaded.layers)
    )
    header = HEADER | {"revision": loaded.revision}
    fit = fitted_from(
        rows("prose", 24, lambda place: 1.1 + 0.01 * place),
        [header],
        Heads(weights, None),
        name="t",
        command="c",
    )
    fit.save(home / "fits" / "t.json")
    run = (record := analysed(loaded, domain="prose")).run
    seen = float(np.mean([row.replayed for row in record.losses]))
    wanted = fit.predicted(seen, "prose", run.confidence)
    assert (run.loss_nats, run.loss_bound, run.loss_fit) == (wanted.nats, wanted.bound, "prose")
    assert run.loss_alarm is True  # every window of this fit has the same entropy
    parts = [choice.loss_nats for choice in record.choices]
    assert sum(parts) == pytest.approx(run.loss_nats) and min(parts) >= 0 and max(parts) > 0
    dense = [choice.loss_nats for choice in record.choices if choice.pattern == "dense"]
    assert all(part < 1e-9 for part in dense)
    assert analysed(loaded, domain="verse").run.loss_fit == "prose"  # the only kind, so the nearest
    replace(fit, head_floors=((0.0,) * loaded.heads,) * loaded.layers).save(home / "fits" / "t.json")
    prompt = loaded.tokenize(decode_prompt(TEXT.encode(), "ship.txt"))
    config = RouterConfig(
        policy="certified", segment_tokens=1_024, tail_tokens=64, break_even_tokens=512, tau=0.3
    )
    run = analyze_prompt(prompt, loaded, config).run
    assert run.loss_fit == "prose" and run.loss_bound is None, "the fit's windows had another policy"


def test_what_ran_dense_or_is_too_short_has_no_prediction(loaded, monkeypatch):
    record = analysed(loaded)
    untouched = replace(record, run=replace(record.run, routed=False, loss_nats=None, loss_target=None))
    seen = Seen(np.arange(32).reshape(2, 16), np.ones(2), None, np.ones((2, 2)), 1.0, 1.0, 1.0)
    found = with_loss(untouched, seen, None, 0.01, RouterConfig()).run
    assert found == replace(untouched.run, loss_target=0.01)
    monkeypatch.setattr(replay, "LEAST_ROWS", 256)
    short = analysed(loaded)
    assert short.run.loss_nats is None and short.losses == ()


def test_without_memory_for_its_keys_a_prompt_is_not_replayed(loaded, monkeypatch):
    monkeypatch.setattr(type(loaded), "free_bytes", lambda self: 1_000)
    router = object()
    asked = Replay(loaded, router, 900, "salt")
    assert asked.router is router and asked.of(torch.zeros(1, 900), None) is None


def test_a_replay_without_memory_costs_the_prediction_and_not_the_run(loaded, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loss, "replayed", full)
    with pytest.warns(UserWarning, match="no memory is left for a replay"):
        record = analysed(loaded)
    assert record.run.routed and record.run.loss_nats is None and record.losses == ()


def test_command_line_and_json_tell_the_loss_first(printed, run, loaded, home, tmp_path):
    (tmp_path / "ship.txt").write_text(TEXT)
    shared = (
        "analyze",
        tmp_path / "ship.txt",
        "--model",
        home / "tiny",
        "--break-even",
        512,
        "--segment",
        1_024,
    )
    told = json.loads(printed(*shared, "--json"))["loss"]
    assert told["loss_nats"] >= 0 and len(told["stretches"]) == 4 and told["loss_fit"] is None
    out = printed(*shared)
    assert "predicted loss 0." in out and "this model is not fitted; 64 rows replayed" in out
    code, _, err = run(*shared, "--loss", 0.01)
    assert code == 2 and "is not fitted" in err and "routesparse fit" in err
    code, _, err = run(*shared, "--loss", 0.01, "--price", 1)
    assert code == 2 and "--loss sets the price" in err


def test_certify_tells_the_loss_of_anybodys_attention(printed, loaded, home, tmp_path):
    (tmp_path / "ship.txt").write_text(TEXT)
    shared = ("certify", "--prompt", tmp_path / "ship.txt", "--model", home / "tiny")
    found = {}
    for name, more in (
        ("own", ()),
        ("window", ("--method", "window=128")),
        ("ours", ("--method", "routesparse")),
    ):
        out = printed(*shared, *more, "--json")
        found[name] = json.loads(out)["loss"]
    assert found["own"]["loss_nats"] < 1e-6 < found["window"]["loss_nats"]
    assert {one["replayed_rows"] for one in found.values()} == {64}
    changing = (
        "z" * 128 + "the lazy dog " * 10 + "QQQQ XXXX " * 60
    )  # in layer 0 no later row looks at the z's
    (tmp_path / "ship.txt").write_text(changing)
    group = {"algorithm": "skip_softmax", "threshold_scale_factor": 0.9 * len(changing)}
    (tmp_path / "config.json").write_text(json.dumps({"sparse_attention_config": group}))
    served = json.loads(printed(*shared, "--served", tmp_path, "--json"))["loss"]
    assert served["loss_nats"] > 1e-6 and served["loss_bound"] is None
    (tmp_path / "ship.txt").write_text(TEXT)
    header = HEADER | {"revision": loaded.revision}
    fitted_from(rows("prose", 24), [header], Heads(None, None), name="t", command="c").save(
        home / "fits" / "t.json"
    )
    out = printed(*shared, "--method", "window=128")
    assert "no bound, by the factor of its fit; 64 rows replayed" in out
    out = printed(*shared, "--method", "routesparse")
    assert "(95%), by the factor of its fit" in out


def test_route_aims_at_a_loss_by_the_models_fit_and_its_head_floors(tiny_model, home):
    folder = tiny_model.save_profiled(home)
    loaded = load_model(str(folder))
    with pytest.raises(CalibrationError, match="is not fitted"), route(loaded.model, loss=0.01):
        pass
    floors = tuple(tuple(0.1 * head for head in range(loaded.heads)) for _ in range(loaded.layers))
    header = HEADER | {"revision": loaded.revision}
    fit = fitted_from(rows("prose", 24), [header], Heads(None, floors), name="t", command="c")
    fit.save(home / "fits" / "t.json")
    with route(loaded.model, loss=0.02) as trace:
        config = trace.settings.config
    assert (config.price, config.head_floors, config.segment_tokens) == (0.5, floors, 16_384)
    with pytest.warns(UserWarning, match="no price that was measured"), route(loaded.model, loss=1e-4):
        pass
    for more in ({"price": 1.0}, {"calibration": "prose"}, {"policy": "certified"}):
        with pytest.raises(ConfigError, match="loss sets the price"), route(loaded.model, loss=0.01, **more):
            pass
    with pytest.raises(ConfigError, match="loss"), route(loaded.model, loss=-1.0):
        pass
