import io
import math
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from routesparse.engine.errors import ModelError, UnsupportedModelError
from routesparse.engine.models import files, gguf, gguf_server
from routesparse.engine.models.load import load_model
from tests.engine.models import gguf_files


@pytest.fixture
def home(home, monkeypatch):
    """An empty home, and files read in this process: one of its own takes seconds to start."""

    class Here:
        lock = gguf._process.lock

        def ask(self, question, content, **bounds):
            try:
                return list(gguf_server._answer(content, *question))
            except Exception as error:
                raise gguf.NoAnswerError(gguf_server._told(error)) from error

        def end(self):
            return 0

    monkeypatch.setattr(gguf, "_process", Here())
    return home


def test_a_file_is_unpacked_once_within_bounds_and_is_that_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    file = gguf_files.write(tmp_path / "tiny.gguf")
    loaded = load_model(str(file))
    assert (loaded.name, loaded.layers, loaded.heads, loaded.kv_heads, loaded.max_tokens) == (
        "tiny",
        2,
        4,
        2,
        512,
    )
    known = gguf_files.VOCABULARY.index
    ids = [known("the"), *map(known, "Ġcat"), known("Ġthe")]
    assert loaded.tokenizer("the cat the").input_ids == ids
    stored = gguf_files.weights()
    found = loaded.model.state_dict()
    for layer in range(gguf_files.LAYERS):
        value = stored[f"blk.{layer}.attn_v.weight"]
        assert np.array_equal(found[f"model.layers.{layer}.self_attn.v_proj.weight"].numpy(), value)
    assert "unpacking tiny.gguf" in capsys.readouterr().err
    copied = tmp_path / "elsewhere" / "tiny.gguf"
    copied.parent.mkdir()
    shutil.copy(file, copied)
    assert load_model(str(copied.parent)).revision == loaded.revision  # a folder with the file alone
    assert capsys.readouterr().err == ""


def test_queries_and_keys_turn_as_transformers_turns_them(home, tmp_path):
    """llama.cpp stores the rows of a rotary pair next to each other, transformers half a head apart."""
    tensors = gguf_files.weights()
    own = AutoModelForCausalLM.from_pretrained(gguf.unpack(gguf_files.write(tmp_path / "a.gguf")))
    head = gguf_files.HIDDEN // gguf_files.HEADS
    rows = tensors["blk.0.attn_q.weight"].reshape(gguf_files.HEADS, head // 2, 2, -1)
    turned = rows.swapaxes(1, 2).reshape(gguf_files.HIDDEN, -1)
    assert torch.equal(own.model.layers[0].self_attn.q_proj.weight.float(), torch.from_numpy(turned.copy()))


def test_packed_blocks_are_read_as_the_format_s_own_library_reads_them(home, tmp_path):
    kind = GGMLQuantizationType.Q8_0
    file = gguf_files.write(tmp_path / "q8.gguf", kind=kind)
    assert gguf.describe(file).stored == "Q8_0" and gguf.describe(file).licence == "apache-2.0"
    model = AutoModelForCausalLM.from_pretrained(gguf.unpack(file), dtype=torch.bfloat16)
    packed = gguf_files.quants.quantize(gguf_files.weights()["blk.1.ffn_up.weight"], kind)
    expected = torch.from_numpy(gguf_files.quants.dequantize(packed, kind)).bfloat16()
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, expected)


def cut(file):
    file.write_bytes(file.read_bytes()[:-4000])


def no_gguf(file):
    file.write_bytes(b"PK\x03\x04" + file.read_bytes()[4:])


def endless(file):
    """A string of 2^62 bytes."""
    content = bytearray(file.read_bytes())
    content[24:32] = (1 << 62).to_bytes(8, "little")
    file.write_bytes(bytes(content))


def lying_over(file):
    """The second tensor where the first is."""
    content = bytearray(file.read_bytes())
    name = b"output_norm.weight"
    place = content.index(name) + len(name) + 4 + 8 + 4
    content[place : place + 8] = bytes(8)
    file.write_bytes(bytes(content))


