"""Measures that several suites share: F1 over tokens in SQuAD's normal form, and RULER's two (Hsieh et al. 2024,
arXiv:2404.06654), on rows with ``pred`` and ``outputs``.

string_match_all: the share of gold strings found; string_match_part, of the question-answering tasks: whether any is
found. Both compare substrings without case, so that a prediction that repeats its prompt scores full marks: keep the
suite's limit of generated tokens.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from routesparse.engine.lab.generators.samples import cleaned, score_all
from routesparse.engine.lab.suites.source import Example
from routesparse.engine.lab.suites.suite import Golds, Row, TaskScore, field_of, mean_score, row_values

DIGITS = 2  # of RULER's scores
READING = ("qa_1", "qa_2")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Chinese punctuation as the scorers of InfiniteBench and LongBench list it.
_CHINESE = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣"
    "､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_ALL_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE)


def normalised(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalised_chinese(text: str) -> str:
    """Lower case, without punctuation of either script and without white space."""
    return "".join(text.lower().translate(_ALL_PUNCTUATION).split())


def token_f1(prediction: Sequence[str], gold: Sequence[str]) -> float:
    """F1 of two bags of tokens, 0 where nothing is shared."""
    shared = sum((Counter(prediction) & Counter(gold)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(prediction), shared / len(gold)
    return 2 * precision * recall / (precision + recall)


def answer_f1(prediction: str, gold: str) -> float:
    """Token F1 of two English texts in SQuAD's normal form."""
    return token_f1(normalised(prediction).split(), normalised(gold).split())


def any_match(prediction: str, gold: Sequence[str]) -> float:
    """RULER's string_match_part: 1 where any gold string occurs in the prediction, whatever the case."""
    text = cleaned(prediction)
    return float(any(item.lower() in text for item in gold))


def score_matches(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for a row without its fields or without gold strings."""
    match = any_match if task in READING else score_all
    values, nulls = row_values(
        rows, lambda row, prediction: match(prediction, field_of(row, "outputs", kind=Golds)), "pred"
    )
    return replace(mean_score(values, DIGITS), parts={"nulls": nulls})


def ruler_row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in RULER's format, without the input."""
    return {"index": example.index, "pred": prediction, "outputs": example.gold}
