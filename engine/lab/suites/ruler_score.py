"""RULER's two measures (Hsieh et al. 2024, arXiv:2404.06654), and those of every suite generated in its manner.

A prediction row has ``pred`` and ``outputs``. string_match_all: the share of gold strings found; string_match_part,
of the question-answering tasks: whether any is found. Both compare substrings without case, so that a prediction that
repeats its prompt scores full marks: keep the suite's limit of generated tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from routesparse.engine.lab.suites.suite import Golds, Row, TaskScore, field_of, mean_score, row_values
from routesparse.engine.lab.suites.text_match import any_match
from routesparse.engine.lab.training.samples import score_all

DIGITS = 2


def score_matches(rows: Sequence[Row], match: Callable[[str, Sequence[str]], float] = score_all) -> TaskScore:
    """Errors: InputError for a row without its fields or without gold strings."""
    values, nulls = row_values(
        rows, lambda row, prediction: match(prediction, field_of(row, "outputs", kind=Golds)), "pred"
    )
    return replace(mean_score(values, DIGITS), parts={"nulls": nulls})


def score_parts(rows: Sequence[Row]) -> TaskScore:
    """string_match_part, of qa_1 and qa_2."""
    return score_matches(rows, any_match)
