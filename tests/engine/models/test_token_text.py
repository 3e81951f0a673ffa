"""Different tokens look different: byte-level and SentencePiece tokenizers, made here. No model."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from routesparse.engine import paths
from routesparse.engine.models.token_text import text_of

PIECES = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "the", "é", "\ufffd"]


@pytest.fixture(scope="module")
def sentencepiece():
    """As Llama 2's: bytes of what has no token, and a decoder that strips the first blank."""
    made = Tokenizer(
        models.BPE(
            {piece: place for place, piece in enumerate(PIECES)}, [], unk_token="<unk>", byte_fallback=True
        )
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>")


@pytest.fixture(scope="module")
def byte_level():
    return AutoTokenizer.from_pretrained(paths.DATA / "models" / "demo")


@pytest.mark.parametrize("kind", ["sentencepiece", "byte_level"])
def test_no_two_tokens_have_one_text(kind, request):
    """Ids beyond the vocabulary too, which a padded embedding has."""
    tokenizer = request.getfixturevalue(kind)
    count = len(tokenizer)
    assert len({text_of(tokenizer, [token]) for token in range(count + 3)}) == count + 3


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["<0xF0>"], "<0xF0>"),
        (["▁the"], " the"),
        (["the"], "the"),
        (["<0x0A>"], "\n"),
        (["<0x61>"], "a"),
        (["<0xC3>", "<0xA9>"], "é"),
        (["▁the", "é", "<0xF0>", "<0x9F>"], " theé<0xF0><0x9F>"),
        (["\ufffd"], "\ufffd"),
    ],
    ids=lambda one: "".join(one) if isinstance(one, list) else "",
)
def test_bytes_that_are_no_character_are_named_and_others_read(sentencepiece, pieces, told):
    assert text_of(sentencepiece, [PIECES.index(piece) for piece in pieces]) == told


def test_a_cut_character_shows_the_bytes_that_are_there(byte_level):
    ids = byte_level(" ledger \U0001f469\u200d")["input_ids"]
    assert text_of(byte_level, ids) == " ledger \U0001f469\u200d"
    assert text_of(byte_level, ids[:-1]).startswith(" ledger \U0001f469<0x")
