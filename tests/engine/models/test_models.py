"""Loading models: what a record learns, and one clear line for every broken folder. CPU, tiny models."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from routesparse.engine import paths
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.errors import CalibrationError, ModelError, UnsupportedModelError
from routesparse.engine.models import files as model_files
from routesparse.engine.models import load as models
from routesparse.engine.models.token_count import prompt_size
from routesparse.engine.runtime.route import route
from tests.engine.tiny_shape import SHAPE

LAB_MODEL = paths.REPOSITORY.parent / "shared" / "data" / "lab_model"


def save_tokenizer(folder, tokens=30):
    backend = Tokenizer(WordLevel({f"w{i}": i for i in range(tokens)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="w1").save_pretrained(folder)


def save_model(folder, seed=0, **overrides):
    torch.manual_seed(seed)
    shape = {**SHAPE, "vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
    config = transformers.LlamaConfig(**{**shape, "max_position_embeddings": 512, **overrides})
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def reconfigure(folder, **change):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_model(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def refused(name_or_path, message, error=ModelError):
    with pytest.raises(error) as caught:
        models.load_model(str(name_or_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_loads_with_what_records_need(folder):
    loaded = models.load_model(str(folder), device="cpu")
    assert (loaded.name, loaded.device, loaded.dtype, loaded.max_tokens) == ("tiny", "cpu", "float32", 512)
    assert (loaded.layers, loaded.heads, loaded.kv_heads, loaded.head_dim) == (2, 4, 2, 8)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert len(loaded.revision) == len(loaded.tokenizer_hash) == 16


def test_bfloat16_weights_are_upcast_on_a_cpu(folder):
    file = folder / "model.safetensors"
    weights = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
    model = models.load_model(str(folder), device="cpu").model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_loading_draws_no_progress_bar(folder, capfd):
    models.load_model(str(folder), device="cpu")
    assert capfd.readouterr() == ("", "")


def test_the_revision_follows_config_and_weights(folder, tmp_path):
    before = model_files.revision_of(folder)
    assert model_files.revision_of(shutil.copytree(folder, tmp_path / "copy")) == before
    save_model(folder, seed=1)
    fine_tuned = model_files.revision_of(folder)
    assert fine_tuned != before, "same shapes, other weights"
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("512", "256"))
    assert model_files.revision_of(folder) not in (before, fine_tuned)


def test_a_model_in_memory_has_the_revision_of_its_files(folder):
    loaded = models.load_model(str(folder), device="cpu")
    assert models.revision_of_model(loaded.model) == loaded.revision
    made = transformers.LlamaForCausalLM(loaded.model.config.__class__(**loaded.model.config.to_dict()))
    made.name_or_path = ""
    with pytest.raises(ModelError, match="load it with from_pretrained"):
        models.revision_of_model(made)


def test_route_refuses_a_calibration_of_another_revision(folder):
    loaded = models.load_model(str(folder), device="cpu")
    other = Calibration("prose", "prose", 0.9, 0.5, "other", "0" * 16, "", {}, (), (), 0, {})
    with (
        pytest.raises(CalibrationError, match="pass a calibration of this model"),
        route(loaded.model, calibration=other),
    ):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nonesuch", "model 'nonesuch' is unknown; pass demo, a folder or a hub id"),
        *(
            (path, "is unknown; pass demo")
            for path in ("/nowhere/at/all", "./nowhere", "~/nowhere", "../x/y")
        ),
        (__file__, "is a file; pass a .gguf file or the folder that holds it"),
        ("no-such-org/no-such-model", "is neither a folder nor to be had from the hub"),
        ("demo", "the bundled model is missing"),
    ],
)
def test_a_wrong_name_is_one_line(monkeypatch, tmp_path, name, message):
    """Without a network, and without the bundled model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(paths, "DATA", tmp_path)
    refused(name, message)


