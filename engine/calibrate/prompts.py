"""Prompts for calibrations and studies: documents, the two folds, and windows cut from them (section 3.5).

Folds are split by document, because windows of one document are not independent. Windows take the documents in
turn, so that each has the same weight; the starts of one document's windows are spread over it, one in each of as
many equal parts, so that they overlap as little as their number allows.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine.errors import CalibrationError, PromptError
from routesparse.engine.prompts import jsonl
from routesparse.engine.prompts.text import (
    TEXT_SUFFIXES,
    PromptText,
    as_model_error,
    decode_prompt,
    read_prompt,
)


@dataclass(frozen=True)
class Document:
    """One text, tokenized whole, without bos."""

    domain: str
    name: str
    sha256: str
    token_ids: np.ndarray  # int32 [tokens]

    @property
    def tokens(self) -> int:
        """Tokens of the whole text."""
        return len(self.token_ids)


@dataclass(frozen=True)
class Window:
    """A prompt cut from a document: bos where the tokenizer has one, then consecutive tokens; or a question."""

    domain: str
    document: str
    document_sha256: str
    start: int  # first token of the document
    token_ids: tuple[int, ...]
    # Of a question (questions.py): its gold answer, which is not part of the prompt.
    answer_ids: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the prompt, bos included."""
        return len(self.token_ids)

    @property
    def sha256(self) -> str:
        """Of the token ids as little-endian int32, then of the gold answer's where there is one: everywhere alike."""
        digest = hashlib.sha256(np.asarray(self.token_ids, dtype="<i4").tobytes())
        if self.answer_ids:
            digest.update(b"answer" + np.asarray(self.answer_ids, dtype="<i4").tobytes())
        return digest.hexdigest()


