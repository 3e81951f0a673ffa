"""InfiniteBench's scorers (Zhang et al. 2024, arXiv:2402.13718), as its compute_scores.py works at commit 88b3daa.

A prediction row has ``prediction`` or ``pred``, and ``ground_truth`` or ``label``. What the code does counts, not its
README: the two tasks called ROUGE there are plain F1, and a bare letter scores 0 in code_debug.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.suites.suite import Row, TaskScore, field_of, mean_score
from routesparse.engine.evaluation.suites.text_match import answer_f1, normalised_chinese, token_f1

_NUMBER = re.compile(r"\d+\.\d+|\d+")
_DIGITS = re.compile(r"[0-9]+")
_WORD_ENDS = "\n:\"'.,?!{}"


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for an unknown task, a row without its fields, or gold of the wrong kind."""
    if task not in SCORERS:
        raise InputError(f"InfiniteBench has no task {task!r}; use one of {', '.join(SCORERS)}")
    scorer = SCORERS[task]
    values = []
    for number, row in enumerate(rows, 1):
        prediction, gold = field_of(row, "prediction", "pred"), field_of(row, "ground_truth", "label")
        try:
            values.append(float(scorer(prediction, gold)))
        except (TypeError, IndexError, AttributeError) as error:
            raise InputError(
                f"row {number} of {task} cannot be scored: gold {str(gold)[:80]!r} is not of the task's kind ({error})"
            ) from error
    return mean_score(values, 2)


def _spaced(text: str, characters: str) -> str:
    return text.translate(str.maketrans(characters, " " * len(characters)))


def _references(gold: Any) -> list[str]:
    return [gold] if isinstance(gold, str) else list(gold)


def _first_digits(prediction: str, gold: Any) -> bool:
    found = _DIGITS.search(prediction)
    return (found.group() if found else "") == _references(gold)[0]


def _is_a_word(prediction: str, gold: Any) -> bool:
    return _references(gold)[0] in _spaced(prediction, _WORD_ENDS).split()


def _names_speaker(prediction: str, gold: Any) -> bool:
    return gold[0] in (word.upper() for word in _spaced(prediction, _WORD_ENDS).split())


def _summary(prediction: str, gold: Any) -> float:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeLsum"], use_stemmer=False)
    return max(scorer.score(one, prediction)["rougeLsum"].fmeasure for one in _references(gold))


def _english_f1(prediction: str, gold: Any) -> float:
    return max((answer_f1(prediction, one) for one in _references(gold)), default=0.0)


def _chinese_f1(prediction: str, gold: Any) -> float:
    """One character is one token."""
    mine = normalised_chinese(prediction)
    return max((token_f1(mine, normalised_chinese(one)) for one in _references(gold)), default=0.0)


def _choice(prediction: str, gold: Any) -> bool:
    """gold: [text of the right option, its letter]."""
    text = prediction.strip()
    if not text:
        return False
    if text[0] in "ABCD":
        return text[0] in gold
    if text in gold:
        return True
    text = re.sub(" +", " ", _spaced(text, "\n\"'.,?!{}"))
    for cue in ("answer is:", "answer:", "answer is", "option is"):
        if cue in text:
            return text[text.index(cue) + len(cue) + 1 :].startswith(tuple(gold))
    # The official test is "word in 'ABCD'", so AB ends the search too.
    return next((word for word in text.split() if word in "ABCD"), None) in gold


def _wrong_function(prediction: str, gold: Any) -> bool:
    """gold: [name of the function, its letter]."""
    name, letter = gold[0], gold[1]
    if prediction.startswith((f"{letter}.", f"{letter}:")):
        return True
    text = _spaced(prediction.strip(), "\n`'\"-*").replace("Option", " ").replace("option", " ")
    text = re.sub(" +", " ", text)
    for cue in ("answer is:", "is:", "answer:", "correct option is:"):
        if cue in text:
            return text[text.index(cue) + len(cue) + 1 :].startswith((letter, name))
    return False


def _last_word_is(prediction: str, gold: Any) -> bool:
    words = _spaced(prediction.strip(), "\n.`'\":").split()
    try:
        return bool(words) and int(words[-1]) == _number(gold)
    except ValueError:
        return False


def _first_number_is(prediction: str, gold: Any) -> bool:
    found = _NUMBER.search(prediction)
    number = _number(gold)
    if found is None:
        return False
    # int("1.5") fails in the official scorer; such a prediction is wrong here.
    if isinstance(number, int) and "." in found.group():
        return False
    return type(number)(found.group()) == number


def _number(gold: Any) -> int | float:
    """Freshly generated files hold a number, the published ones a list with one."""
    one = gold[0] if isinstance(gold, list) else gold
    return one if isinstance(one, int | float) else int(one)


def _leading_run(prediction: str, gold: Any) -> float:
    """The share of the gold list that the prediction's integers begin with; signs are not read."""
    right = 0
    for mine, wanted in zip(map(int, _DIGITS.findall(prediction)), gold, strict=False):
        if mine != wanted:
            break
        right += 1
    return right / len(gold)


SCORERS: dict[str, Callable[[str, Any], bool | float]] = {
    "passkey": _first_digits,
    "number_string": _first_digits,
    "kv_retrieval": _is_a_word,
    "longbook_sum_eng": _summary,
    "longbook_qa_eng": _english_f1,
    "longbook_choice_eng": _choice,
    "longdialogue_qa_eng": _names_speaker,
    "longbook_qa_chn": _chinese_f1,
    "code_debug": _wrong_function,
    "code_run": _last_word_is,
    "math_calc": _leading_run,
    "math_find": _first_number_is,
}
