"""Counts and cuts texts by a model's tokenizer.json, as the process that tokenizer_process.py starts and talks to.

A tokenizer's file holds expressions, tables and rules that can run for hours, fill the memory or end the process. So
each question has bounds of processor time and memory, and whatever happens here is an answer, or the end of this
process alone.

transformers may build another tokenizer than the file says: for some families it has rules of its own, and
tokenizer_config.json adds tokens. Only a folder of which neither is true is read without it, because loading it takes
seconds and 0.4 GB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from routesparse.engine.files.bounded_process import limit, serve
from routesparse.engine.files.plain_files import read_bounded, state_of
from routesparse.engine.prompts.text import LIKELY_CHARACTERS, first_missing

MOST_TOKENIZER_BYTES = 1 << 26  # that of Gemma has 33 MB
_MOST_LISTS = 1 << 22  # that of Gemma has a pair for each of 0.5 million merges
_MOST_CONFIG_BYTES = 1 << 20
_CONFIG, _TOKENIZER, _MODEL = "tokenizer_config.json", "tokenizer.json", "config.json"
_OTHERS = ("special_tokens_map.json", "added_tokens.json")  # older files, which transformers reads as well
_ITS_OWN = ("qwen2",)  # families whose tokenizer transformers makes by its own rules, whatever class is named
_PATCHED_TOKENS = 100_000  # transformers may mend the expression of larger vocabularies
_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "pad", "sep", "cls", "mask"))
# What of tokenizer_config.json has no part in how a text becomes tokens; all else is left to transformers.
_NEUTRAL = {
    *("tokenizer_class", "backend", "model_max_length", "model_input_names", "chat_template", "is_local"),
    *("clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "local_files_only", "name_or_path"),
    *("padding_side", "truncation_side", "max_length", "stride", "truncation_strategy", "pad_token_type_id"),
    *("pad_to_multiple_of", "processor_class"),
}
_TRANSFORMERS_S = 30.0  # more, to load it and make its tokenizer: 6 s when nobody else works
_MOST_GROWTH = 1_024  # of a token's text by a decoder; they shorten it


class Tokens:
    """A tokenizer without truncation and padding, and the model's first token."""

    def __init__(self, tokenizer: Any, first: int | None) -> None:
        self._encoded, self._first = partial(tokenizer.encode, add_special_tokens=False), first
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.largest_id = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def count(self, text: str) -> tuple[int, int, int]:
        """Tokens of a text by itself, and with the model's first token in front; the largest id of any text."""
        ids = self._encoded(text).ids
        return len(ids), len(ids) + first_missing(ids, self._first), self.largest_id

    def part(self, text: str, tokens: int, side: str) -> str:
        """The first or last so many tokens, the model's first token included; all of a shorter text."""
        characters = LIKELY_CHARACTERS * tokens
        while True:
            window = text[:characters] if side == "first" else text[max(0, len(text) - characters) :]
            offsets = self._encoded(window).offsets
            # A word that the window cuts may count for more tokens than it has.
            if len(offsets) > tokens + 1 or len(window) == len(text):
                break
            characters *= 2
        part = window
        for size in range(min(tokens, len(offsets)), 0, -1):
            if size < len(offsets):
                part = window[: offsets[size - 1][1]] if side == "first" else window[offsets[-size][0] :]
            if self.count(part)[1] <= tokens:
                return part
        # Offsets are wrong where a tokenizer drops what it does not know, and one character may be many tokens.
        while len(part) > 1 and self.count(part)[1] > tokens:
            half = len(part) // 2
            part = part[:half] if side == "first" else part[half:]
        return part


def _file_alone(folder: Path) -> Any:
    """The tokenizer.json. Errors: ValueError for what can't be one, and whatever ``tokenizers`` raises."""
    from tokenizers import Tokenizer

    content = read_bounded(folder / _TOKENIZER, MOST_TOKENIZER_BYTES)
    if content.count(b"[") + content.count(b"{") > _MOST_LISTS:
        raise ValueError("it holds more lists than any")
    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except Exception:
        try:
            json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("not readable JSON") from None
        raise
    if getattr(tokenizer.model, "dropout", None):
        raise ValueError(f"it draws tokens at random (dropout {tokenizer.model.dropout}); set it to null")
    contents: list[str] = []  # that steps of the decoder put in place of a character or more
    if tokenizer.decoder:
        json.loads(
            tokenizer.decoder.__getstate__(),
            object_hook=lambda step: contents.append(step.get("content", "")),
        )
    growth = math.prod(len(content) for content in contents if content)
    if growth > _MOST_GROWTH:
        raise ValueError(f"its decoder makes a text {growth:,} times as long; use the model's own")
    return tokenizer


def _as_analysed(folder: Path) -> Tokens:
    """As a worker tokenizes."""
    tokenizer = _file_alone(folder)
    settings, config = (
        json.loads(read_bounded(folder / name, _MOST_CONFIG_BYTES)) if (folder / name).exists() else {}
        for name in (_CONFIG, _MODEL)
    )
    special = {str(token) for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    named = [settings[name] for name in _SPECIAL if settings.get(name) is not None]
    if (
        settings.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
        and settings.keys() <= _NEUTRAL.union(_SPECIAL)
        and all(isinstance(token, str) and token in special for token in named)
        and config.get("model_type") not in _ITS_OWN
        and tokenizer.get_vocab_size() <= _PATCHED_TOKENS
        and not any((folder / name).exists() for name in _OTHERS)
    ):
        first = settings.get("bos_token")
        return Tokens(tokenizer, None if first is None else tokenizer.token_to_id(first))
    made = _by_transformers(folder)
    return Tokens(made.backend_tokenizer, made.bos_token_id)


def _by_transformers(folder: Path) -> Any:
    limit(_TRANSFORMERS_S)
    from routesparse.engine.models.load import fast_tokenizer

    return fast_tokenizer(folder)


def _chat(folder: Path, text: str) -> tuple[bool, str]:
    """What the model's chat template makes of messages in JSON, ready for the answer; or False, and why not."""
    tokenizer, messages = _by_transformers(folder), json.loads(text)
    if not tokenizer.chat_template:
        return False, "it has no chat template"
    asks = messages[-1]["role"] != "assistant"
    try:
        return True, tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asks)
    # A template is a program of the model's author, and refuses in its own words.
    except Exception as error:  # noqa: BLE001
        return False, " ".join(str(error).split())[:300]


def _answer(content: bytes, name: str, what: str, *values: Any) -> Iterator[bytes]:
    folder, text = Path(name), content.decode("utf-8", "surrogatepass")
    if what == "chat":
        found: Any = _chat(folder, text)
    else:
        tokens = _tokens(folder, alone=what == "check")
        found = tokens.part(text, *values) if what == "part" else tokens.count(text)
    yield json.dumps(found).encode()


def _tokens(folder: Path, *, alone: bool) -> Tokens:
    """Those asked for last are kept until a file changes. alone: by the file, whatever transformers makes of it."""
    states = tuple(state_of(folder / file) for file in (_CONFIG, _TOKENIZER, _MODEL, *_OTHERS))
    key = folder, states, alone and (folder, states, False) not in _kept
    if key not in _kept:
        _kept.clear()  # before loading: two may not fit
        _kept[key] = Tokens(_file_alone(folder), None) if alone else _as_analysed(folder)
    return _kept[key]


def _told(error: BaseException) -> str:
    told = getattr(error, "strerror", None) or str(error) or "it asked for too much"
    return f"{type(error).__name__}: {told}"[:500]


_kept: dict[object, Tokens] = {}

if __name__ == "__main__":
    serve(_answer, _told)
