"""Reading prompts: what is refused and how, and where tokens begin. CPU, no torch, a tokenizer made here."""

import hashlib
import itertools

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from routesparse.engine.errors import PromptError
from routesparse.engine.prompts import text as prompts


def tokenizer(bos="<s>"):
    """One token per byte."""
    vocabulary = {
        **{symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))},
        "<s>": 256,
    }
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=bos)


def write(tmp_path, content):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "'prompt.txt' is empty; pass a file with text"),
        (b" \n\t ", "'prompt.txt' is empty; pass a file with text"),
        (b"\xef\xbb\xbf", "'prompt.txt' is empty; pass a file with text"),
        (b"ab\0cd", "is binary: byte 2 is NUL; pass text in UTF-8"),
        ("text".encode("utf-16"), "is binary: byte 3 is NUL"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is binary: byte 8 is NUL"),
        (bytes(range(1, 32)), "is binary: 25 of 31 characters are controls; pass text"),
        (b"caf\xe9 noir", "is not UTF-8: byte 3 is 0xe9; save the file as UTF-8"),
        (b"\xef\xbb\xbfcaf\xe9", "is not UTF-8: byte 6 is 0xe9"),
        (b"ok \xc3", "is not UTF-8: byte 3 is 0xc3"),
    ],
)
def test_bad_content_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(PromptError) as caught:
        prompts.read_prompt(write(tmp_path, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_folders_and_huge_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(PromptError, match=r"nothing\.txt' does not exist; pass a text file"):
        prompts.read_prompt(tmp_path / "nothing.txt")
    with pytest.raises(PromptError, match="is a folder"):
        prompts.read_prompt(tmp_path)
    monkeypatch.setattr(prompts, "MAX_FILE_BYTES", 1 << 20)
    with pytest.raises(PromptError, match="it has more than 1 MB; pass a text file of at most 1 MB"):
        prompts.read_prompt(write(tmp_path, b"x" * (2 << 20)))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_plain_file_is_not_waited_for(tmp_path, no_plain_file, kind):
    """/dev/zero used to fill the memory, a pipe to be waited for without end."""
    path = tmp_path / "prompt.txt"
    no_plain_file(path, kind)
    with pytest.raises(PromptError, match="it is no plain file but a pipe or a device; pass a text file"):
        prompts.read_prompt(path)


def test_a_prompt_carries_a_label_and_the_hash_of_its_bytes(tmp_path):
    prompt = prompts.read_prompt(write(tmp_path, b"\xef\xbb\xbfh\xc3\xa9llo"))
    assert (prompt.name, prompt.text) == ("prompt.txt", "héllo")
    assert prompt.sha256 == hashlib.sha256(b"\xef\xbb\xbfh\xc3\xa9llo").hexdigest()


def test_bos_comes_first_and_offsets_count_characters():
    prompt = prompts.tokenize(prompts.PromptText("p", "aé漢b", "0"), tokenizer(), 100)
    assert prompt.token_ids[0] == 256
    assert prompt.tokens == 1 + 1 + 2 + 3 + 1
    assert prompt.token_starts == (0, 0, 1, 1, 2, 2, 2, 3)
    without = prompts.tokenize(prompts.PromptText("p", "ab", "0"), tokenizer(bos=None), 100)
    assert without.tokens == 2


def test_block_starts_are_character_offsets_ending_at_the_text():
    text = "héllo wörld"
    prompt = prompts.tokenize(prompts.PromptText("p", text, "0"), tokenizer(), 100)
    starts = np.frombuffer(prompt.block_starts(4), dtype="<i4")
    assert prompt.tokens == 14
    assert starts.tolist() == [0, 2, 6, 9, len(text)]
    assert "".join(text[a:b] for a, b in itertools.pairwise(starts)) == text


def test_one_token_is_refused_and_more_than_the_limit_and_bos_counts():
    with pytest.raises(PromptError, match="'p' has only 1 token; pass at least 2"):
        prompts.tokenize(prompts.PromptText("p", "a", "0"), tokenizer(), 100)
    text = prompts.PromptText("p", "x" * 1200, "0")
    assert prompts.tokenize(text, tokenizer(), 1201).tokens == 1201
    with pytest.raises(
        PromptError, match=r"'p' has 1,201 tokens, .* at most 1,000; shorten it by 201 or choose"
    ):
        prompts.tokenize(text, tokenizer(), 1000)


def test_a_text_that_can_t_fit_is_refused_after_the_piece_that_shows_it():
    """16 MB took two minutes and 3.6 GB when all of it was tokenized first."""
    read = []
    one_byte = tokenizer()

    class Counting:
        bos_token_id = None

        def __call__(self, text, **options):
            read.append(len(text))
            return one_byte(text, **options)

    with pytest.raises(
        PromptError, match=r"its first 131,072 of 16,000,000 characters alone have 131,072 tokens"
    ):
        prompts.tokenize(prompts.PromptText("p", "x" * 16_000_000, "0"), Counting(), 100_000)
    assert sum(read) == 131_072


def test_a_long_text_of_few_tokens_is_read_whole():
    counted = []
    prompts.refuse_too_long("it", "x" * 1_000_000, 1_000, lambda piece: counted.append(piece) or 60)
    assert "".join(counted) == "x" * 1_000_000
