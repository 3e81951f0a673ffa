"""Tokens as the web process counts and cuts them and as a worker reads them, and tokenizers that fail. CPU."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from routesparse.engine.calibrate.prompts import tokenized
from routesparse.engine.errors import ModelError
from routesparse.engine.models.files import check_folder
from routesparse.engine.models.load import load_model
from routesparse.engine.models.token_count import part_of, prompt_size, refuse_before_loading
from routesparse.engine.prompts.text import decode_prompt

WORDS = "the ledger of the harbour lists every crate, Überfahrt 漢字 and 1,024 barrels\n\n"
TEXT = WORDS * 40
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level():
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    letters = sorted(alphabet)
    return backend, trainers.BpeTrainer(vocab_size=380, special_tokens=SPECIAL, initial_alphabet=letters)


def metaspace():
    backend = Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return backend, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")


def word_piece():
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend, trainers.WordPieceTrainer(vocab_size=120, special_tokens=SPECIAL)


def byte_fallback():
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    return backend, trainers.BpeTrainer(
        vocab_size=380, special_tokens=[*SPECIAL, *bytes_], limit_alphabet=30, max_token_length=8
    )


KINDS = {kind.__name__: kind for kind in (byte_level, metaspace, word_piece, byte_fallback)}
CHANGES = {
    "as it is": lambda backend: None,
    "truncation": lambda backend: backend.enable_truncation(513, stride=2),
    "padding": lambda backend: backend.enable_padding(length=2_000, pad_id=2, pad_token="</s>"),
    "padding without end": lambda backend: backend.enable_padding(length=2_000_000_000),
    "bos": lambda backend: setattr(
        backend, "post_processor", processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    ),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = transformers.LlamaConfig(
        vocab_size=400, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8_192,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def folder_with(tiny, tmp_path, kind, change="as it is", **settings):
    """The model with a tokenizer of this kind; settings go into tokenizer_config.json."""
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    backend, trainer = KINDS[kind]()
    backend.train_from_iterator([TEXT], trainer)
    CHANGES[change](backend)
    backend.save(str(folder / "tokenizer.json"))
    found = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(found))
    return folder


def prompt(text):
    return decode_prompt(text.encode(), "p")


def agree(folder, text=TEXT):
    """Assert that page and worker read alike; what the worker reads."""
    loaded = load_model(str(folder), device="cpu")
    read = loaded.tokenize(prompt(text))
    assert prompt_size(str(folder), text).tokens == read.tokens
    for side in ("first", "last"):
        part = part_of(str(folder), text, 100, side)
        assert text.startswith(part) if side == "first" else text.endswith(part)
        assert 90 <= loaded.tokenize(prompt(part)).tokens <= 100
    return loaded, read


@pytest.mark.parametrize(
    ("kind", "change"),
    [*((kind, "as it is") for kind in KINDS), *(("byte_level", change) for change in [*CHANGES][1:])],
)
def test_page_and_worker_count_and_cut_alike(tiny, tmp_path, kind, change):
    """A page used to count 513 of 781 tokens, to keep the whole text, or to end."""
    folder = folder_with(tiny, tmp_path, kind, change)
    plain, read = agree(folder)
    own = plain.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert list(read.token_ids) == [1, *own] and len(own) > 513


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "LlamaTokenizerFast"},  # transformers puts rules of its own in the file's place
        {"added_tokens_decoder": {"399": {"content": "barrels", "special": False}}},
        {"additional_special_tokens": ["harbour"]},
        {"split_special_tokens": True},
        {"bos_token": None},
    ],
    ids=str,
)
def test_page_and_worker_agree_where_transformers_changes_the_file(tiny, tmp_path, settings):
    agree(folder_with(tiny, tmp_path, "byte_fallback", **settings), f"<s>{TEXT}")


@pytest.mark.parametrize(("kind", "change"), [("byte_level", "as it is"), *((kind, "bos") for kind in KINDS)])
def test_a_text_that_begins_with_the_first_token_does_not_get_it_twice(tiny, tmp_path, kind, change):
    loaded, read = agree(folder_with(tiny, tmp_path, kind, change), f"<s>{TEXT}")
    assert list(read.token_ids) == loaded.tokenizer(f"<s>{TEXT}", add_special_tokens=False)["input_ids"]
    assert read.token_ids[:2].count(1) == 1
    assert read.token_starts[0] == 0 and read.token_text(0) == "<s>"
    document = tokenized(prompt(f"<s>{TEXT}"), "harbour", loaded.tokenizer)
    assert document.token_ids.tolist() == list(read.token_ids[1:])


ONE = {"type": "BPE", "vocab": {chr(code): code - 32 for code in range(32, 127)}, "merges": []}
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1_000}
HOSTILE = {
    "a catastrophic expression": {
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "(a+)+$"},
            "behavior": "Isolated",
            "invert": False,
        }
    },
    "a broken map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}},
    "a map without end": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}},
    "a text that grows": {"normalizer": {"type": "Sequence", "normalizers": [GROWING] * 3}},
    "a token that grows": {"decoder": {"type": "Sequence", "decoders": [GROWING] * 3}},
    "pieces of nothing": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no unknown token": {"model": {"type": "Unigram", "vocab": [["q", -1.0]], "unk_id": None}},
    "tokens at random": {"model": {**ONE, "dropout": 0.5}},
    "an id beyond the embedding": {"model": {**ONE, "vocab": {**ONE["vocab"], "zz": 400}}},
    "lists without end": None,
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tokenizer_is_one_line_on_every_path(tiny, tmp_path, case):
    """Some of them used to end the process, by a panic or for want of memory."""
    folder = folder_with(tiny, tmp_path, "byte_level", bos_token=None)
    values = {"version": "1.0", "added_tokens": [], "model": ONE} | (HOSTILE[case] or {})
    content = json.dumps(values) if HOSTILE[case] else f'{{"a": [{"[]," * 10_000_000}0]}}'
    (folder / "tokenizer.json").write_text(content)
    text = "a" * 3_000 + "!"
    for read in (
        lambda: prompt_size(str(folder), text),
        lambda: refuse_before_loading(str(folder), prompt(text)),
        lambda: load_model(str(folder), device="cpu").tokenize(prompt(text)),
    ):
        with pytest.raises(ModelError) as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_part_is_never_longer_where_a_tokenizer_drops_what_it_does_not_know(tiny, tmp_path):
    """Its offsets are then of other characters."""
    folder = folder_with(tiny, tmp_path, "byte_level", bos_token=None)
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": ONE}))
    for side in ("first", "last"):
        part = part_of(str(folder), "é\u0301🙂 a" * 40, 5, side)
        assert prompt_size(str(folder), part).tokens <= 5


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": 400_000_000}, "num_hidden_layers is 400000000, it must be"),
        ({"num_hidden_layers": 1_000}, "has 1,000 layers, but the weights are 12 tensors"),
        ({"intermediate_size": 10_000_000}, "weights, its files hold"),
        ({"num_key_value_heads": 3}, "4 query heads over 3 KV heads"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is NaN, it must be a finite number"),
        ({"rope_parameters": {"rope_theta": {"__float__": "Infinity"}}}, "rope_parameters.rope_theta is "),
        ({"rope_parameters": {"rope_type": "nonsense"}}, 'rope_parameters.rope_type is "nonsense"'),
        ({"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, "a list of 4 numbers"),
        ({"hidden_act": "nonsense"}, "cannot be loaded"),
    ],
    ids=str,
)
def test_a_hostile_config_is_one_line_before_anything_is_made(tiny, tmp_path, change, told):
    folder = folder_with(tiny, tmp_path, "byte_level")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), device="cpu")
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("header", [(2**50).to_bytes(8, "little") + b"{}", (1 << 26).to_bytes(8, "little")])
def test_a_header_is_not_read_past_its_bound(tiny, tmp_path, header):
    folder = folder_with(tiny, tmp_path, "byte_level")
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(1 << 27)
    with pytest.raises(ModelError, match=r"model\.safetensors is corrupt"):
        check_folder(folder)
