"""PG-19 (Rae et al. 2019, arXiv:1911.05507): how surprised a model is by books that it has not seen.

Files: ``<root>/{validation,test}/<id>.txt`` and ``metadata.csv`` without header (id, title by author, year, url). One
book is one prompt, its first tokens up to the length; no window crosses books. With S = sum of -log p over all tokens
but the first, in nats:

    word perplexity   exp(S / words), the official unit, whatever the tokenizer
    token perplexity  exp(S / tokens)
    bits per byte     S / (ln 2 * UTF-8 bytes)
    last 1K           token perplexity of the last 1,024 tokens of each book, which all have long contexts

Sums run over all books before the division (corpus perplexity). S comes from the prefill's own logits, which are what
sparse attention changes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.lab.suites.suite import Row, Suite, TaskScore, field_of, named_row
from routesparse.engine.schema import POSITIVE, Number

SPLITS = ("validation", "test")
LAST_TOKENS = 1_024
FIELDS = ("nll", "tokens", "words", "bytes", "last_nll", "last_tokens")
_NATS, _COUNT = Annotated[float, Number(0.0)], Annotated[float, Number(POSITIVE)]
DIGITS = 4


def measures(rows: Sequence[Row]) -> dict[str, float]:
    """The four measures of a set of books. Errors: InputError for a row without its fields, or no tokens."""
    books = []
    for number, row in enumerate(rows, 1):
        with named_row(number):
            books.append([field_of(row, name, kind=_NATS if "nll" in name else _COUNT) for name in FIELDS])
    if not books:
        raise InputError("there are no books to score; pass one row a book with its sums")
    try:
        sums = dict(zip(FIELDS, map(math.fsum, zip(*books, strict=True)), strict=True))
        return {
            "word_perplexity": math.exp(sums["nll"] / sums["words"]),
            "token_perplexity": math.exp(sums["nll"] / sums["tokens"]),
            "bits_per_byte": sums["nll"] / (math.log(2) * sums["bytes"]),
            "last_1k": math.exp(sums["last_nll"] / sums["last_tokens"]),
        }
    except OverflowError as error:
        raise InputError("the nats a word are too many for a perplexity; pass one row a book") from error


def _score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Word perplexity of a split; a row's value is its book's nats a word."""
    found = {name: round(value, DIGITS) for name, value in measures(rows).items()}
    values = tuple(float(row["nll"]) / float(row["words"]) for row in rows)
    return TaskScore(values, found["word_perplexity"], found)


def _examples(request: Request, source: Source) -> Iterator[Example]:
    """The first tokens of each book, one prompt a book.

    Books lie in ``<data>/benchmarks/pg19/``, else in ``<data>/prose``, where calibration stands for validation.
    """
    root, split = source.folder("pg19"), request.task
    if not root.exists():
        root, split = source.data / "prose", {"validation": "calibration"}.get(split, split)
    books = sorted((root / split).glob("*.txt"))
    if not books:
        raise InputError(f"{root / split} holds no books <id>.txt; pass the folder that holds {split}/")
    titles = _titles(root / "metadata.csv")
    for index, path in enumerate(books[request.first : request.n], request.first):
        text, _ = source.cut_end(path.read_text("utf-8"), request.length - source.special_tokens)
        about = {"title": titles.get(path.stem, "")}
        yield Example(request.task, index, text, "", None, "", 0, path.stem, about)


def _titles(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row[0]: row[1] for row in csv.reader(file) if len(row) >= 3}


def _row(example: Example, prediction: str) -> dict[str, Any]:
    raise InputError("PG-19 is scored by the losses of its books, not by texts")


SUITE = Suite("pg19", SPLITS, _score, _examples, _row)