WRONG = [
    ({}, cut, "tiny.gguf"),
    ({}, no_gguf, "does not begin as a GGUF file does"),
    ({}, endless, "no GGUF file that can be read"),
    ({}, lying_over, "lies over another one"),
    ({"layers": 4_000}, None, "4,000 layers in 20 tensors"),
    ({"tokenizer": False}, None, "holds no tokenizer"),
    ({"more": {"llama.rope.scaling.factor": 8.0}}, None, "rotary positions are rescaled"),
    ({"more": {"split.count": 3}}, None, "one of 3 parts; join them"),
    (
        {"tensors": {k: v for k, v in gguf_files.weights().items() if "1.ffn_up" not in k}},
        None,
        "lacks 1 weights",
    ),
    *(
        (
            {"tensors": gguf_files.weights() | {name: np.asarray(divisors, np.float32)}},
            None,
            "rescaled, and not as",
        )
        for name, divisors in (
            ("rope_freqs.weight", [2] * 8),
            ("rope_freqs.weight", [1] * 7),
            ("rope_freqs.weight", [math.nan] * 8),
            ("rope_factors_long.weight", [1] * 7 + [8]),
        )
    ),
    ({"more": {"llama.attention.head_count_kv": 3}}, None, "tiny"),
    ({"more": {"llama.attention.layer_norm_rms_epsilon": math.nan}}, None, r"^tiny\.gguf .*rms_norm_eps is"),
    *(
        ({"more": {key: value}}, None, rf"(?i)^tiny\.gguf .*{key} is {value}, it must be")
        for key, value in (
            ("llama.block_count", 5_000),
            ("llama.attention.head_count", 0),
            ("llama.embedding_length", 2_097_152),
            ("llama.rope.dimension_count", 0),
            ("llama.rope.freq_base", math.nan),
        )
    ),
]


@pytest.mark.parametrize(("changes", "damage", "told"), WRONG)
def test_a_file_that_cannot_be_used_ends_in_one_line_and_leaves_nothing(
    home, tmp_path, changes, damage, told
):
    file = gguf_files.write(tmp_path / "tiny.gguf", **changes)
    if damage is not None:
        damage(file)
    with pytest.raises(ModelError, match=told) as caught:
        gguf.unpack(file)
        files.check_folder(gguf.unpack(file))
    assert "\n" not in str(caught.value)
    assert gguf.unpacked(file) is None or "multiple" in str(caught.value)


def llama3_divisors(factor, base, head_dim, low=1.0, high=4.0, original=8192):
    """As llama.cpp's converter writes them."""
    divisors = []
    for frequency in 1.0 / (base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)):
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            divisors.append(1)
        elif wavelength > original / low:
            divisors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.asarray(divisors, np.float32)


@pytest.mark.parametrize(
    ("factor", "base"), [(8.0, 10_000.0), (32.0, 500_000.0), (1.0, 10_000.0)], ids=["3.1", "3.2", "unscaled"]
)
def test_frequencies_are_those_of_llama_3_bit_by_bit(home, tmp_path, factor, base):
    head_dim = gguf_files.HIDDEN // gguf_files.HEADS
    divisors = llama3_divisors(factor, base, head_dim)
    assert factor == 1 or ((divisors > 1) & (divisors < factor)).any()
    file = gguf_files.write(
        tmp_path / "tiny.gguf",
        tensors=gguf_files.weights() | {"rope_freqs.weight": divisors},
        more={"llama.rope.freq_base": base},
    )
    own = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    own |= {"original_max_position_embeddings": 8192}
    sizes = {"hidden_size": gguf_files.HIDDEN, "num_attention_heads": gguf_files.HEADS}
    expected = LlamaConfig(**sizes, rope_parameters={"rope_theta": base, **(own if factor > 1 else {})})
    loaded = load_model(str(file))
    found = loaded.model.model.rotary_emb.inv_freq
    assert torch.equal(found, LlamaRotaryEmbedding(expected).inv_freq)
    stored = base ** (-np.arange(0, head_dim, 2) / head_dim) / divisors.astype(np.float64)
    np.testing.assert_allclose(found.double().numpy(), stored, rtol=2**-21, atol=0)


