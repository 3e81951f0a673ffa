"""RULER's two measures (Hsieh et al. 2024, arXiv:2404.06654), and those of every suite generated in its manner.

A prediction row has ``pred`` and ``outputs``. string_match_all: the share of gold strings found; string_match_part,
of the question-answering tasks: whether any is found. Both compare substrings without case, so that a prediction that
repeats its prompt scores full marks: keep the suite's limit of generated tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from routesparse.engine.demo_model.samples import score_all
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.suites.suite import Row, TaskScore, field_of, mean_score
from routesparse.engine.evaluation.suites.text_match import any_match

DIGITS = 2


def score_matches(rows: Sequence[Row], match: Callable[[str, Sequence[str]], float] = score_all) -> TaskScore:
    """Errors: InputError for a row without its fields or without gold strings."""
    values, empty = [], 0
    for row in rows:
        prediction, gold = str(field_of(row, "pred")), field_of(row, "outputs")
        if not isinstance(gold, list) or not gold:
            raise InputError(f"outputs {gold!r} must be a list with at least one gold string")
        values.append(match(prediction, gold))
        empty += not prediction.strip()
    found = mean_score(values, DIGITS)
    return TaskScore(found.values, found.score, {"nulls": empty})


def score_parts(rows: Sequence[Row]) -> TaskScore:
    """string_match_part, of qa_1 and qa_2."""
    return score_matches(rows, any_match)
