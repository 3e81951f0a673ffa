"""What a person may add to a run: a name, notes and tags. Plain text with bounds (``RULES``), shown escaped.

They are the owner's alone, on samples too, and stay out of the run's bundle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from routesparse.engine.errors import InputError
from routesparse.engine.store.rules import text

MOST_TAGS = 12
# A comma would part two tags.
RULES = {"name": text(120), "notes": text(4_000, r"^[^\x00]*$", lines=True), "tag": text(40, "^[^,]+$")}


@dataclass(frozen=True)
class Label:
    """One owner's words on one run; ``name`` None: the prompt's own name stands."""

    name: str | None = None
    notes: str | None = None
    tags: tuple[str, ...] = ()
    pinned: bool = False  # the baseline that other runs are held against


def label(name: str, notes: str, tags: Iterable[str]) -> Label:
    """A label from what was typed, blanks around it removed. Errors: InputError for the first text out of bounds."""
    each = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(each) > MOST_TAGS:
        raise InputError(f"{len(each)} tags are too many for one run; keep at most {MOST_TAGS}")
    for tag in each:
        _check("tag", tag)
    name, notes = name.strip(), notes.strip()
    _check("name", name)
    _check("notes", notes)
    return Label(name or None, notes or None, each)


def _check(what: str, value: str) -> None:
    rule = RULES[what]
    try:
        held = rule.holds(pa.array([value], pa.string()))[0].as_py()
    except UnicodeEncodeError:  # half a character
        held = False
    if not held:
        shown = ascii(value if len(value) <= 60 else f"{value[:60]}...")
        raise InputError(f"{what} {shown} can't be kept; it must be {rule.wanted}")
