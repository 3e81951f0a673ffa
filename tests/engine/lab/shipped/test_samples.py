"""The bundled samples: which prompts they take. A tiny model on a CPU; nothing is routed."""

from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.shipped import samples
from routesparse.engine.models.load import load_model


@pytest.fixture(scope="module")
def loaded(tiny_model, tmp_path_factory):
    tiny = load_model(str(tiny_model.save(tmp_path_factory.mktemp("model") / "tiny")), device="cpu")
    return replace(tiny, max_tokens=4_000)  # it only counts tokens here


@pytest.fixture
def prompts(loaded, tmp_path):
    """The three prompt files, made from texts of short lines."""
    for source in samples.SOURCES.values():
        path = tmp_path / "data" / source
        path.parent.mkdir(parents=True)
        path.write_text("some words of a line\n" * 2_000)
    folder = tmp_path / "prompts"
    samples.make_prompts(loaded, tmp_path / "data", 3_000, folder)
    return folder


def test_a_prompt_fills_its_tokens_and_ends_with_a_line(loaded, prompts):
    for name in ("prose", "code"):
        text = (prompts / f"{name}.txt").read_text()
        tokens = len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
        assert 2_979 < tokens <= 3_000 and text.endswith("line\n")
    assert len(loaded.tokenizer((prompts / "needles.txt").read_text())["input_ids"]) <= 3_000


def made(monkeypatch, **values):
    """``samples.analyse`` with records of these values, and the configurations that it asked for."""
    run = {
        "routed": True,
        "tokens": 3_000,
        "density": 0.3,
        "coverage": 1.0,
        "expanded_units": 1,
        "drift_alarm": True,
    }
    run |= {"dense_fallback_units": 0, "total_ms": 1.0, "dense_ms": 2.0} | values
    fallbacks = ("event",) * run["expanded_units"]
    asked = []

    def analyze_prompt(prompt, loaded, config, **options):
        asked.append((config, options.get("domain"), options.get("calibration")))
        return SimpleNamespace(run=SimpleNamespace(**run), fallbacks=fallbacks)

    monkeypatch.setattr(samples, "analyze_prompt", analyze_prompt)
    return asked


def test_samples_route_by_themselves(loaded, prompts, monkeypatch):
    asked = made(monkeypatch)
    records = samples.analyse(loaded, Namespace(prompts_folder=prompts, seed=4))
    assert len(records) == 3 and {(c.break_even_tokens, c.seed) for c, *_ in asked[1:]} == {(None, 4)}
    assert [calibration for _, _, calibration in asked[1:]] == ["prose", None, "prose"], (
        "code raises the alarm"
    )


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"routed": False}, "below this machine's break-even"),
        ({"expanded_units": 0}, "fell back"),
        ({"drift_alarm": False}, "shows the alarm"),
    ],
)
def test_samples_that_do_not_show_what_they_are_for_replace_nothing(
    loaded, prompts, monkeypatch, tmp_path, values, told
):
    made(monkeypatch, **values)
    old = tmp_path / "runs" / "old"
    old.mkdir(parents=True)
    monkeypatch.setattr(samples, "load_model", lambda name: loaded)
    with pytest.raises(InputError, match=told):
        samples.main([f"--out={old.parent}", f"--prompts-folder={prompts}"])
    assert old.is_dir()
