"""InfiniteBench's scorers (Zhang et al. 2024, arXiv:2402.13718), as its compute_scores.py works at commit 88b3daa.

A prediction row has ``prediction`` or ``pred``, and ``ground_truth`` or ``label``. What the code does counts, not its
README: the two tasks called ROUGE there are plain F1, and a bare letter scores 0 in code_debug. Gold that its code
can't compare is taken as it is meant: one text for a list of one, a number's digits for the number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from routesparse.engine.lab.suites.measures import answer_f1, normalised_chinese, token_f1
from routesparse.engine.lab.suites.suite import Golds, Row, TaskScore, field_of, mean_score, row_values
from routesparse.engine.schema import Holds

_NUMBER = re.compile(r"\d+\.\d+|\d+")
_DIGITS = re.compile(r"[0-9]+")
_WRITTEN = re.compile(r"-?[0-9]{1,300}(\.[0-9]+)?")
_WORD_ENDS = "\n:\"'.,?!{}"


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for a row without its fields, or one whose fields are of another kind."""
    scorer, kind = SCORERS[task]

    def value(row: Row, prediction: str) -> float:
        return float(scorer(prediction, field_of(row, "ground_truth", "label", kind=kind)))

    values, nulls = row_values(rows, value, "prediction", "pred")
    return mean_score(values, 2, nulls)


def _spaced(text: str, characters: str) -> str:
    return text.translate(str.maketrans(characters, " " * len(characters)))


def _references(gold: Any) -> list[str]:
    return [gold] if isinstance(gold, str) else list(gold)


def _first_digits(prediction: str, gold: Any) -> bool:
    found = _DIGITS.search(prediction)
    return (found.group() if found else "") == _references(gold)[0]


def _is_a_word(prediction: str, gold: Any) -> bool:
    return _references(gold)[0] in _spaced(prediction, _WORD_ENDS).split()


def _names_speaker(prediction: str, gold: list[str]) -> bool:
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
    named = _is_named(text, ("answer is:", "answer:", "answer is", "option is"), gold)
    if named is not None:
        return named
    # The official test is "word in 'ABCD'", so AB ends the search too.
    return any(word in gold for word in [word for word in text.split() if word in "ABCD"][:1])


def _wrong_function(prediction: str, gold: list[str]) -> bool:
    """gold: [name of the function, its letter]."""
    name, letter = gold[:2]
    text = prediction.strip()
    if text[:2] in (f"{letter}.", f"{letter}:"):
        return True
    text = _spaced(text, "\n`'\"-*").replace("Option", " ").replace("option", " ")
    text = re.sub(" +", " ", text)
    return bool(_is_named(text, ("answer is:", "is:", "answer:", "correct option is:"), (letter, name)))


def _is_named(text: str, cues: Sequence[str], gold: Sequence[str]) -> bool | None:
    """Whether a gold text stands a character behind the first of the cues that occurs; None for no cue."""
    cue = next((cue for cue in cues if cue in text), None)
    if cue is None:
        return None
    end = text.index(cue) + len(cue)
    return end < len(text) and text.startswith(tuple(gold), end + 1)


def _last_word_is(prediction: str, gold: Any) -> bool:
    words = _spaced(prediction.strip(), "\n.`'\":").split()
    try:
        return bool(words) and int(words[-1]) == _number(gold)
    except ValueError:
        return False


def _first_number_is(prediction: str, gold: Any) -> bool:
    found, number = _NUMBER.search(prediction), _number(gold)
    try:
        return found is not None and type(number)(found.group()) == number
    # int("1.5") ends the official scorer, as a number of too many digits does; such a prediction is wrong here.
    except ValueError:
        return False


def _number(gold: Any) -> Any:
    """Freshly generated files hold a number, the published ones a list with one, some readers its digits; else None."""
    one = gold[0] if isinstance(gold, list) and gold else gold
    if isinstance(one, str) and _WRITTEN.fullmatch(one):
        return float(one) if "." in one else int(one)
    return one if type(one) in (int, float) else None


def _leading_run(prediction: str, gold: list[Any]) -> float:
    """The share of the gold list that the prediction's integers begin with; signs are not read."""
    right, numbers = 0, flat(gold)
    for mine, wanted in zip(_DIGITS.findall(prediction), numbers, strict=False):
        if (mine.lstrip("0") or "0") != str(wanted):
            break
        right += 1
    return right / len(numbers)


def flat(gold: list[Any]) -> list[Any]:
    """math_calc's gold list, which may stand in a list of its own."""
    return gold[0] if gold and isinstance(gold[0], list) else gold


def _is_whole_numbers(gold: list[Any]) -> bool:
    return bool(flat(gold)) and all(type(one) is int for one in flat(gold))


def _is_texts(gold: Any) -> bool:
    return isinstance(gold, str) or (isinstance(gold, list) and all(isinstance(one, str) for one in gold))


_REFERENCES = Annotated[Any, Holds(_is_texts, "a text or a list of texts")]
TEXT = Annotated[Any, Holds(lambda gold: _is_texts(gold) and gold != [], "a text or a list with one")]
_NUMERIC = Annotated[Any, Holds(lambda gold: _number(gold) is not None, "a number or a list with one")]
_NUMBERS = Annotated[list[Any], Holds(_is_whole_numbers, "a list with at least one whole number")]
_OPTION = Annotated[list[str], Holds(lambda gold: len(gold) > 1, "the answer's text and its letter")]

# What compares a prediction with gold, and what gold must be.
SCORERS: dict[str, tuple[Callable[[str, Any], bool | float], Any]] = {
    "passkey": (_first_digits, TEXT),
    "number_string": (_first_digits, TEXT),
    "kv_retrieval": (_is_a_word, TEXT),
    "longbook_sum_eng": (_summary, TEXT),
    "longbook_qa_eng": (_english_f1, _REFERENCES),
    "longbook_choice_eng": (_choice, _REFERENCES),
    "longdialogue_qa_eng": (_names_speaker, Golds),
    "longbook_qa_chn": (_chinese_f1, _REFERENCES),
    "code_debug": (_wrong_function, _OPTION),
    "code_run": (_last_word_is, _NUMERIC),
    "math_calc": (_leading_run, _NUMBERS),
    "math_find": (_first_number_is, _NUMERIC),
}