@pytest.mark.parametrize(("factor", "head_dim"), [(8.0, 128), (32.0, 64), (32.0, 128)])
def test_what_a_converter_rounded_is_recognised_at_the_sizes_of_llama_3(factor, head_dim):
    config = LlamaConfig(head_dim=head_dim, rope_parameters={"rope_theta": 500_000.0})
    divisors = llama3_divisors(factor, 500_000.0, head_dim)
    assert gguf_server._llama3(divisors, config)["factor"] == factor
    divisors[head_dim // 4] *= 1.001
    with pytest.raises(ValueError, match="not as in Llama"):
        gguf_server._llama3(divisors, config)


def test_a_family_off_the_list_is_refused_by_its_header(home, tmp_path):
    with pytest.raises((UnsupportedModelError, ModelError), match="mamba"):
        gguf.describe(gguf_files.write(tmp_path / "m.gguf", architecture="mamba"))


def test_a_folder_with_two_files_asks_which(home, tmp_path):
    for name in ("a", "b"):
        gguf_files.write(tmp_path / f"{name}.gguf")
    with pytest.raises(ModelError, match=r"holds 2 GGUF files; pass one of them, such as a\.gguf"):
        files.resolve(str(tmp_path))


@pytest.fixture
def hashed(monkeypatch):
    """Files that were hashed, by their names, after a restart of this process ten seconds later."""
    real, found = gguf.hashlib.file_digest, []

    def digest(handle, name):
        found.append(Path(handle.name).name)
        return real(handle, name)

    monkeypatch.setattr(gguf.hashlib, "file_digest", digest)
    monkeypatch.setattr(gguf.time, "time_ns", lambda now=time.time_ns: now() + 10**10)
    return found


def restart():
    gguf._sha256.cache_clear()


def test_a_list_of_models_hashes_no_file(home, tmp_path, hashed):
    (home / "models").mkdir(parents=True)
    file = gguf_files.write(home / "models" / "tiny.gguf")
    assert files.offered() == {files.DEMO: files.DEMO} and gguf.describe(file) and hashed == []
    folder = gguf.unpack(file)
    assert hashed == ["tiny.gguf"]
    restart()
    assert files.offered()["tiny"] == str(folder) and gguf.unpack(file) == folder and hashed == ["tiny.gguf"]


@pytest.mark.parametrize("keeps_times", [True, False])
def test_a_changed_file_is_another_one_even_with_its_size_and_time(home, tmp_path, hashed, keeps_times):
    file = gguf_files.write(tmp_path / "tiny.gguf")
    folder, before = gguf.unpack(file), file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    if keeps_times:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    restart()
    assert gguf.unpacked(file) is None and gguf.unpack(file) != folder


def test_what_was_noted_of_a_file_is_renewed_when_it_moves_and_when_the_note_is_broken(
    home, tmp_path, hashed
):
    file = gguf_files.write(tmp_path / "tiny.gguf")
    folder = gguf.unpack(file)
    copied = tmp_path / "elsewhere" / "tiny.gguf"
    copied.parent.mkdir()
    shutil.copy(file, copied)
    for damage in (lambda note: None, lambda note: note.write_text("[1"), lambda note: note.unlink()):
        damage(folder.with_name("tiny.made-of.json"))
        hashed.clear()
        restart()
        assert gguf.unpacked(copied) == folder and hashed == ["tiny.gguf"]
        restart()
        assert gguf.unpacked(copied) == folder and hashed == ["tiny.gguf"]


def test_a_file_that_changed_a_moment_before_is_hashed_again(home, tmp_path, hashed, monkeypatch):
    """Two contents within one tick of its clock have the same state."""
    monkeypatch.setattr(gguf.time, "time_ns", time.time_ns)
    file = gguf_files.write(tmp_path / "tiny.gguf")
    monkeypatch.setattr(
        gguf.time, "time_ns", lambda: max(file.stat().st_mtime_ns, file.stat().st_ctime_ns) + 10**9
    )
    gguf.unpack(file)
    restart()
    gguf.unpacked(file)
    assert hashed == ["tiny.gguf"] * 2


def test_a_file_that_changes_meanwhile_is_not_unpacked(home, tmp_path, monkeypatch):
    file = gguf_files.write(tmp_path / "tiny.gguf")
    ask = gguf._process.ask

    def change(question, content, **bounds):
        found = ask(question, content, **bounds)
        if question[0] == "unpack":
            os.utime(file, ns=(0, 0))
        return found

    monkeypatch.setattr(gguf._process, "ask", change)
    with pytest.raises(ModelError, match="changed while it was unpacked; unpack it again"):
        gguf.unpack(file)
    assert not list((home / "unpacked").glob("*/*"))


def test_a_folder_with_a_file_alone_is_listed_as_that_file(home):
    folder = home / "models" / "mine"
    folder.mkdir(parents=True)
    file = gguf_files.write(folder / "tiny.gguf")
    assert files.folders()["tiny"] == file and "tiny" not in files.offered()
    made, name = files.resolve(str(folder))
    assert files.offered()[name] == str(made)
    another = shutil.copytree(folder, home / "models" / "other")
    assert files.folders()["tiny"] == file and files.folders()["other"] == another / "tiny.gguf"
    assert gguf.keep("tiny.gguf", io.BytesIO(file.read_bytes())) == "tiny"
    assert files.folders()["tiny"] == home / "models" / "tiny.gguf" and files.folders()["mine"] == file
    shutil.copy(file, folder / "more.gguf")
    assert files.folders()["mine"] == folder
    with pytest.raises(ModelError, match="holds 2 GGUF files; pass one of them"):
        files.check_folder(folder)


def test_an_upload_is_kept_whole_or_not_at_all(home, tmp_path):
    content = gguf_files.write(tmp_path / "tiny.gguf").read_bytes()
    assert gguf.keep("tiny.gguf", io.BytesIO(content)) == "tiny"
    assert files.folders()["tiny"].read_bytes() == content and "tiny" not in files.offered()
    gguf.unpack(files.folders()["tiny"])
    assert files.offered()["tiny"].endswith("/tiny")
    for name, part, told in (
        ("tiny.gguf", content, "is there already"),
        ("other.gguf", content[:5_000], "other.gguf"),
        ("../up.gguf", content, "can't be a model's name"),
        (".hidden.gguf", content, "can't be a model's name"),
    ):
        with pytest.raises(ModelError, match=told):
            gguf.keep(name, io.BytesIO(part))
    assert [path.name for path in (home / "models").iterdir()] == ["tiny.gguf"]
