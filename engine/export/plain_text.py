"""A prompt's text for people: characters that would hide, move or break text become marks."""

from __future__ import annotations

import regex

TAB = "    "
# Control and format characters (bidi overrides, zero width), line and paragraph separators.
MARKED = regex.compile(r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]")


def visible(text: str, newline: str = "") -> str:
    """The text in one line, ``newline`` in the place of its line breaks; still to be escaped where it becomes HTML."""
    if text.isprintable():  # most of any text
        return text
    return MARKED.sub(lambda found: newline if found.group() == "\n" else mark(found.group()), text)


def mark(character: str) -> str:
    """What stands for one of MARKED; a newline is shown by nothing."""
    code = ord(character)
    if character in "\n\t":
        return "" if character == "\n" else TAB
    if code < 0x20 or code == 0x7F:
        return chr(0x2421 if code == 0x7F else 0x2400 + code)
    return f"⟨U+{code:04X}⟩"
