"""``--rope``: prompts beyond the model's context, and calibrations that know of it. CPU, a tiny model."""

import json
import random

import pytest

from routesparse.engine import paths
from routesparse.engine.models.files import revision_of

YARN = '{"rope_type": "yarn", "factor": 2.0}'


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    return tiny_model.save_profiled(tmp_path_factory.mktemp("rope"))


def words(seed, characters):
    drawn = random.Random(seed).choices(("the", "quick", "brown", "fox", "jumps", "over"), k=characters)
    return " ".join(drawn)[:characters]


def test_a_longer_prompt_is_read_and_the_record_says_how(run, model, home, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(words("prompt", 1_400))
    command = ("analyze", prompt, "--model", model, "--break-even", 0, "--no-answer-check")
    code, _, err = run(*command)
    assert code == 2 and "1,000" in err, "the model itself reads 1,000 tokens"
    code, out, err = run(*command, "--rope", YARN, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["tokens"] > 1_000
    manifest = json.loads((paths.spool() / found["run_id"] / "manifest.json").read_text())
    assert json.loads(manifest["config"]["rope"]) == json.loads(YARN)
    assert manifest["model"]["revision"] != revision_of(model)


@pytest.mark.parametrize("command", ["analyze", "calibrate", "tune"])
def test_a_wrong_rope_is_one_line_and_exit_code_2(refused, model, home, tmp_path, command):
    file = tmp_path / "prompt.txt"
    file.write_text(words("prompt", 700))
    arguments = {
        "analyze": (file, "--model", model),
        "calibrate": (model, file, "--domain", "mine"),
        "tune": ("mine", "--prompts", file, "--model", model),
    }[command]
    told = refused(command, *arguments, "--rope", '{"rope_type": "dynamic", "factor": 2}')
    assert "rope_type 'dynamic': its angles change with the prompt's length" in told
