"""Reading a prompt: text, a label, a hash, token ids and where each token begins. No torch here.

Reading is split from tokenizing so that the command line can refuse a bad file before a model is loaded.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.errors import (
    ConfigError,
    ModelError,
    PromptError,
    RouteSparseError,
    first_line,
    is_out_of_memory,
    shortened,
)
from routesparse.engine.files import plain_files

TEXT_SUFFIXES = (".txt", ".md")  # of the files that are read where a folder is given
MAX_LABEL = 120
MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_CONTROL_SHARE = 0.05
_CONTROLS = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")  # without \t \n \v \f \r and escape
# Text of more characters per token that the model reads is counted in pieces until it is too long: tokenizing 16 MB
# at once took two minutes and 3.6 GB.
LIKELY_CHARACTERS = 8
_PIECE_CHARACTERS = 65_536


@dataclass(frozen=True)
class PromptText:
    """A prompt before tokenizing."""

    name: str  # a label, never a path
    text: str
    sha256: str  # of the bytes as read


@dataclass(frozen=True)
class Prompt(PromptText):
    """A tokenized prompt; the first token is the model's bos where it has one, once."""

    token_ids: tuple[int, ...]
    token_starts: tuple[int, ...]  # character offset of each token; bos is at 0

    @property
    def tokens(self) -> int:
        """Number of tokens, bos included."""
        return len(self.token_ids)

    def token_text(self, position: int) -> str:
        """What a token reads; empty for a bos in front, and for all but the last of several that share a character."""
        starts = (*self.token_starts, len(self.text))
        return self.text[starts[position] : starts[position + 1]]

    def block_starts(self, block_tokens: int) -> bytes:
        """int32 little endian [n_blocks + 1]: the character where each block begins, then the end."""
        starts = (*self.token_starts[::block_tokens], len(self.text))
        return struct.pack(f"<{len(starts)}i", *starts)


def clean_label(label: str) -> str:
    """A label for people: the last part of a path, printable characters only, at most MAX_LABEL of them."""
    last = re.split(r"[/\\]", str(label))[-1]
    printable = "".join(c for c in last if c.isprintable()).strip()
    return printable[:MAX_LABEL] or "unnamed"


def check_domain(domain: str | None) -> None:
    """A domain is a label that runs are grouped by, or None. Errors: ConfigError."""
    if domain is None:
        return
    text = domain if isinstance(domain, str) else ""
    if not text.strip() or not text.isprintable() or len(text) > MAX_LABEL:
        shown = repr(domain) if len(str(domain)) <= MAX_LABEL else f"of {len(str(domain)):,} characters"
        raise ConfigError(f"domain {shown} is no label; use 1 to {MAX_LABEL} printable characters")


