"""A fuzz target, and how its cases are made: what RouteSparse itself would write, with a few changes.

Fields are replaced, dropped, doubled and renamed, then bytes flipped, cut and repeated.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Target:
    """``parse(case, folder)`` may raise ``allowed`` alone; ``prepare`` fills the folder once."""

    cases: st.SearchStrategy[Any]
    parse: Callable[[Any, Path], object]
    allowed: tuple[type[BaseException], ...]
    prepare: Callable[[Path], object] = lambda folder: None


LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 128, 2**31 - 1, 2**31, 2**53, 2**63, -(2**63), 10**400),
    *(0.0, 0.5, -0.5, 1.5, 1e308, 5e-324, float("nan"), float("inf"), -float("inf")),
    *("", "a", "0.95", "<b>x</b>", "../../etc/passwd", "a\0b", "\ud800", "x" * 5_000),
    *([], {}, [[]], [None], {"a": 1}, [1, 2], [0.5] * 3, {"": {"": []}}),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
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


def json_bytes(value: Any) -> st.SearchStrategy[bytes]:
    """A JSON file: edited in its fields, in its bytes, or something else altogether."""
    text = json.dumps(value).encode()
    fields_edited = SEEDS.map(lambda seed: json.dumps(edited(value, seed)).encode())
    deep = st.sampled_from([b"[" * 100_000, b'{"a":' * 50_000, b"9" * 10_000, b"\xff\xfe", b""])
    other = JSON.map(lambda v: json.dumps(v).encode()) | deep | st.binary(max_size=100)
    return st.integers(0, 9).flatmap(
        lambda n: other if n == 0 else bytes_like(text) if n < 3 else fields_edited
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


def written(name: str, parse: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Put the bytes into a file of this name and parse it."""

    def run(content: bytes, folder: Path) -> object:
        file = folder / name
        file.write_bytes(content)
        return parse(file)

    return run
