"""What a value from outside may be, written as the type annotations of a dataclass, and the one check of it.

    @dataclass(frozen=True)
    class Window:
        name: Text
        tokens: Annotated[int, Whole(1)]
        share: Annotated[float, Number(0, 1)] | None = None
        documents: tuple[Text, ...] = ()

    window = checked(Window, plain_files.read_json(path, most_bytes))

Nothing is converted but what JSON writes alike: a list is a tuple, an object a dataclass, 1 a float 1.0. So true and
"1" are no numbers, 1.0 and numpy's integers no whole numbers; NaN and infinity are nothing; a field that the dataclass
lacks is refused. The first value that is wrong raises FieldError: which field, which value, what it must be.
pydantic does the work and is loaded with the first check.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from math import isfinite, nextafter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, overload

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, SchemaValidator

Kind = TypeVar("Kind")

LARGEST = sys.float_info.max
LARGEST_WHOLE = 2**53  # a JSON reader may hold numbers as float64
POSITIVE = nextafter(0.0, 1.0)
SHOWN_CHARACTERS = 60
LONGEST_LINE = 1_000


class FieldError(ValueError):
    """Which field holds which value, and what it must be instead."""

    def __init__(self, field: str, value: Any, wanted: str) -> None:
        self.field, self.value, self.wanted = field, value, wanted
        super().__init__(f"{field or 'the file'} is {shown(value)}, it must be {wanted}")


class MissingFieldError(FieldError):
    """Which field is not there."""

    def __init__(self, field: str) -> None:
        self.field = field
        ValueError.__init__(self, f"{field} is missing")


@dataclasses.dataclass(frozen=True)
class Whole:
    """A whole number in [low, high]."""

    low: int = 0
    high: int = LARGEST_WHOLE

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> CoreSchema:
        from pydantic_core import core_schema

        most = "2^53" if self.high == LARGEST_WHOLE else f"{self.high:,}"
        whole = core_schema.int_schema(strict=True, ge=self.low, le=self.high)
        return _told(whole, f"a whole number from {self.low:,} to {most}")


@dataclasses.dataclass(frozen=True)
class Number:
    """A finite number in [low, high]."""

    low: float = -LARGEST
    high: float = LARGEST

    def __get_pydantic_core_schema__(self, _: Any, __: Any) -> CoreSchema:
        from pydantic_core import core_schema

        above = "above 0" if self.low == POSITIVE else f"of at least {self.low:g}"
        wanted = "a finite number" if self.low == -LARGEST else f"a finite number {above}"
        if self.high != LARGEST:
            wanted = f"a number from {self.low:g} to {self.high:g}"
            if self.low == POSITIVE:
                wanted = f"a number above 0 and at most {self.high:g}"
        number = core_schema.float_schema(strict=True, ge=self.low, le=self.high, allow_inf_nan=False)
        # is_instance: a float schema takes whatever has __float__, such as an array of one number.
        plain = core_schema.is_instance_schema((int, float))
        return _told(core_schema.chain_schema([plain, number]), wanted)


@dataclasses.dataclass(frozen=True)
class Holds:
    """A value for which ``test`` is true; ``wanted`` says it in words. The annotated type is checked first."""

    test: Callable[[Any], object]
    wanted: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        def check(value: Any) -> Any:
            if not self.test(value):
                raise FieldError("", value, self.wanted)
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))


@dataclasses.dataclass(frozen=True)
class Like:
    """A value that ``kind`` accepts, kept as it stands: an object stays a dict."""

    kind: Any

    def __get_pydantic_core_schema__(self, _: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        def check(value: Any, inner: Callable[[Any], Any]) -> Any:
            inner(value)
            return value

        return core_schema.no_info_wrap_validator_function(check, handler.generate_schema(self.kind))


def in_file(more: bool = False, **names: Any) -> Callable[[type[Kind]], type[Kind]]:
    """For a dataclass that is not written field by field. more: fields that it lacks are left out, not refused.

    names: what files call a field; ("a", "b") is the field b of the object a, a list of these the first that is there.
    """

    def mark(kind: type[Kind]) -> type[Kind]:
        _IN_FILES[kind] = more, names
        return kind

    return mark


def _is_line(value: str) -> bool:
    return value.isprintable() and len(value) <= LONGEST_LINE


_ONE_LINE = f"a text of one line, at most {LONGEST_LINE} characters"
Line = Annotated[str, Holds(_is_line, _ONE_LINE)]  # perhaps empty
Text = Annotated[str, Holds(lambda text: text != "" and _is_line(text), _ONE_LINE)]
Count = Annotated[int, Whole()]
Positive = Annotated[int, Whole(1)]
Real = Annotated[float, Number()]
Share = Annotated[float, Number(0.0, 1.0)]
Object = dict[str, Any]
FILLED = Holds(len, "a list of at least 1")

_IN_FILES: dict[type, tuple[bool, dict[str, Any]]] = {}


@overload
def checked(kind: type[Kind], value: Any, field: str = "") -> Kind: ...
@overload
def checked(kind: Any, value: Any, field: str = "") -> Any: ...
def checked(kind: Any, value: Any, field: str = "") -> Any:
    """The value as this kind, a dataclass or another type. field: its name; "" for a whole file. Errors: FieldError."""
    return _validated(_validator(kind), value, field)


def check_fields(one: Any) -> None:
    """Hold a dataclass's fields to their annotations, for its ``__post_init__``; cheap. Errors: FieldError."""
    kind: Any = type(one)
    _validated(_fields_validator(kind), vars(one), "")


