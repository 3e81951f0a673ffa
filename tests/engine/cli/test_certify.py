"""``routesparse certify``: the model's own attention, three foreign plans, and one line per error. CPU, tiny model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from routesparse.engine.certificate_rows import totals
from routesparse.engine.store.bundle import read_certificate

TOKENS = 600


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("certify")
    (root / "profiles").mkdir()  # our router measures one
    tiny_model.save(root / "tiny")
    (root / "prompt.txt").write_text("the lazy dog sees a fox " * 25)
    return root / "tiny"


@pytest.fixture
def told(run, model, home):
    """Run certify with --json: exit code, the object and stderr."""

    def call(*arguments):
        prompt = model.parent / "prompt.txt"
        code, out, err = run("certify", "--model", model, "--prompt", prompt, *arguments, "--json")
        return code, json.loads(out) if out else None, err

    return call


def test_the_model_s_own_attention_is_exact(printed, told, model, home):
    code, found, err = told("--rows", 16)
    assert code == 0, err
    assert found["function"] == "sdpa" and found["plan"] is None and found["verdict"]["level"] == "exact"
    assert found["run"]["rows"] == 2 * 2 * 16 and len(found["heads"]) == 4
    out = printed("certify", "--model", model, "--prompt", model.parent / "prompt.txt")
    assert "attention 'sdpa': exact" in out and "beyond rounding" in out
    assert "--rows-of" not in out, "nothing was lost, so nothing is suggested"
    asked = ("certify", "--model", model, "--prompt", model.parent / "prompt.txt")
    out = printed(*asked, "--confidence", 0.995, "--method", "window=128")
    assert "at 99.5% confidence each" in out and "--rows-of 'its question'" in out
    assert told("--attention", "eager")[1]["function"] == "eager"


def masks(folder):
    """A .npy of all layers in blocks of 128 x 64, and a .safetensors of one layer in smaller ones."""
    blocks = np.tri(5, 10, 1, dtype=bool)
    blocks[:, 3:5] = False
    np.save(folder / "mask.npy", np.broadcast_to(blocks, (2, 2, 5, 10)))
    fine = np.random.default_rng(0).random((1, 19, 38)) < 0.3
    save_file({"layer.1": fine}, folder / "mask.safetensors", metadata={"block_q": "32", "block_k": "16"})
    heads = {str(h): ["vertical_and_slash", 30, 50, 0.9] for h in range(2)}
    (folder / "heads.json").write_text(json.dumps([heads, heads]))


@pytest.mark.parametrize(
    "arguments",
    [
        ("--mask", "mask.npy"),
        ("--mask", "mask.safetensors"),
        ("--minference", "heads.json"),
        ("--method", "window=128"),
    ],
    ids=lambda arguments: arguments[1],
)
def test_a_foreign_plan_is_run_and_certified(told, tmp_path, arguments):
    masks(tmp_path)
    option, value = arguments
    given = value if option == "--method" else tmp_path / value
    code, found, err = told(option, given, "--rows", 32)
    assert code == 0, err
    kept = found["run"]
    assert found["plan"] == value and found["verdict"]["level"] == "differs"
    assert 0 < kept["mass_bound"] <= kept["mass"] < 1 and kept["hit_rate_bound"] <= kept["hit_rate"]
    # The kernel computes the plan: what the function's output is off by is the plan's own error.
    assert kept["disagreement"] < 1e-4
    assert found["dense_layers"] == ([0] if value == "mask.safetensors" else [])
    if value == "mask.safetensors":
        assert found["layers"][0]["mass"] == pytest.approx(1.0) and found["layers"][1]["mass"] < 1.0


def test_heads_that_a_file_leaves_out_are_counted_in_the_report(told, tmp_path):
    path, head = tmp_path / "heads.json", ["vertical_and_slash", 30, 50, 0.9]
    path.write_text(json.dumps([{"1": head}]))
    code, found, err = told("--minference", path, "--rows", 8)
    assert code == 0, err
    assert any("1 of 4 heads; the other 3" in line for line in found["verdict"]["findings"])
    path.write_text(json.dumps([{"0": head}] * 3))
    code, _, err = told("--minference", path, "--rows", 8)
    assert code == 2 and "3 layers of up to 1 heads, the model has 2 of 2" in err


def test_rows_that_are_named_by_place_and_by_phrase_are_kept_with_their_text(told, run, model, tmp_path):
    text = "the lazy dog sees a fox " * 25 + "and the fox sees the last dog"
    (tmp_path / "asked.txt").write_text(text)
    asked = ("--prompt", tmp_path / "asked.txt", "--method", "window=128", "--rows", 8, "--out", tmp_path)
    code, found, err = told(*asked, "--rows-at", "last:4", "--rows-of", "sees the last")
    assert code == 0, err
    made = read_certificate(Path(found["bundle"]))
    (phrase, last), row = totals(made.named), made.certificate
    whole, kept = next(claim for claim in made.claims if claim.scope == "pass"), found["run"]
    stored = (whole.mass, whole.mass_bound, whole.hit_rate)
    assert stored == (kept["mass"], kept["mass_bound"], kept["hit_rate"])
    assert row.subject == "window=128" and len(made.claims) == 1 + 2 + 4
    assert json.loads(row.config_json)["rows_at"] == ["last:4", phrase.label]
    assert last.rows == 4 * 2 * 2 and 0 < last.mass < 1
    read = "".join(one.text for one in made.named if one.label == phrase.label)
    assert read.strip() == "sees the last"
    assert sum("no bound for others" in line for line in found["verdict"]["findings"]) == 2
    code, found, err = told(*asked, "--rows-of", "sees the last", "--no-text")
    bundle = Path(found["bundle"])
    assert code == 0 and all(one.text is None for one in read_certificate(bundle).named), err
    assert "sees the last" not in (bundle / "manifest.json").read_text(), "nor is the phrase kept"


def test_a_tolerance_that_is_not_kept_is_exit_code_1(told, tmp_path):
    masks(tmp_path)
    code, found, _ = told("--mask", tmp_path / "mask.npy", "--tolerance", 1e-3)
    assert code == 1 and found["verdict"]["level"] == "differs" and not found["verdict"]["passed"]
    code, found, _ = told("--mask", tmp_path / "mask.npy", "--tolerance", 5, "--most-beyond", 0.05)
    assert code == 0 and found["verdict"]["level"] == "within"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--attention", "nobody"), "attention 'nobody' can't be used here"),
        (("--method", "nobody"), "method 'nobody' is unknown"),
        (("--method", "xattention=much"), "no number behind '='"),
        (("--mask", "absent.npy"), "can't be read"),
        (("--minference", "absent.json"), "holds no MInference heads"),
        (("--method", "window", "--attention", "sdpa"), "pass one of them"),
        (("--method", "window=nan"), "needs a whole number above 0"),
        (("--method", "window=0.5"), "needs a whole number above 0"),
        (("--method", "xattention=nan"), "needs a number above 0"),
        (("--block-q", 0), "--block-q"),
        (("--method", "trianglemix=2"), "left all 2 layers dense"),
        (("--block-q", 64), "belong to --mask"),
        (("--rows", 1), "rows is 1, it must be a whole number from 2"),
        (("--rows-at", "64"), "'64' names no rows; write START:STOP"),
        (("--rows-at", "600:3000"), "end behind the prompt"),
        (("--rows-of", "a fox"), "25 times, at tokens"),
        (("--rows-of", "a bear"), "is not in prompt 'prompt.txt'"),
        (("--confidence", 2), "confidence is 2.0"),
    ],
    ids=lambda value: str(value[1]) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line_and_exit_code_2(told, arguments, line):
    code, found, err = told(*arguments)
    assert code == 2 and found is None and line in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 2, 3, 3), "need bool [2, 5, 10]"),
        ((5, 2, 5, 10), "the model's layers are 0 to 1"),
        ((1, 2, 5, 10), "has 1 layers; the model's layers are 0 to 1"),
    ],
)
def test_a_mask_of_another_prompt_or_model_is_refused(told, tmp_path, shape, message):
    np.save(tmp_path / "mask.npy", np.ones(shape, bool))
    code, _, err = told("--mask", tmp_path / "mask.npy")
    assert code == 2 and message in err


def test_our_own_router_is_certified_and_listed_and_exported(printed, told, run, model, home, tmp_path):
    code, found, err = told("--method", "routesparse", "--rows", 32)
    assert code == 0, err
    made = read_certificate(Path(found["bundle"]))
    row = made.certificate
    assert Path(found["bundle"]) == home / "spool" / row.run_id and row.run_id == found["run_id"]
    assert (row.function, row.plan, row.verdict) == ("routesparse", None, found["verdict"]["level"])
    assert json.loads(row.config_json)["router"]["break_even_tokens"] == 0, "however short the prompt is"
    whole = next(claim for claim in made.claims if claim.scope == "pass")
    assert whole.mean_error == pytest.approx(found["run"]["mean_error"])
    heads = (claim for claim in made.claims if claim.scope == "head")
    worst = max(heads, key=lambda claim: claim.largest_error)
    assert worst.largest_error == whole.largest_error and 0 <= worst.worst_position < row.tokens

    out = printed("runs", "--json")
    (listed,) = json.loads(out)["runs"]
    assert (listed["kind"], listed["run_id"]) == ("certificate", row.run_id)
    assert "certificate of" in run("runs")[1]
    assert run("export", row.run_id, "--out", tmp_path / "one.zip")[0] == 0
    shutil.rmtree(home / "spool")
    code, out, err = run("ingest", tmp_path / "one.zip", "--json")
    assert code == 0 and json.loads(out)["bundles"][0]["new"], err
    assert read_certificate(home / "spool" / row.run_id) == made


@pytest.fixture
def served(tmp_path):
    """A checkpoint's folder of this scale factor; its format: certification/test_served.py."""

    def write(factor=400, **more):
        group = {"algorithm": "skip_softmax", "threshold_scale_factor": {"prefill": factor}, **more}
        values = {"sparse_attention_config": {"config_groups": {"group_0": group}}}
        (tmp_path / "config.json").write_text(json.dumps(values))
        return tmp_path

    return write


