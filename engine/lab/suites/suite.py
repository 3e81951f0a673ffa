"""What every suite shares: one prompt with its gold answers, a task's score, and rows in the suites' own formats."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from routesparse.engine.errors import InputError
from routesparse.engine.files.plain_files import read_bounded
from routesparse.engine.lab.generators.samples import cleaned
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.schema import FieldError, Holds, checked

# By task: before and behind the context, prefix of the answer, new_tokens.
Templates = Mapping[str, Mapping[str, Any]]
MOST_DATA_BYTES = 1 << 31  # of a file of prompts; InfiniteBench's longest has about 1 GB
MOST_PREDICTION_BYTES = 1 << 29
Row = Mapping[str, Any]  # one line of a prediction file, in the suite's own format
Golds = Annotated[list[str], Holds(bool, "a list with at least one gold string")]
_ID = Annotated[Any, Holds(lambda one: type(one) in (int, str), "a text or a whole number")]


@dataclass(frozen=True)
class TaskScore:
    """A task's score as the official script prints it, and what it is made of.

    values: one per prediction row, 0 to 1 (of PG-19 nats a word). score: in points, rounded as printed.
    parts: further numbers that are reported beside it.
    """

    values: tuple[float, ...]
    score: float
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A benchmark. make: prompts, made or read from files; row: a prediction in the suite's own format.

    stops_at_gold: more text cannot lower a score, so decoding may end where the answer is the gold one.
    """

    name: str
    tasks: tuple[str, ...]
    scorer: Callable[[str, Sequence[Row]], TaskScore]
    make: Callable[[Request, Source], Iterator[Example]]
    row: Callable[[Example, str], dict[str, Any]]
    stops_at_gold: bool = False

    def score(self, task: str, rows: Sequence[Row]) -> TaskScore:
        """Errors: InputError for an unknown task, a row without its fields or with wrong ones, or no rows."""
        self.check(task)
        return self.scorer(task, rows)

    def examples(self, request: Request, source: Source) -> Iterator[Example]:
        """Errors: InputError for an unknown task, no prompts, missing files or texts, or too short a length."""
        self.check(request.task)
        if request.n < 1:
            raise InputError(f"{request.n} prompts are none; pass --n of at least 1")
        return self.make(request, source)

    def check(self, task: str) -> None:
        """Errors: InputError for an unknown task."""
        if task not in self.tasks:
            raise InputError(f"{self.name} has no task {task!r}; use some of {', '.join(self.tasks)}")


def generated(
    make: Callable[[Request, Source, int], Example],
) -> Callable[[Request, Source], Iterator[Example]]:
    """A suite's prompts by what makes the one of an index."""

    def examples(request: Request, source: Source) -> Iterator[Example]:
        return (make(request, source, index) for index in range(request.first, request.n))

    return examples


def read_examples(path: Path, request: Request, make: Callable[[int, Row], Example]) -> Iterator[Example]:
    """A file's rows as prompts. Errors: InputError, with the row."""
    for index, row in enumerate(read_rows(path)[request.first : request.n], request.first):
        with named_row(index + 1):
            example = make(index, row)
        yield example


def mean_score(values: Sequence[float], digits: int, nulls: int = 0) -> TaskScore:
    """100 times the mean of the rows' values, beside it the nulls if there are any. Errors: InputError without rows."""
    if not values:
        raise InputError("there are no rows to score; pass a file with at least one prediction")
    points = round(100 * sum(values) / len(values), digits)
    return TaskScore(tuple(values), points, {"nulls": nulls} if nulls else {})


def row_values(
    rows: Sequence[Row], value: Callable[[Row, str], float], *names: str
) -> tuple[list[float], int]:
    """Each row's value, given the row and its prediction, which stands in the first of these fields that the row has;
    and how many predictions are null or blank. A null one scores 0, whatever an empty text would.

    Errors: InputError for a prediction that is neither a text nor null, and those of ``value``; all name the row.
    """
    values, nulls = [], 0
    for number, row in enumerate(rows, 1):
        with named_row(number):
            prediction = field_of(row, *names, kind=str | None)
            found = value(row, prediction or "")
        values.append(0.0 if prediction is None else found)
        nulls += not cleaned(prediction or "")
    return values, nulls


def templates(module: str) -> Templates:
    """Those in the file beside a suite's module."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text("utf-8"))


@contextmanager
def named_row(number: int) -> Iterator[None]:
    """Errors: InputError that names the row, for an InputError or a FieldError within."""
    try:
        yield
    except (InputError, FieldError) as error:
        raise InputError(f"row {number}: {error}") from error


def field_of(row: Row, *names: str, kind: Any = Any) -> Any:
    """The first of these fields that the row has. Errors: InputError where it has none; FieldError where it is not of
    this kind (``engine/schema.py``)."""
    for name in names:
        if name in row:
            return checked(kind, row[name], name)
    raise InputError(
        f"no field {' or '.join(map(repr, names))}, only {', '.join(sorted(row))}; "
        "pass predictions in the suite's own format"
    )


def refuse_twice(rows: Sequence[Row]) -> None:
    """Errors: InputError for two rows of one id, or an id of another kind."""
    seen: dict[str | int, int] = {}
    for number, row in enumerate(rows, 1):
        name = next((name for name in ("index", "id", "_id") if row.get(name) is not None), None)
        if name is None:
            continue
        with named_row(number):
            found = field_of(row, name, kind=_ID)
            if found in seen:
                raise InputError(f"{name} is {found!r}, as in row {seen[found]}; keep one row of each prompt")
        seen[found] = number


def read_rows(path: Path, most_bytes: int = MOST_DATA_BYTES) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file in UTF-8; empty lines are skipped.

    Errors: InputError, with the line, or for a file of more than ``most_bytes``.
    """
    try:
        lines = read_bounded(path, most_bytes).decode("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}; pass a JSON Lines file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not UTF-8; pass a JSON Lines file") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is no JSON: {getattr(error, 'msg', error)}") from error
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number} is no JSON object; every line must be one")
        rows.append(row)
    return rows