def from_json(text: str) -> Any:
    """The value of JSON text of others. Errors: ValueError for what is no JSON, a field twice, NaN or infinity."""
    try:
        value = json.loads(text, object_pairs_hook=no_field_twice)
        found = _infinite(value) if isinstance(value, float | list | dict) else []
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if found:
        raise FieldError(_path(found[:-1], ""), found[-1], "a finite number")
    return value


def schema_of(values: Any) -> int:
    """Take the number of a file's schema out of its values. Errors: FieldError."""
    if not isinstance(values, dict):
        raise FieldError("", values, "an object")
    if "schema" not in values:
        raise MissingFieldError("schema")
    return int(checked(Count, values.pop("schema"), "schema"))


def ascending(values: Iterable[float], field: str, strictly: bool = True) -> None:
    """Numbers, each larger than the one before (or, unless strictly, at least as large). Errors: FieldError."""
    for place, (before, here) in enumerate(itertools.pairwise(values), start=1):
        if here < before or (strictly and here == before):
            wanted = f"larger than {before}, the one before it" if strictly else f"at least {before}"
            raise FieldError(_joined(field, place), here, wanted)


def check_length(values: Sequence[Any], count: int, field: str) -> None:
    """Errors: FieldError for a list of another length."""
    if len(values) != count:
        raise FieldError(field, values, f"a list of {count}")


def check_tokens(found: Any, field: str) -> None:
    """min_tokens <= max_tokens of what has both. Errors: FieldError."""
    if found.max_tokens < found.min_tokens:
        raise FieldError(f"{field}.max_tokens", found.max_tokens, f"at least min_tokens, {found.min_tokens}")


def shown(value: Any) -> str:
    """A value as JSON writes it, in one short line."""
    text = ""
    try:
        cut = value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value
        for part in json.JSONEncoder(default=repr).iterencode(cut):
            text += part
            if len(text) > SHOWN_CHARACTERS:
                return f"{text[:SHOWN_CHARACTERS]}..."
    # Too deep, a key that is no text, in a circle or too many digits.
    except (RecursionError, TypeError, ValueError):
        return "something that can't be shown"
    return text


def _told(schema: CoreSchema, wanted: str) -> CoreSchema:
    """The schema with words of ours for whatever is wrong."""
    from pydantic_core import core_schema

    return core_schema.custom_error_schema(schema, "wanted", custom_error_message=wanted)


@functools.cache
def _validator(kind: Any) -> SchemaValidator:
    from pydantic import TypeAdapter

    return _made(TypeAdapter(kind).core_schema, from_json=True)


@functools.cache
def _fields_validator(kind: Any) -> SchemaValidator:
    from pydantic import TypeAdapter

    # The dataclass's own schema would make it, and so ask __post_init__ again; within it stands that of its fields.
    return _made(TypeAdapter(kind).core_schema["schema"], from_json=False)


