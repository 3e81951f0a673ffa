"""Reading a prompt: text, a label, a hash, token ids and where each token begins. No torch here.

Reading is split from tokenizing so that the command line can refuse a bad file before a model is loaded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine import plain_files
from routesparse.engine.errors import PromptError

MAX_FILE_BYTES = 64 * 1024 * 1024
_MAX_CONTROL_SHARE = 0.05
_TEXT_CONTROLS = frozenset("\t\n\v\f\r\x1b")


@dataclass(frozen=True)
class PromptText:
    """A prompt before tokenizing."""

    name: str  # a label, never a path
    text: str
    sha256: str  # of the bytes as read


@dataclass(frozen=True)
class Prompt(PromptText):
    """A tokenized prompt; the first token is the model's bos where it has one."""

    token_ids: tuple[int, ...]
    token_starts: tuple[int, ...]  # character offset of each token; bos is at 0

    @property
    def tokens(self) -> int:
        """Number of tokens, bos included."""
        return len(self.token_ids)

    def block_starts(self, block_tokens: int) -> bytes:
        """int32 little endian [n_blocks + 1]: the character where each block begins, then the end."""
        starts = (*self.token_starts[::block_tokens], len(self.text))
        return np.asarray(starts, dtype="<i4").tobytes()


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
    return decode_prompt(content, path.name)


def decode_prompt(content: bytes, name: str) -> PromptText:
    """The text of uploaded or read bytes. Errors: PromptError when empty, binary or not UTF-8."""
    if b"\0" in content:
        raise PromptError(
            f"prompt {name!r} is binary: byte {content.index(0)} is NUL; pass a text file in UTF-8"
        )
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
    controls = sum(character < " " and character not in _TEXT_CONTROLS for character in text)
    if controls > _MAX_CONTROL_SHARE * len(text):
        raise PromptError(
            f"prompt {name!r} is binary: {controls} of {len(text)} characters are control codes; pass text"
        )
    return PromptText(name, text, hashlib.sha256(content).hexdigest())


def tokenize(prompt: PromptText, tokenizer: Any, max_tokens: int) -> Prompt:
    """Token ids with bos in front, and their character offsets, from a fast tokenizer.

    Errors: PromptError for a single token, or more than max_tokens (bos included).
    """
    encoded = tokenizer(prompt.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, starts = encoded["input_ids"], [start for start, _ in encoded["offset_mapping"]]
    if len(ids) < 2:
        raise PromptError(f"prompt {prompt.name!r} has only {len(ids)} token; pass at least 2")
    if tokenizer.bos_token_id is not None:
        ids, starts = [tokenizer.bos_token_id, *ids], [0, *starts]
    if len(ids) > max_tokens:
        raise PromptError(
            f"prompt {prompt.name!r} has {len(ids):,} tokens, the model reads at most {max_tokens:,}; "
            f"shorten it by {len(ids) - max_tokens:,} or choose a model with a longer context"
        )
    return Prompt(prompt.name, prompt.text, prompt.sha256, tuple(ids), tuple(starts))
