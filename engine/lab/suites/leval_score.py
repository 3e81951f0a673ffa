"""L-Eval's automatic metrics (An et al. 2023, arXiv:2307.11088), as its auto_eval.py works at commit cd34b05.

A prediction row has ``gt``, ``<model>_pred`` and ``evaluation``; rows for a judge or for people are not scored. Of
multiple choice the predicted letters are the first of A to D (coursera: several), of the others the gold answer has
to be contained in the prediction. coursera gives a quarter of a point for a part of the right letters.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import cleaned
from routesparse.engine.lab.suites.measures import answer_f1, without_articles
from routesparse.engine.lab.suites.suite import Row, TaskScore, field_of, named_row

Read = Callable[[str, str], tuple[str, str]]  # prediction and gold, as they are compared
DIGITS = 4
AUTOMATIC = ("exam", "f1", "rouge")
ROUGE = ("rouge1", "rouge2", "rougeL")
EXAMS = ("tpo", "gsm100", "quality", "coursera", "topic_retrieval_longchat", "sci_fi", "codeU")
F1_TASKS = (
    *("financial_qa", "legal_contract_qa", "multidoc_qa"),
    *("narrative_qa", "natural_question", "scientific_qa"),
)
ROUGE_TASKS = (
    *("gov_report_summ", "meeting_summ", "news_summ", "paper_assistant", "patent_summ", "review_summ"),
    "tv_show_summ",
)
TASKS = (*EXAMS, *F1_TASKS, *ROUGE_TASKS)


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for a row without its fields, or a file without a row to score."""
    found: list[tuple[float, ...] | None] = []
    nulls = 0
    for number, row in enumerate(rows, 1):
        with named_row(number):
            if field_of(row, "evaluation", kind=str) not in AUTOMATIC:
                found.append(None)
                continue
            prediction, gold = _prediction(rows[0], row), field_of(row, "gt", kind=str)
            numbers = _measured(task, prediction or "", gold)
        found.append(tuple(0.0 for _ in numbers) if prediction is None else numbers)
        nulls += not cleaned(prediction or "")
    if not any(found):
        raise InputError(f"no row of {task} has an automatic metric; evaluation must be exam, f1 or rouge")
    conclude = {"sci_fi": _in_parts, "topic_retrieval_longchat": _topics}.get(task, _plain)
    scored = _summaries(found) if task in ROUGE_TASKS else conclude(found)
    return replace(scored, parts=scored.parts | ({"nulls": nulls} if nulls else {}))


def _measured(task: str, prediction: str, gold: str) -> tuple[float, ...]:
    """A row's numbers, 0 to 1: one, of sci_fi one a part, of a summary three."""
    if task in ROUGE_TASKS:
        return tuple(one.fmeasure for one in _rouge().score(gold, prediction).values())
    if task in F1_TASKS:
        return (answer_f1(prediction, gold),)
    if task == "sci_fi":
        return tuple(itertools.starmap(exact_match, zip(_judged(prediction), _verdicts(gold), strict=True)))
    read = _READERS.get(task, lambda prediction, gold: (prediction, gold))
    return (exact_match(*read(prediction, gold)),)


def _points(values: Sequence[float]) -> float:
    return round(100 * sum(values) / len(values), DIGITS)


def _prediction(first: Row, row: Row) -> str | None:
    """In the field that the first row names. Errors: InputError where it names none."""
    name = next((name for name in first if "_pred" in name), None)
    if name is None:
        raise InputError(f"no field <model>_pred, only {', '.join(sorted(first))}")
    return field_of(row, name, kind=str | None)


def exact_match(prediction: str, gold: str) -> float:
    """1, 0, or .25 for a part of several right letters. Texts: numbers equal, or the gold one contained."""
    letters = without_articles(gold)
    if all(letter in "ABCD" for letter in letters):
        mine = without_articles(prediction)
        if mine == letters:
            return 1.0
        return 0.25 if set(mine) <= set(letters) else 0.0
    try:
        return float(float(prediction) == float(gold))
    except ValueError:
        return float(gold.lower().replace(" ", "") in prediction.lower().replace(" ", ""))


def _choice(prediction: str, gold: str) -> tuple[str, str]:
    found = re.search("[ABCD]", prediction)
    return _letters(prediction, found.group() if found else None), _gold_letters(gold)


def _choices(prediction: str, gold: str) -> tuple[str, str]:
    return _letters(prediction, None), _gold_letters(gold)


def _letters(prediction: str, one: str | None) -> str:
    if not prediction.strip():
        return "None"
    return prediction if prediction in "ABCD" else one or _several(prediction)


def _gold_letters(gold: str) -> str:
    """Errors: InputError for no word at all."""
    if not gold.strip():
        raise InputError("gt is blank; it must begin with the right letter or letters")
    return re.sub("[^A-D]", "", gold.split()[0]) or "A"


