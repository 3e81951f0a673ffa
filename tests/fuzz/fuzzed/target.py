"""A fuzz target, and how its cases are made: what RouteSparse itself would write, with a few changes.

Fields are replaced, dropped, doubled and renamed, or hold millions of values; bytes are flipped, cut and repeated.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st


@dataclass(frozen=True)
class Target:
    """``parse(case, folder)`` may raise ``allowed`` alone; ``prepare`` fills the folder once."""

    cases: st.SearchStrategy[Any]
    parse: Callable[[Any, Path], object]
    allowed: tuple[type[BaseException], ...]
    prepare: Callable[[Path], object] = lambda folder: None


LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**400, 4 * 10**8),
    *(0.0, 0.5, -0.5, 1.5, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("", "a", "0.95", "False", "nan", "<b>x</b>", "../../etc/passwd", "a\0b", "\ud800", "x" * 5_000),
    *([], {}, [[]], [None], {"a": 1}, [1, 2], [0.5] * 3, {"": {"": []}}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
)


@dataclass(frozen=True)
class Long:
    """Bytes too many to keep of each case: some, so many times, then the next."""

    parts: tuple[tuple[bytes, int], ...]

    def __bytes__(self) -> bytes:
        return b"".join(part * times for part, times in self.parts)


Content = bytes | Long
# Head, what is repeated, tail, tail as often as it.
LONG_VALUES = (
    *((b"[", b"[],", b"0]", b""), (b"[", b"{},", b"0]", b""), (b"[", b"[0.5],", b"0]", b"")),
    *((b"[", b'"",', b"0]", b""), (b"[", b"0,", b"0]", b""), (b"{", b'"a":[],', b'"b":0}', b"")),
    *((b"", b"[", b"", b"]"), (b"", b'{"a":', b"0", b"}"), (b"", b"9", b"", b""), (b"0.", b"9", b"e9", b"")),
    *((b'"', b"a", b'"', b""), (b'"', b"\\u202e", b'"', b"")),
)
# One drawn number decides all edits of a case: ten times the cases of drawing each edit, and as reproducible.
SEEDS = st.integers(0, 2**64 - 1)
EDITS = (1, 1, 1, 2, 3, 4)  # changes in a case


def edited(value: Any, seed: int) -> Any:
    """A JSON value with up to four edits, each at a place of its own."""
    random = Random(seed)
    root = {"": json.loads(json.dumps(value))}
    for _ in range(random.choice(EDITS)):
        holder: Any = root
        key: Any = ""
        while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.8:
            holder = holder[key]
            key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        act = random.choice(["replace", "replace", "nudge", "drop", "double", "rename"])
        if act == "nudge" and isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = holder[key] * random.choice([-1, 0, 0.5, 2, 1e6]) + random.choice([0, 1, -1])
        elif act in ("replace", "nudge") or holder is root:
            holder[key] = copy.deepcopy(random.choice(LEAVES))
        elif act == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            holder[random.choice(["x", "", f"{key}2", *holder])] = (
                holder.pop(key) if act == "rename" else copy.deepcopy(holder[key])
            )
        else:
            holder.insert(key, copy.deepcopy(holder[key]))
    return root[""]


def lengthened(value: Any, seed: int, digits: int) -> Long:
    """A JSON file in which up to 10 ** digits values stand in the place of one."""
    random, mark = Random(seed), "the long value"
    root = {"": json.loads(json.dumps(value))}
    holder: Any = root
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.9:
        holder = holder[key]
        key = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    if isinstance(holder[key], dict) and random.random() < 0.5:
        holder, key = holder[key], "one field more"
    holder[key] = mark
    before, after = (part.encode() for part in json.dumps(root[""]).split(json.dumps(mark)))
    head, unit, tail, close = random.choice(LONG_VALUES)
    # The longest take seconds to make: few of the cases.
    times = 10 ** (digits if random.random() < 1 / 16 else random.randrange(digits))
    return Long(((before + head, 1), (unit, times), (tail, 1), (close, times), (after, 1)))


def scrambled(content: bytes, seed: int) -> bytes:
    """The bytes with up to four of them, or stretches of them, changed, cut, doubled or filled."""
    random, data = Random(seed), bytearray(content)
    for _ in range(random.choice(EDITS)):
        if not data:
            break
        # Headers and footers steer a parser, so places near the ends are drawn as often as all others.
        near = random.randrange(min(200, len(data)))
        at = random.choice([random.randrange(len(data)), near, len(data) - 1 - near])
        size = random.randint(1, 64)
        act = random.choice(["set", "set", "set", "bit", "cut", "double", "fill", "end", "insert"])
        if act == "set":
            data[at] = random.randrange(256)
        elif act == "bit":
            data[at] ^= 1 << random.randrange(8)
        elif act == "cut":
            del data[at : at + size]
        elif act == "double":
            data[at:at] = data[at : at + size]
        elif act == "fill":
            data[at : at + size] = bytes([random.choice([0, 255, 127, 128])]) * len(data[at : at + size])
        elif act == "end":
            del data[at:]
        else:
            data[at:at] = random.randbytes(random.randint(0, 32))
    return bytes(data)


def bytes_like(content: bytes) -> st.SearchStrategy[bytes]:
    """Scrambled bytes."""
    return SEEDS.map(lambda seed: scrambled(content, seed))


def json_bytes(value: Any, digits: int = 7) -> st.SearchStrategy[Content]:
    """A JSON file: edited in its fields, in its bytes, made long, or something else altogether."""
    text = json.dumps(value).encode()
    fields_edited = SEEDS.map(lambda seed: json.dumps(edited(value, seed)).encode())
    deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"\xff\xfe", b""])
    other = JSON.map(lambda v: json.dumps(v).encode()) | deep | st.binary(max_size=100)
    long = SEEDS.map(lambda seed: lengthened(value, seed, digits))
    # 30, because hypothesis draws the first and the last far more often.
    return st.integers(0, 49).flatmap(
        lambda n: long if n == 30 else other if n < 5 else bytes_like(text) if n < 15 else fields_edited
    )


def json_lines(values: list[Any]) -> st.SearchStrategy[bytes]:
    """A file of JSON lines: one of them edited in its fields, or the whole in its bytes."""

    def one_edited(seed: int) -> bytes:
        lines = list(values)
        place = Random(seed).randrange(len(lines))
        lines[place] = edited(lines[place], seed)
        return "\n".join(map(json.dumps, lines)).encode()

    return SEEDS.map(one_edited) | bytes_like("\n".join(map(json.dumps, values)).encode())


def tensors_like(content: bytes) -> st.SearchStrategy[bytes]:
    """A safetensors file: its header edited and as long as it says, or the whole in its bytes."""
    size = int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8 : 8 + size]), content[8 + size :]

    def header_edited(seed: int) -> bytes:
        text = json.dumps(edited(header, seed)).encode()
        return len(text).to_bytes(8, "little") + text + tensors

    return SEEDS.map(header_edited) | bytes_like(content)


def written(name: str, parse: Callable[[Path], object]) -> Callable[[Content, Path], object]:
    """Put the bytes into a file of this name and parse it."""

    def run(content: Content, folder: Path) -> object:
        file = folder / name
        file.write_bytes(bytes(content))
        return parse(file)

    return run


def typed(made: Any) -> None:
    """Check that every field of a dataclass holds what its annotation says, and no number that is none."""
    hints = get_type_hints(type(made))
    for field in fields(made):
        value, hint = getattr(made, field.name), hints[field.name]
        kinds = get_args(hint) if get_origin(hint) not in (None, Literal) else (hint,)
        fits = (
            value in get_args(kind)
            if get_origin(kind) is Literal
            else type(value) in (kind, *_ALSO.get(kind, ()))
            for kind in kinds
        )
        assert any(fits), f"{field.name} is {value!r}, not {hint}"
        assert not isinstance(value, float) or math.isfinite(value), f"{field.name} is {value!r}"


_ALSO: dict[Any, tuple[type, ...]] = {float: (int,)}
