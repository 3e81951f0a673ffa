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

LAB_MODEL = paths.REPOSITORY.parent / "shared" / "data" / "lab_model"


def save_tokenizer(folder, tokens=30):
    backend = Tokenizer(WordLevel({f"w{i}": i for i in range(tokens)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="w1").save_pretrained(folder)


def save_model(folder, seed=0, family="Llama", **overrides):
    torch.manual_seed(seed)
    shape = {
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    config = getattr(transformers, f"{family}Config")(**{**shape, **overrides})
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)


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


class TestWrongNames:
    def test_an_unknown_name(self):
        refused("nonesuch", "model 'nonesuch' is unknown; pass demo, a folder with config.json, or a hub id")

    @pytest.mark.parametrize("path", ["/nowhere/at/all", "./nowhere", "~/nowhere-at-all", "../x/y"])
    def test_a_missing_folder(self, path):
        refused(path, "is unknown; pass demo, a folder with config.json")

    def test_a_file(self, folder):
        refused(folder / "config.json", "is a file; pass the folder that holds it")

    def test_a_hub_id_without_network(self, monkeypatch, tmp_path):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        refused("no-such-org/no-such-model", "is neither a folder nor to be had from the hub")

    def test_the_bundled_model_missing(self, monkeypatch, tmp_path):
        monkeypatch.setattr(paths, "DATA", tmp_path)
        refused("demo", "the bundled model is missing")


class TestBrokenFolders:
    def test_no_config(self, folder):
        (folder / "config.json").unlink()
        refused(folder, "'tiny' has no config.json")

    @pytest.mark.parametrize("content", ["{", "\xff"])
    def test_a_corrupt_config(self, folder, content):
        (folder / "config.json").write_text(content, "latin-1")
        refused(folder, "tiny/config.json is not readable JSON")

    def test_a_config_nested_without_end(self, folder):
        (folder / "config.json").write_text("[" * 100_000)
        refused(folder, "tiny/config.json is not readable JSON")

    @pytest.mark.timeout(30)
    def test_a_pipe_in_place_of_a_config(self, folder):
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        refused(folder, "tiny/config.json is not readable JSON")

    def test_a_weight_file_shorter_than_its_header(self, folder):
        """The web process asks for the revision alone, without checking the weights."""
        (folder / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
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
    def test_a_config_that_counts_nothing(self, folder, change):
        """The web process counts tokens and memory with it."""
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, **change}))
        with pytest.raises(ModelError, match=f"can't be read .{next(iter(change))} is"):
            prompt_size(str(folder), "text")

    @pytest.mark.parametrize("content", ["[]", "{}", '{"model_type": 3}'])
    def test_a_config_without_a_model_type(self, folder, content):
        (folder / "config.json").write_text(content)
        refused(folder, "names no model_type")

    def test_an_unsupported_family_before_any_weight_is_read(self, folder):
        (folder / "config.json").write_text('{"model_type": "llama4"}')
        (folder / "model.safetensors").unlink()
        refused(folder, "model family 'llama4' is not supported", UnsupportedModelError)

    def test_a_config_that_contradicts_itself(self, folder):
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, "num_attention_heads": 5}))
        refused(folder, "tiny/config.json is wrong: The hidden size (32) is not a multiple")

    def test_no_weights(self, folder):
        (folder / "model.safetensors").unlink()
        refused(folder, "has no weights; RouteSparse reads *.safetensors only")

    def test_pickled_weights_only(self, folder):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        refused(folder, "has only weights in other formats; RouteSparse reads *.safetensors only")

    @pytest.mark.parametrize("keep", [0, 4, 100, -10])
    def test_a_truncated_weight_file(self, folder, keep):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:keep])
        refused(folder, "tiny/model.safetensors is corrupt")

    def test_weights_that_are_something_else(self, folder):
        (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
        refused(folder, "tiny/model.safetensors is corrupt")

    @pytest.mark.parametrize("shard", ["model-2.safetensors", "../outside.safetensors"])
    def test_a_missing_shard_or_one_outside(self, folder, shard):
        (folder.parent / "outside.safetensors").write_bytes(b"")
        index = {"weight_map": {"a": "model.safetensors", "b": shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        refused(folder, "model 'tiny' lacks")

    def test_an_index_without_a_map(self, folder):
        (folder / "model.safetensors.index.json").write_text("[]")
        refused(folder, "has no weight_map")

    def test_absent_tensors(self, folder):
        file = folder / "model.safetensors"
        weights = load_file(file)
        del weights["model.layers.1.self_attn.q_proj.weight"]
        save_file(weights, file, metadata={"format": "pt"})
        refused(folder, "lacks 1 weights, such as model.layers.1.self_attn.q_proj.weight")

    def test_tensors_of_another_shape(self, folder):
        save_model(folder / "other", hidden_size=64)
        shutil.copy(folder / "other" / "model.safetensors", folder)
        refused(folder, "model 'tiny' cannot be loaded")

    def test_no_tokenizer(self, folder):
        (folder / "tokenizer.json").unlink()
        refused(folder, "model 'tiny' has no tokenizer.json")

    def test_a_corrupt_tokenizer(self, folder):
        (folder / "tokenizer.json").write_text('{"version": "1.0"')
        refused(folder, "tiny/tokenizer.json is not readable JSON")
        (folder / "tokenizer.json").write_text('{"version": "1.0"}')
        refused(folder, "model 'tiny' cannot be loaded")

    def test_a_tokenizer_larger_than_the_embedding(self, folder):
        save_tokenizer(folder, tokens=40)
        refused(folder, "embeds 32 tokens but its tokenizer has 40; use the tokenizer that belongs to it")


@pytest.mark.skipif(not LAB_MODEL.is_dir(), reason=f"needs {LAB_MODEL.parent.parent.name}/data/lab_model")
def test_the_lab_model_loads():
    loaded = models.load_model(str(LAB_MODEL), device="cpu")
    assert (loaded.name, loaded.layers, loaded.heads, loaded.kv_heads) == ("lab_model", 8, 8, 4)
    assert (loaded.head_dim, loaded.max_tokens, loaded.dtype) == (64, 131_072, "float32")