def test_what_a_checkpoint_serves_is_run_and_certified(told, served, tmp_path):
    text = "z" * 128 + "the lazy dog " * 10 + "QQQQ XXXX " * 60  # in layer 0 no later row looks at the z's
    (tmp_path / "changing.txt").write_text(text)
    folder = served(0.9 * len(text), ignore=["model.layers.1.self_attn"])
    code, found, err = told("--prompt", tmp_path / "changing.txt", "--served", folder, "--rows", 32)
    assert code == 0, err
    assert found["verdict"]["level"] == "differs" and found["run"]["disagreement"] < 1e-4
    assert found["dense_layers"] == [1] and found["layers"][1]["mass"] == pytest.approx(1.0)
    assert 0.5 < found["layers"][0]["mass"] < 0.98
    (line,) = (one for one in found["verdict"]["findings"] if "serves skip-softmax" in one)
    assert "at threshold 0.899 (" in line and "1 of 2 layers dense" in line and "128 x 128 tiles" in line
    assert json.loads(read_certificate(Path(found["bundle"])).certificate.config_json)["served"] == line


def test_served_settings_of_ours_are_certified_as_they_stand(told, served, tmp_path):
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"price": 0.5, "break_even_tokens": 0}))
    code, found, err = told("--served", path, "--rows", 8)
    assert code == 0, err
    assert found["function"] == "routesparse" and found["plan"] is None
    router = json.loads(read_certificate(Path(found["bundle"])).certificate.config_json)["router"]
    assert (router["price"], router["break_even_tokens"]) == (0.5, 0)
    path.write_text(json.dumps({"break_even_tokens": 4096}))
    assert_one_line(
        told("--served", path, "--rows", 8), "ours.json serves this prompt dense; pass a longer one"
    )
    assert_one_line(told("--served", served(ignore=["*"])), "left all 2 layers dense")
    assert_one_line(told("--served", served(ignore=["layers.0"])), "'layers.0' names no attention layer")
    assert_one_line(told("--served", served(steps=5)), "group_0.steps is 5, it must be left out")
    assert_one_line(told("--served", served(), "--method", "window"), "pass one of them")


def assert_one_line(answer, line):
    code, found, err = answer
    assert code == 2 and found is None and line in err.splitlines()[-1]


def test_what_cannot_be_written_is_said_before_the_model_is_loaded(told, tmp_path):
    (tmp_path / "file").touch()
    code, found, err = told("--out", tmp_path / "file")
    assert code == 2 and found is None and "is a file; pass a folder" in err
