"""Different tokens look different: byte-level and SentencePiece tokenizers, made here. No model."""

import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from routesparse.app.screens.routing_map import answer_card
from routesparse.engine import paths
from routesparse.engine.models.token_text import text_of
from routesparse.engine.rows import ContinuationRow

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


def test_the_page_shows_each_token_apart():
    """Invisible characters, texts that agree as far as they are shown, and a run of an earlier version."""
    texts = ["\u200b", "\u200d", "\xa0", "\x07", " " * 30, " " * 40, "\ufffd", "\ufffd", "<0xF0>", " the"]
    rows = pd.DataFrame({"text": texts, "token_id": range(len(texts))})
    shown = [answer_card._token(row) for row in rows.itertuples()]
    assert len(set(shown)) == len(shown) and "token 7" in shown[7] and "␣the" in shown[9]


def test_a_continuation_that_parts_inside_a_character_marks_that_character_alone():
    row = ContinuationRow("x", 0, 2, 1, "a<0xC3>", "aé", "aè")
    assert "<code>a<mark>è</mark></code>" in answer_card.continuation_html(row)
