"""L-Eval's automatic metrics (An et al. 2023, arXiv:2307.11088), as its auto_eval.py works at commit cd34b05.

A prediction row has ``gt``, ``<model>_pred`` and ``evaluation``; rows for a judge or for people are not scored. Of
multiple choice the predicted letters are the first of A to D (coursera: several), of the others the gold answer has
to be contained in the prediction. coursera gives a quarter of a point for a part of the right letters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.suites.suite import Row, TaskScore, field_of
from routesparse.engine.evaluation.suites.text_match import answer_f1, without_articles

Read = Callable[[str, str], tuple[str, str]]  # prediction and gold, as they are compared
DIGITS = 4
ROUGE = ("rouge1", "rouge2", "rougeL")
EXAMS = ("tpo", "gsm100", "quality", "coursera", "topic_retrieval_longchat", "sci_fi", "codeU")
F1_TASKS = (
    "financial_qa",
    "legal_contract_qa",
    "multidoc_qa",
    "narrative_qa",
    "natural_question",
    "scientific_qa",
)
ROUGE_TASKS = (
    "gov_report_summ",
    "meeting_summ",
    "news_summ",
    "paper_assistant",
    "patent_summ",
    "review_summ",
    "tv_show_summ",
)
TASKS = (*EXAMS, *F1_TASKS, *ROUGE_TASKS)


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for an unknown task, a row without its fields, or a file without a row to score."""
    if task not in TASKS:
        raise InputError(f"L-Eval has no task {task!r}; use one of {', '.join(TASKS)}")
    scored = [row if field_of(row, "evaluation") in ("exam", "f1", "rouge") else None for row in rows]
    if not any(scored):
        raise InputError(f"no row of {task} has an automatic metric; evaluation must be exam, f1 or rouge")
    pairs = [None if row is None else (_prediction(row), str(field_of(row, "gt"))) for row in scored]
    if task in ROUGE_TASKS:
        return _summaries(pairs)
    if task == "sci_fi":
        return _in_parts(pairs, lambda place, pair: zip(_judged(pair[0]), _verdicts(pair[1]), strict=True), 2)
    if task == "topic_retrieval_longchat":
        return _topics(pairs)
    if task in F1_TASKS:
        values = [None if pair is None else answer_f1(*pair) for pair in pairs]
    else:
        read = _READERS.get(task, lambda prediction, gold: (prediction, gold))
        values = [None if pair is None else exact_match(*read(*pair)) for pair in pairs]
    return TaskScore(tuple(values), _points([value for value in values if value is not None]))


def _points(values: Sequence[float]) -> float:
    return round(100 * sum(values) / len(values), DIGITS)


def _prediction(row: Row) -> str:
    name = next((name for name in row if "_pred" in name), None)
    if name is None:
        raise InputError(f"a row has no field <model>_pred, only {', '.join(sorted(row))}")
    return str(row[name])


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
        line = next((line for line in prediction.split("\n") if len(line) > 1), prediction)
        return float(gold.lower().replace(" ", "") in line.lower().replace(" ", ""))


def _choice(prediction: str, gold: str) -> tuple[str, str]:
    if not prediction.strip():
        return "None", _gold_letters(gold)
    found = re.search("[ABCD]", prediction)
    letters = prediction if prediction in "ABCD" else (found.group() if found else _several(prediction))
    return letters, _gold_letters(gold)


def _choices(prediction: str, gold: str) -> tuple[str, str]:
    if not prediction.strip():
        return "None", _gold_letters(gold)
    return prediction if prediction in "ABCD" else _several(prediction), _gold_letters(gold)


def _gold_letters(gold: str) -> str:
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


def _numbers(prediction: str, gold: str) -> tuple[str, str]:
    return _number(prediction), _number(gold)


def _plain_code(text: str) -> str:
    text = re.sub(r"\s+", " ", text)
    for part in (",", "'", "\\", ".0"):
        text = text.replace(part, "")
    return text.replace("] [", "][").replace("[ [", "[[").replace("] ]", "]]")


_FILLERS = (
    "will be",
    "of the code",
    "is",
    "would be",
    "the value of",
    "the result of",
    "printed",
)


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
    "gsm100": _numbers,
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
    for word in text.split():
        for verdict in ("true", "false"):
            if verdict in word:
                return verdict
    return "<error>"


def _in_parts(pairs: Sequence[Any], compared: Callable[[int, Any], Any], parts: int) -> TaskScore:
    """sci_fi: loyalty and fact apart, then their mean."""
    values = [
        None if pair is None else [exact_match(*part) for part in compared(place, pair)]
        for place, pair in enumerate(pairs)
    ]
    known = [value for value in values if value is not None]
    scores = [_points([value[part] for value in known]) for part in range(parts)]
    means = tuple(None if value is None else sum(value) / parts for value in values)
    return TaskScore(means, [*scores, round(sum(scores) / parts, DIGITS)])


def _topics(pairs: Sequence[tuple[str, str] | None]) -> TaskScore:
    """Every third row asks for the first, second, third topic: the three scores apart, then their mean."""
    values = tuple(None if pair is None else exact_match(*pair) for pair in pairs)
    thirds = [[value for value in values[place::3] if value is not None] for place in range(3)]
    if not all(thirds):
        raise InputError(
            f"topic_retrieval_longchat asks three questions a document; {len(pairs)} rows are too few"
        )
    scores = [_points(third) for third in thirds]
    return TaskScore(values, [*scores, round(sum(scores) / 3, DIGITS)])


def _summaries(pairs: Sequence[tuple[str, str] | None]) -> TaskScore:
    """The geometric mean of the mean ROUGE-1, -2 and -L F; a row's value is its own geometric mean.

    Officially sentences stand on lines of their own, which changes none of these three.
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(list(ROUGE), use_stemmer=False)
    found = [
        None if pair is None else [s.fmeasure for s in scorer.score(pair[1], pair[0]).values()]
        for pair in pairs
    ]
    known = [numbers for numbers in found if numbers is not None]
    means = [100 * sum(column) / len(known) for column in zip(*known, strict=True)]
    values = tuple(None if numbers is None else math.prod(numbers) ** (1 / 3) for numbers in found)
    parts = {name: round(mean, DIGITS) for name, mean in zip(ROUGE, means, strict=True)}
    return TaskScore(values, round(math.prod(means) ** (1 / 3), DIGITS), parts)
