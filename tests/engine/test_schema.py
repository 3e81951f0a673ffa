"""What values from outside are made into, and with which words the others are refused. No GPU."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy
import pytest

from routesparse.engine.schema import (
    FILLED,
    FieldError,
    Like,
    Number,
    Object,
    Positive,
    Share,
    Text,
    checked,
    from_json,
    in_file,
)


@in_file(more=True, share=("about", "share"))
@dataclass(frozen=True)
class Part:
    name: Text
    share: Share = 0.0


@dataclass(frozen=True)
class Whole:
    tokens: Positive
    parts: Annotated[tuple[Part, ...], FILLED]
    kind: Literal["a", "b"] = "a"
    kept: bool = True
    most: Annotated[float, Number(0.0)] | None = None
    levels: dict[str, Share] = field(default_factory=dict)
    raw: Annotated[dict[str, Any], Like(Part)] | None = None
    free: Object = field(default_factory=dict)


GOOD = {"tokens": 1, "parts": [{"name": "x", "more": []}]}


def test_a_list_becomes_a_tuple_and_an_object_a_dataclass_and_nothing_else_is_converted():
    raw = {"name": "y", "about": {"share": 1}}
    made = checked(Whole, {**GOOD, "most": 2, "levels": {"0.9": 1}, "raw": raw})
    assert made == Whole(1, (Part("x"),), most=2.0, levels={"0.9": 1.0}, raw=raw)
    assert checked(tuple[Part, ...], [raw]) == (Part("y", 1.0),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *[({"tokens": wrong}, r"^tokens is .*, it must be a whole number from 1 to 2\^53$")
          for wrong in (0, 1.0, True, "1", None, [], 2**60, 10**5000, numpy.int64(1), numpy.bool_(True))],
        *[({"most": wrong}, "^most is .*, it must be a finite number of at least 0$")
          for wrong in (-1, "1", True, float("nan"), 10**400, numpy.float32(1), numpy.array(1.0), [1])],
        *[({"kept": wrong}, "^kept is .*, it must be true or false$") for wrong in ("False", 0, numpy.bool_(1))],
        ({"kind": ["a"]}, r'^kind is \["a"\], it must be one of a, b$'),
        ({"parts": []}, r"^parts is \[\], it must be a list of at least 1$"),
        ({"parts": {"name": "x"}}, "it must be a list$"),
        ({"parts": [{"name": "x"}, {"name": "a\nb"}]}, r'^parts\[1\].name is "a\\nb", it must be a text of one line'),
        ({"parts": [{"name": "x", "about": {"share": 2}}]}, r"^parts\[0\].about.share is 2, it must be a number from"),
        ({"parts": [{}]}, r"^parts\[0\].name is missing$"),
        ({"levels": {"0.9": 2}}, "^levels.0.9 is 2, it must be a number from 0 to 1$"),
        ({"raw": {"name": 5}}, "^raw.name is 5, it must be a text$"),
        ({"free": [1]}, r"^free is \[1\], it must be an object$"),
        ({"tokns": 1}, "^tokns is 1, it must be left out; known are free, kept, kind, levels"),
        ({"\x1b[2J" + "x" * 99: 1}, r'^"\\u001b\[2Jx+\.\.\. is 1, it must be left out'),
    ],
    ids=lambda value: "-".join(value).encode("ascii", "replace")[:9].decode() if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_is_something_else_is_refused_by_field_and_value(change, said):
    with pytest.raises(FieldError, match=said) as caught:
        checked(Whole, {**GOOD, **change})
    assert str(caught.value).isprintable() and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": [1, {"b": NaN}]}', r"^a\[1\].b is NaN, it must be a finite number$"),
        ('{"a": 1e999}', "^a is Infinity, it must be a finite number$"),
        ('{"a": {"b": 1, "b": 2}}', "'b' stands twice"),
        pytest.param("[" * 100_000 + "]" * 100_000, "nested too deeply", id="deep"),
        ("9" * 5_000, "digits"),
    ],
)
def test_text_that_json_cannot_say_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        from_json(text)