def _made(schema: CoreSchema, from_json: bool) -> SchemaValidator:
    """A validator that stops at a list's or an object's first wrong entry, and converts nothing.

    from_json: it makes a tuple of a list, and a dataclass of an object.
    """
    from pydantic_core import CoreConfig, SchemaValidator

    exact = {"int", "float", "bool", "str"} | (set() if from_json else {"tuple", "dataclass"})

    def strict(node: Any) -> Any:
        if isinstance(node, list | tuple):
            return type(node)(map(strict, node))
        if not isinstance(node, dict):
            return node
        node = {name: strict(part) for name, part in node.items()}
        kind = node.get("type")
        if kind in exact:
            node["strict"] = True
        if kind in ("list", "tuple", "dict"):
            node["fail_fast"] = True
        return _as_written(node) if kind == "dataclass" and from_json else node

    return SchemaValidator(strict(schema), CoreConfig(allow_inf_nan=False))


def _as_written(node: Any) -> CoreSchema:
    """A dataclass's schema with the names that files use; unknown ones are refused at the first, not all collected."""
    from pydantic_core import core_schema

    more, names = _IN_FILES.get(node["cls"], (False, {}))
    node["schema"]["extra_behavior"] = "ignore"
    for field in node["schema"]["fields"]:
        if (name := names.get(field["name"])) is not None:
            field["validation_alias"] = list(map(_steps, name)) if isinstance(name, list) else _steps(name)
    known = {field["name"] for field in node["schema"]["fields"]}

    def refuse_unknown(value: Any) -> Any:
        for name in value if isinstance(value, dict) else ():
            if name not in known:
                raise FieldError(name, value[name], f"left out; known are {', '.join(sorted(known))}")
        return value

    if more:
        return node  # type: ignore[no-any-return]
    ref = node.pop("ref", None)  # what other parts of the schema refer to must be the whole
    return core_schema.no_info_before_validator_function(refuse_unknown, node, ref=ref)


def _steps(name: str | tuple[str, ...]) -> list[str]:
    return [name] if isinstance(name, str) else list(name)


def _infinite(value: Any) -> list[Any]:
    """Where NaN or infinity stands, step by step, and which it is; empty where nothing of that kind does."""
    if isinstance(value, float):
        return [] if isfinite(value) else [value]
    for step, entry in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(entry, float | list | dict) and (found := _infinite(entry)):
            return [step, *found]
    return []


def _path(steps: Iterable[str | int], field: str) -> str:
    return functools.reduce(_joined, steps, field)


def _validated(validator: SchemaValidator, value: Any, field: str) -> Any:
    from pydantic_core import ValidationError

    try:
        return validator.validate_python(value)
    except RecursionError:
        raise FieldError(field, value, "less deeply nested") from None
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
    raise _as_field_error(_path(found["loc"], field), found) from None


def _as_field_error(place: str, found: Any) -> ValueError:
    kind, context = found["type"], found.get("ctx", {})
    if kind == "missing":
        return MissingFieldError(place)
    if kind == "value_error":
        inner = context["error"]
        if isinstance(inner, MissingFieldError):
            return MissingFieldError(_joined(place, inner.field))
        if isinstance(inner, FieldError):
            return FieldError(_joined(place, inner.field), inner.value, inner.wanted)
        return ValueError(f"{place}: {inner}" if place else str(inner))
    wanted = _WANTED.get(kind, found["msg"])
    if kind == "literal_error":
        context = {"expected": context["expected"].replace("'", "").replace(" or ", ", ")}
    return FieldError(place, found["input"], wanted.format(**context))


_WANTED = {
    "bool_type": "true or false",
    "string_type": "a text",
    "string_unicode": "a text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "a {class_name}",
    "none_required": "null",
    "literal_error": "one of {expected}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def _joined(field: str, step: str | int) -> str:
    if isinstance(step, int):
        return f"{field}[{step}]"
    if not step.isprintable() or len(step) > SHOWN_CHARACTERS:
        step = shown(step)
    return f"{field}{'.' if field and step and step[0] != '[' else ''}{step}"


def no_field_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json.loads, which would keep the last of two values without a word."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {twice!r} stands twice in one object")
    return found