WEIGHTS, INDEX, LFS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "version https://git-lfs.github.com\n",
)
CONTENTS = [
    *(("config.json", content, "not readable JSON") for content in (b"{", b"\xff", b"[" * 100_000)),
    *(("config.json", content, "names no model_type") for content in (b"[]", b"{}", b'{"model_type": 3}')),
    (WEIGHTS, LFS.encode() * 3, "tiny/model.safetensors is corrupt"),
    *((WEIGHTS, slice(keep), "tiny/model.safetensors is corrupt") for keep in (0, 4, 100, -10)),
    (INDEX, b"[]", "has no weight_map"),
    (INDEX, b'{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}', "model 'tiny' lacks"),
    (INDEX, b'{"weight_map": {"a": "../outside.safetensors"}}', "model 'tiny' lacks"),
    ("tokenizer.json", b'{"version": "1.0"', "tiny/tokenizer.json is not readable JSON"),
    ("tokenizer.json", b'{"version": "1.0"}', "model 'tiny' cannot be loaded"),
    ("config.json", None, "'tiny' has no config.json"),
    (WEIGHTS, None, "has no weights; RouteSparse reads *.safetensors and *.gguf"),
    ("tokenizer.json", None, "model 'tiny' has no tokenizer.json"),
]


@pytest.mark.parametrize(("name", "content", "message"), CONTENTS, ids=lambda value: str(value)[:30])
def test_a_file_that_is_missing_cut_or_something_else_is_one_line(folder, name, content, message):
    file = folder / name
    (folder.parent / "outside.safetensors").write_bytes(b"")
    if content is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[content] if isinstance(content, slice) else content)
    refused(folder, message)


def test_a_pipe_in_place_of_a_config_is_not_waited_for(folder):
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    refused(folder, "tiny/config.json is not readable JSON")


def test_a_weight_file_shorter_than_its_header(folder):
    """The web process asks for the revision alone, without checking the weights."""
    (folder / WEIGHTS).write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelError, match="shorter than its header"):
        model_files.revision_of(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"max_position_embeddings": None},
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"head_dim": True},
    ],
)
def test_a_config_that_counts_nothing(folder, change):
    """The web process counts tokens and memory with it."""
    reconfigure(folder, **change)
    with pytest.raises(ModelError, match=f"can't be read .{next(iter(change))} is"):
        prompt_size(str(folder), "text")


def test_a_config_that_contradicts_itself(folder):
    reconfigure(folder, num_attention_heads=5)
    refused(folder, "tiny/config.json is wrong: The hidden size (32) is not a multiple")


def test_an_unsupported_family_is_refused_before_any_weight_is_read(folder):
    (folder / "config.json").write_text('{"model_type": "llama4"}')
    (folder / WEIGHTS).unlink()
    refused(folder, "model family 'llama4' is not supported", UnsupportedModelError)


def test_files_that_do_not_belong_together(folder):
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    refused(folder, "lacks 1 weights, such as model.layers.1.self_attn.q_proj.weight")
    save_model(folder / "other", hidden_size=64)
    shutil.copy(folder / "other" / WEIGHTS, folder)
    refused(folder, "model 'tiny' cannot be loaded")
    save_tokenizer(folder, tokens=40)
    refused(folder, "embeds 32 tokens but its tokenizer has 40; use the tokenizer that belongs to it")
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    save_tokenizer(folder)
    refused(folder, "has only weights in other formats; RouteSparse reads *.safetensors and *.gguf")


@pytest.mark.skipif(not LAB_MODEL.is_dir(), reason=f"needs {LAB_MODEL.parent.parent.name}/data/lab_model")
def test_the_lab_model_loads():
    loaded = models.load_model(str(LAB_MODEL), device="cpu")
    assert (loaded.name, loaded.layers, loaded.heads, loaded.kv_heads) == ("lab_model", 8, 8, 4)
    assert (loaded.head_dim, loaded.max_tokens, loaded.dtype) == (64, 131_072, "float32")


def test_what_lies_in_the_models_folder_goes_by_its_name_unless_a_path_has_it(
    home, folder, monkeypatch, tmp_path
):
    paths.models().mkdir(parents=True)
    (paths.models() / "mine").symlink_to(folder)
    assert models.load_tokenizer("mine").tokenizer_hash == models.load_tokenizer(str(folder)).tokenizer_hash
    assert models.load_model("mine", device="cpu").name == "mine"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    refused("mine", "config.json")
