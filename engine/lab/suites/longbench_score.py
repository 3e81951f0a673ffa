"""LongBench's scorers (Bai et al. 2024, arXiv:2308.14508), as its eval.py and metrics.py work at commit 2e00731.

A prediction row has ``pred``, ``answers`` (the best of them counts) and, of the classification tasks, ``all_classes``.
code_sim is the difflib ratio that the official fuzzywuzzy falls back to without its optional C library.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.measures import answer_f1, normalised_chinese, token_f1
from routesparse.engine.lab.suites.suite import Row, TaskScore, field_of, mean_score, row_values
from routesparse.engine.schema import Holds

FIRST_LINE_TASKS = ("trec", "triviaqa", "samsum", "lsht")
_CLASSES = Annotated[list[str], Holds(bool, "a list of the names of all classes")]
_COUNTS = list[Annotated[Any, Holds(lambda one: type(one) in (int, str), "a text or a whole number")]]


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for a row without its fields, or one whose fields are of another kind."""
    scorer = SCORERS[task]

    def value(row: Row, prediction: str) -> float:
        if task in FIRST_LINE_TASKS:
            prediction = prediction.lstrip("\n").split("\n")[0]
        compare = scorer or partial(_classification, field_of(row, "all_classes", kind=_CLASSES))
        answers = field_of(row, "answers", kind=_COUNTS if task == "passage_count" else list[str])
        return max((compare(prediction, str(gold)) for gold in answers), default=0.0)

    values, nulls = row_values(rows, value, "pred")
    return mean_score(values, 2, nulls)


@cache
def _segment() -> Callable[[str], Iterable[str]]:
    """jieba's words of a Chinese text."""
    import jieba

    jieba.setLogLevel(logging.WARNING)  # it announces its dictionary on stderr
    return jieba.cut


def _chinese_f1(prediction: str, gold: str) -> float:
    mine, theirs = (
        [w for w in map(normalised_chinese, _segment()(text)) if w] for text in (prediction, gold)
    )
    return token_f1(mine, theirs)


@cache
def _rouge() -> Any:
    from rouge import Rouge

    return Rouge(metrics=["rouge-l"])


def _rouge_l(prediction: str, gold: str) -> float:
    try:
        return _rouge().get_scores([prediction], [gold], avg=True)["rouge-l"]["f"]
    # The package refuses texts without a word, and its recursion ends at very long ones; officially both score 0.
    except (ValueError, RecursionError):
        return 0.0


def _chinese_rouge_l(prediction: str, gold: str) -> float:
    return _rouge_l(" ".join(_segment()(prediction)), " ".join(_segment()(gold)))


def _classification(classes: Sequence[str], prediction: str, gold: str) -> float:
    """1 / number of classes named, where the gold one is among them.

    Names that are part of the gold one are taken out of the list while it is walked, as officially, so that the one
    behind a removed name is not looked at.
    """
    named = [name for name in classes if name in prediction]
    for name in named:
        if name in gold and name != gold:
            named.remove(name)
    return 1 / len(named) if gold in named else 0.0


def _count(prediction: str, gold: str) -> float:
    """The share of the prediction's integers that are the gold one."""
    found = Counter(re.findall(r"\d+", prediction))
    return found[gold] / found.total() if found else 0.0


def _paragraph(word: str, prediction: str, gold: str) -> float:
    found = re.search(rf"{word}(\d+)", gold)
    if found is None:
        raise InputError(f"answers holds {gold[:60]!r}, which names no paragraph; it must read '{word}3'")
    return _count(prediction, found.group(1))


def _code(prediction: str, gold: str) -> float:
    """Similarity of the first line that is neither comment nor fence, in whole per cents."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if not line or not gold:
        return float(line == gold)
    return round(100 * difflib.SequenceMatcher(None, line, gold).ratio()) / 100


# What compares a prediction with one gold answer; None: by the names of all classes.
SCORERS: dict[str, Callable[[str, str], float] | None] = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en"), answer_f1),
    "multifieldqa_zh": _chinese_f1,
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique"), answer_f1),
    "dureader": _chinese_rouge_l,
    **dict.fromkeys(("gov_report", "qmsum", "multi_news"), _rouge_l),
    "vcsum": _chinese_rouge_l,
    "trec": None,
    "triviaqa": answer_f1,
    "samsum": _rouge_l,
    "lsht": None,
    "passage_count": _count,
    "passage_retrieval_en": partial(_paragraph, "Paragraph "),
    "passage_retrieval_zh": partial(_paragraph, "段落"),
    "lcc": _code,
    "repobench-p": _code,
}