def read_documents(path: Path, domain: str, tokenizer: Any) -> list[Document]:
    """The text file, every line of a .jsonl file, or every text file of the folder, in order of name.

    Errors: PromptError for a file that is no text; CalibrationError for a folder without any.
    """
    files = sorted(p for p in path.iterdir() if p.suffix in TEXT_SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise CalibrationError(
            f"folder {str(path)!r} holds no {' or '.join(TEXT_SUFFIXES)} file; pass one that does"
        )
    documents = []
    for file in files:
        prompt = replace(read_prompt(file), name=file.stem)
        texts = [prompt] if file.suffix.lower() != jsonl.SUFFIX else _lines(prompt)
        documents += [tokenized(text, domain, tokenizer) for text in texts]
    return documents


def _lines(file: PromptText) -> list[PromptText]:
    """A .jsonl file's texts. Errors: PromptError for a line without one, which would be missed by nobody."""
    rows, wrong = jsonl.read_rows(file.text)
    if wrong:
        raise PromptError(f"{file.name}{jsonl.SUFFIX}: {wrong[0]}")
    return [decode_prompt(row.prompt(None).encode(), f"{file.name} #{row.number}") for row in rows]


def document_groups(prompts: Sequence[Path], domain: str, tokenizer: Any) -> dict[str, list[Document]]:
    """Documents by group: every folder is a group of its own, all single files together are one.

    Errors: PromptError, CalibrationError.
    """
    folders = [path for path in prompts if path.is_dir()]
    files = [path for path in prompts if not path.is_dir()]
    names = [_group(path) for path in folders] + [domain] * bool(files)
    for name in names:
        if names.count(name) > 1:
            raise CalibrationError(f"two groups of prompts are called {name!r}; rename one, or merge them")
    groups = {_group(path): read_documents(path, _group(path), tokenizer) for path in folders}
    if files:
        groups[domain] = [d for path in files for d in read_documents(path, domain, tokenizer)]
    for group in groups.values():
        _check_different(group, "would count as two; remove one")
    return groups


def _check_different(documents: Sequence[Document], harm: str) -> None:
    """Errors: CalibrationError where two are the same text; harm: what that would do, and the way out."""
    names: dict[str, str] = {}
    for document in documents:
        if document.sha256 in names:
            raise CalibrationError(
                f"documents {names[document.sha256]!r} and {document.name!r} are the same text and {harm}"
            )
        names[document.sha256] = document.name


def _group(folder: Path) -> str:
    """A folder's name; of data/code/calibration it is code."""
    resolved = folder.resolve()
    return resolved.parent.name if resolved.name in ("calibration", "train") else resolved.name


def tokenized(text: PromptText, domain: str, tokenizer: Any) -> Document:
    """A text as a document of a domain; a bos that it begins with is left out. Errors: ModelError of ``tokenizing``."""
    with as_model_error(Path(getattr(tokenizer, "name_or_path", "")).name, "its tokenizer fails"):
        ids = tokenizer(text.text, add_special_tokens=False, verbose=False)["input_ids"]
    if ids[:1] == _bos(tokenizer):
        ids = ids[1:]
    return Document(domain, text.name, text.sha256, np.asarray(ids, dtype=np.int32))


def split_folds(
    documents: Sequence[Document], share_a: float, seed: int
) -> tuple[list[Document], list[Document]]:
    """Fold A gets about ``share_a`` of the documents, at least one, and leaves fold B at least one.

    Errors: CalibrationError with fewer than two documents, or where two are the same text.
    """
    if len(documents) < 2:
        raise CalibrationError(
            f"{len(documents)} document is long enough; the two folds need two, so pass more or longer ones"
        )
    _check_different(documents, "could end in both folds; pass it once")
    shuffled = sorted(documents, key=lambda d: d.sha256)
    random.Random(seed).shuffle(shuffled)
    count = min(len(shuffled) - 1, max(1, round(share_a * len(shuffled))))
    return shuffled[:count], shuffled[count:]


def cut(
    documents: Sequence[Document], count: int, least: int, most: int, tokenizer: Any, seed: int
) -> list[Window]:
    """At most ``count`` windows of least to most tokens (bos included), lengths uniform, documents in turn.

    Documents shorter than ``least`` are skipped. No window comes twice: K counts prompts, and a copy is none.
    Errors: CalibrationError where no document is long enough.
    """
    bos = _bos(tokenizer)
    usable = [d for d in documents if d.tokens + len(bos) >= least]
    if not usable:
        raise CalibrationError(
            f"no document holds {least:,} tokens; ask for shorter prompts or pass longer ones"
        )
    windows = []
    for place, document in enumerate(usable):
        mine = len(range(place, count, len(usable)))
        rng = random.Random(f"{seed}/{document.sha256}/{least}/{most}")
        for j in range(mine):
            tokens = rng.randint(least, min(most, document.tokens + len(bos))) - len(bos)
            start = int((j + rng.random()) / mine * (document.tokens - tokens))
            window = _window(document, start, tokens, bos)
            if window not in windows:
                windows.append(window)
    return windows


def draw(documents: Sequence[Document], count: int, tokens: int, tokenizer: Any, seed: str) -> list[Window]:
    """``count`` windows drawn independently of one another: a document, each as likely, then a start, each as likely.

    A document shorter than ``tokens`` is read in windows of half as many, bos included; a still shorter one is not
    read. Window j is the same whatever ``count`` is, and two windows may be the same: a statistic may count on it.
    Errors: CalibrationError where no document is long enough.
    """
    bos = _bos(tokenizer)
    usable = [d for d in documents if d.tokens + len(bos) >= tokens // 2]
    if not usable:
        raise CalibrationError(
            f"no document holds {tokens // 2:,} tokens, half a window; pass longer ones or ask for shorter windows"
        )
    windows = []
    for place in range(count):
        rng = random.Random(f"{seed}/{place}")
        document = rng.choice(usable)
        body = (tokens if document.tokens + len(bos) >= tokens else tokens // 2) - len(bos)
        windows.append(_window(document, rng.randint(0, document.tokens - body), body, bos))
    return windows


def _bos(tokenizer: Any) -> list[int]:
    return [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]


def _window(document: Document, start: int, tokens: int, bos: list[int]) -> Window:
    ids = (*bos, *document.token_ids[start : start + tokens].tolist())
    return Window(document.domain, document.name, document.sha256, start, ids)
