"""Text measures that several suites share: SQuAD's normal form, F1 over tokens, RULER's substring match."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from routesparse.engine.lab.training.samples import cleaned

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
# Chinese punctuation as the scorers of InfiniteBench and LongBench list it.
_CHINESE = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣"
    "､、〃》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_ALL_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE)


def without_articles(text: str) -> str:
    """Without ASCII punctuation, the articles a, an, the, and repeated spaces; case is kept."""
    return " ".join(_ARTICLES.sub(" ", text.translate(_PUNCTUATION)).split())


def normalised(text: str) -> str:
    """SQuAD's normal form: lower case, no punctuation, no articles, single spaces."""
    return without_articles(text.lower())


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