def _several(prediction: str) -> str:
    """A leading run of letters, else capitals before space, dot or bracket, else the first run; A for none."""
    run = prediction[: len(prediction) - len(prediction.lstrip("ABCD"))]
    if len(run) > 1:
        return "".join(sorted(set(run)))
    rest = prediction[len(run) :].split("Question")[0]
    alone = run + "".join(re.findall(r"[A-Z](?=[\s.)])", rest))
    letters = "".join(sorted(set(alone) & set("ABCD")))
    if letters:
        return letters
    found = re.search("[ABCD]+", rest)
    return found.group() if found else "A"


def _number(text: str) -> str:
    """Digits up to the dot: behind "The answer is", else of the last word with a digit in the first paragraph."""
    found = re.search(r"The answer is (\S+)", text)
    words = reversed(text.split("\n\n")[0].split(" "))
    word = found.group(1) if found else next((word for word in words if any(map(str.isdigit, word))), "")
    return "".join(filter(str.isdigit, word.split(".")[0]))


def _plain_code(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    for part in (",", "'", "\\", ".0"):
        text = text.replace(part, "")
    return text.replace("] [", "][").replace("[ [", "[[").replace("] ]", "]]")


_FILLERS = ("will be", "of the code", "is", "would be", "the value of", "the result of", "printed")


def _code_output(prediction: str, gold: str) -> tuple[str, str]:
    """As many words as the gold answer has and three more: behind "the final output", else the last ones."""
    text = _plain_code(prediction)
    for filler in _FILLERS:
        text = text.replace(filler, "")
    words, count = re.split(r"\s+", text.split("the final output")[-1]), len(gold.split()) + 3
    kept = words[:count] if "the final output" in text else words[-count:]
    return " ".join(kept), _plain_code(gold)


_READERS: dict[str, Read] = {
    "tpo": _choice,
    "quality": _choice,
    "coursera": _choices,
    "gsm100": lambda prediction, gold: (_number(prediction), _number(gold)),
    "codeU": _code_output,
}


def _verdicts(text: str) -> tuple[str, str]:
    """The two parts of "True [fact: False]". Errors: InputError without the bracket."""
    first, bracket, second = text.lower().partition("[fact:")
    if not bracket:
        raise InputError(f"sci_fi's {text[:60]!r} lacks the form 'True [fact: False]'")
    return first.strip(), second.split("[fact:")[0][:-1].strip()


def _judged(prediction: str) -> tuple[str, str]:
    """The first true or false of each part; a prediction without the bracket has neither."""
    if "[fact:" not in prediction.lower():
        return "<error>", "<error>"
    first, second = _verdicts(prediction)
    return _first_verdict(first), _first_verdict(second)


def _first_verdict(text: str) -> str:
    found = (verdict for word in text.split() for verdict in ("true", "false") if verdict in word)
    return next(found, "<error>")


def _plain(found: Sequence[tuple[float, ...] | None]) -> TaskScore:
    values = tuple(None if numbers is None else numbers[0] for numbers in found)
    return TaskScore(values, _points([value for value in values if value is not None]))


def _in_parts(found: Sequence[tuple[float, ...] | None]) -> TaskScore:
    """sci_fi: loyalty and fact apart, then their mean."""
    scores = [_points(part) for part in zip(*filter(None, found), strict=True)]
    means = tuple(None if numbers is None else sum(numbers) / len(numbers) for numbers in found)
    return TaskScore(means, [*scores, round(sum(scores) / len(scores), DIGITS)])


def _topics(found: Sequence[tuple[float, ...] | None]) -> TaskScore:
    """Every third row asks for the first, second, third topic: the three scores apart, then their mean."""
    thirds = [[numbers[0] for numbers in found[place::3] if numbers] for place in range(3)]
    if not all(thirds):
        raise InputError(
            f"topic_retrieval_longchat asks three questions a document; {len(found)} rows are too few"
        )
    scores = [_points(third) for third in thirds]
    return TaskScore(_plain(found).values, [*scores, round(sum(scores) / 3, DIGITS)])


@cache
def _rouge() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(ROUGE), use_stemmer=False)


def _summaries(found: Sequence[tuple[float, ...] | None]) -> TaskScore:
    """The geometric mean of the mean ROUGE-1, -2 and -L F; a row's value is its own geometric mean.

    Officially sentences stand on lines of their own, which changes none of these three.
    """
    known = list(filter(None, found))
    means = [100 * sum(column) / len(known) for column in zip(*known, strict=True)]
    values = tuple(None if numbers is None else math.prod(numbers) ** (1 / 3) for numbers in found)
    parts = {name: round(mean, DIGITS) for name, mean in zip(ROUGE, means, strict=True)}
    return TaskScore(values, round(math.prod(means) ** (1 / 3), DIGITS), parts)