def read_prompt(path: str | Path) -> PromptText:
    """Read a prompt file. Errors: PromptError when it is missing, unreadable, too large or not text."""
    path = Path(path)
    try:
        content = plain_files.read_bounded(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        raise PromptError(f"prompt {str(path)!r} does not exist; pass a text file") from None
    except IsADirectoryError:
        raise PromptError(f"prompt {str(path)!r} is a folder; pass a text file") from None
    except OSError as error:
        raise PromptError(
            f"prompt {str(path)!r} can't be read: {error.strerror}; pass a text file of at most "
            f"{MAX_FILE_BYTES >> 20} MB"
        ) from error
    return decode_prompt(content, clean_label(path.name))


def decode_prompt(content: bytes, name: str) -> PromptText:
    """The text of uploaded or read bytes. Errors: PromptError when empty, binary or not UTF-8."""
    if b"\0" in content:
        raise PromptError(f"prompt {name!r} is binary: byte {content.index(0)} is NUL; pass text in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # utf-8-sig reports offsets after the byte order mark.
        offset = error.start + (3 if content.startswith(b"\xef\xbb\xbf") else 0)
        raise PromptError(
            f"prompt {name!r} is not UTF-8: byte {offset} is 0x{content[offset]:02x}; save the file as UTF-8"
        ) from error
    if not text.strip():
        raise PromptError(f"prompt {name!r} is empty; pass a file with text")
    controls = len(_CONTROLS.findall(text))
    if controls > _MAX_CONTROL_SHARE * len(text):
        raise PromptError(
            f"prompt {name!r} is binary: {controls} of {len(text)} characters are controls; pass text"
        )
    return PromptText(name, text, hashlib.sha256(content).hexdigest())


def refuse_too_long(what: str, text: str, max_tokens: int, count: Callable[[str], int]) -> None:
    """Refuse a text that can't fit without tokenizing all of it. count: the tokens of a piece, without bos.

    Errors: PromptError. A text that passes may still be too long, by a hundredth or in less than 8 characters a token.
    """
    if len(text) <= LIKELY_CHARACTERS * max_tokens:
        return
    tokens = 0
    for start in range(0, len(text), _PIECE_CHARACTERS):
        tokens += count(text[start : start + _PIECE_CHARACTERS])
        # A word cut at the end of a piece may count for a little more than in the whole text.
        if tokens > 1.01 * max_tokens:
            read = min(start + _PIECE_CHARACTERS, len(text))
            raise PromptError(
                f"{what} is too long: its first {read:,} of {len(text):,} characters alone have {tokens:,} "
                f"tokens, the model reads at most {max_tokens:,}; shorten it or choose a model with a longer context"
            )


def first_missing(ids: Sequence[int], first: int | None) -> bool:
    """Whether a model's first token, bos, belongs in front of a text's tokens.

    None for a model without. A rendered chat template has it already, and twice would be another prompt.
    """
    return first is not None and list(ids[:1]) != [first]


def is_panic(error: BaseException) -> bool:
    """Whether native Rust code gave up, as a tokenizer does on a file that contradicts itself: no Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def as_model_error(name: str, what: str = "") -> Iterator[None]:
    """What libraries raise, of many types, for a model's files that do not fit together. Errors: ModelError.

    name: the model's. what: of the files fails, such as "its tokenizer fails".
    """
    try:
        yield
    except RouteSparseError:
        raise
    except BaseException as error:
        if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic(error)):
            raise
        why = shortened(first_line(error))
        why = f"{what} ({why})" if what else why
        raise ModelError(f"model {name!r} cannot be loaded: {why}; check its files") from error


def tokenize(prompt: PromptText, tokenizer: Any, max_tokens: int) -> Prompt:
    """Token ids with bos in front, and their character offsets, from a fast tokenizer.

    Errors: PromptError for a single token, or more than max_tokens (bos included); ModelError of ``tokenizing``.
    """

    def encoded(text: str) -> Any:
        with as_model_error(Path(getattr(tokenizer, "name_or_path", "")).name, "its tokenizer fails"):
            return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)

    what = f"prompt {prompt.name!r}"
    refuse_too_long(what, prompt.text, max_tokens, lambda piece: len(encoded(piece)["input_ids"]))
    found, bos = encoded(prompt.text), tokenizer.bos_token_id
    ids, starts = found["input_ids"], [start for start, _ in found["offset_mapping"]]
    missing = first_missing(ids, bos)
    own = len(ids) - (bos is not None and not missing)
    if own < 2:
        raise PromptError(f"prompt {prompt.name!r} has only {own} token; pass at least 2")
    if missing:
        ids, starts = [bos, *ids], [0, *starts]
    if len(ids) > max_tokens:
        raise PromptError(
            f"prompt {prompt.name!r} has {len(ids):,} tokens, the model reads at most {max_tokens:,}; "
            f"shorten it by {len(ids) - max_tokens:,} or choose a model with a longer context"
        )
    return Prompt(prompt.name, prompt.text, prompt.sha256, tuple(ids), tuple(starts))
