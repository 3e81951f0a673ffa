"""``routesparse fit``: from folders of text to a fit that analyze and jobs aim by; one line per error. CPU."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from routesparse.engine.calibration import fitted
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.analysis import WarmAnalysis
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import revision_of
from routesparse.engine.prompts.text import decode_prompt
from routesparse.engine.runtime import replay

WORDS = ("fox", "dog", "over", "a", "lazy")


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model with one token per byte, and a home with a latency profile that fits it."""
    return tiny_model.save_profiled(tmp_path_factory.mktemp("fit"))


@pytest.fixture
def short(monkeypatch):
    """So short windows are replayed, too."""
    monkeypatch.setattr(replay, "LEAST_ROWS", 64)
    monkeypatch.setattr(fitted, "LEAST_TOKENS", 512)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """A folder of three documents for each of two kinds of text."""
    made = tmp_path_factory.mktemp("texts")
    for kind in ("verse", "law"):
        (made / kind).mkdir()
        for number in range(3):
            words = random.Random(f"{kind}{number}").choices(WORDS, k=500)
            (made / kind / f"{number}.txt").write_text(" ".join(words))
    return made


def fit(run, model, kinds, *more):
    folders = [part for kind in ("verse", "law") for part in ("--prompts", kinds / kind)]
    return run("fit", model, *folders, "--tokens", 600, "--windows", 6, "--prices", "0.5,4", *more)


def test_a_model_is_fitted_and_aimed_with_and_the_rows_stay(run, model, home, kinds, short, tmp_path):
    code, out, err = fit(run, model, kinds, "--json")
    assert code == 0, err
    told, made = json.loads(out), fitted.of_model(revision_of(model))
    assert told["path"] == str(home / "fits" / "tiny.json") and made.name == "tiny"
    assert made.domains == ["law", "verse"] and made.prices == (0.5, 4.0) and len(made.windows) == 12
    assert len({(one.domain, one.document) for one in made.windows}) == 6 and all(map(all, made.weights))
    assert max(one.replayed[1] for one in made.windows) > 0 < max(one.kl[1] for one in made.windows), (
        made.windows
    )
    floors = np.array(made.head_floors)
    assert floors.shape == np.shape(made.weights) and np.abs(floors).max() > 0
    # Nothing is measured again.
    rows = home / "fits" / "tiny.jsonl"
    lines = rows.read_text().splitlines()
    code, out, _ = fit(run, model, kinds)
    assert code == 0 and "factor and bound at .95" in out and "too few" in out
    assert [line for line in rows.read_text().splitlines() if '"kl"' in line] == [
        x for x in lines if '"kl"' in x
    ]

    (tmp_path / "a.txt").write_text(" ".join(random.Random(9).choices(WORDS, k=220)))
    shared = ("analyze", tmp_path / "a.txt", "--model", model, "--break-even", 512, "--segment", 1_024)
    code, out, err = run(*shared, "--json")
    assert code == 0, err
    found = json.loads(out)
    loss = found["loss"]
    manifest = json.loads((Path(found["bundle"]) / "manifest.json").read_text())
    assert manifest["config"]["head_floors"] == floors.tolist()
    assert found["price"] == 0.5 and (loss["loss_target"], loss["loss_fit"]) == (0.01, "mixed")
    code, out, err = run(*shared, "--price", 2, "--domain", "law", "--json")
    loss = json.loads(out)["loss"]
    assert json.loads(out)["price"] == 2 and (loss["loss_target"], loss["loss_fit"]) == (None, "law")
    code, _, err = run(*shared, "--loss", 1e-6)
    assert code == 0 and "no price that was measured keeps a loss of 1e-06 on mixed texts" in err
    seen = []
    WarmAnalysis(lambda prompt, loaded, config, **wishes: seen.append((config.price, wishes["loss_target"])))(
        RunRequest(model=str(model), segment=1_024, loss=1e-6),
        decode_prompt(b"a b", "a"),
        "id",
        lambda *_: None,
    )
    assert seen == [(0.5, 1e-6)]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--tokens", 500), "shorter windows are not replayed"),
        (("--prompts", "nowhere"), "nowhere is no folder of one kind of text"),
        (("--name", "a/b"), "is no name"),
        (("--prices", "x"), "are no numbers"),
    ],
)
def test_what_can_not_be_fitted_is_told_in_one_line(run, model, home, kinds, short, more, told):
    code, out, err = fit(run, model, kinds, *more)
    assert (code, out) == (2, "") and told in err and len(err.strip().splitlines()) == 1


def test_a_job_may_ask_for_a_loss_or_a_price(home):
    with pytest.raises(ConfigError, match="a loss sets the price"):
        RunRequest(loss=0.01, price=1.0)
    with pytest.raises(ConfigError, match="loss"):
        RunRequest(loss=-1.0)
    assert RunRequest.from_json(RunRequest(loss=0.02).to_json()).loss == 0.02
