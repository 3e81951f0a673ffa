"""What tokens read, so that different tokens look different.

Decoders replace the bytes of a character that is not whole by one mark, drop the blank before a first word, and give
unused ids no text. Here a byte is shown as ``<0xF0>``, a blank is kept, and a token without a text is ``<token 174>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

_REPLACED = "\N{REPLACEMENT CHARACTER}"  # what decoders give for bytes that are no whole character
_BYTE = re.compile("<0x([0-9A-F]{2})>")  # how SentencePiece names a token of one byte
# GPT-2's names of bytes: those that are printed stand for themselves, the others follow from U+0100 on.
_PLAIN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PLAIN)
_NAMED = {chr(byte): byte for byte in _PLAIN} | {chr(0x100 + at): byte for at, byte in enumerate(_OTHERS)}


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of token ids, as they read behind others. tokenizer: a fast one of transformers."""
    ids = list(tokens)
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    text, twice = str(decode(ids)), str(decode(ids + ids))
    if twice.startswith(text):
        text = twice[len(text) :]  # the first word of all has lost its blank
    if _REPLACED in text:
        content = b"".join(_bytes(tokenizer, token) for token in ids).decode("utf-8", "surrogateescape")
        text = "".join(f"<0x{ord(c) - 0xDC00:02X}>" if "\udc80" <= c <= "\udcff" else c for c in content)
    elif len(ids) == 1 and _BYTE.fullmatch(piece := str(tokenizer.convert_ids_to_tokens(ids[0]))):
        # A whole character may have a token of its own besides that of its byte.
        text = piece if text.replace(" ", "▁") in tokenizer.get_vocab() else text
    return text or "".join(f"<token {token}>" for token in ids)


def _bytes(tokenizer: Any, token: int) -> bytes:
    """What a token stands for, before it is made a text."""
    piece = str(tokenizer.convert_ids_to_tokens(token))
    decoder = tokenizer.backend_tokenizer.decoder
    of_bytes = decoder is not None and b"ByteLevel" in decoder.__getstate__()
    if of_bytes and token not in tokenizer.added_tokens_decoder and _NAMED.keys() >= set(piece):
        return bytes(_NAMED[c] for c in piece)
    found = None if of_bytes else _BYTE.fullmatch(piece)
    return bytes.fromhex(found[1]) if found else piece.replace("▁", " ").encode()
