"""The texts of a calibration or a fit as one job's content: JSON lines of name and text, which any version reads."""

from __future__ import annotations

import json
from collections.abc import Iterable

from routesparse.engine.errors import PromptError
from routesparse.engine.files.plain_files import few_values
from routesparse.engine.prompts.text import MAX_FILE_BYTES, PromptText, clean_label, decode_prompt
from routesparse.engine.schema import from_json

LEAST_DOCUMENTS = 2  # a calibration's folds share none


def pack(documents: Iterable[PromptText]) -> bytes:
    """The content that ``unpack`` reads. Errors: PromptError where they are too few or too much."""
    lines = [json.dumps({"name": one.name, "text": one.text}, ensure_ascii=False) for one in documents]
    content = "".join(f"{line}\n" for line in lines).encode()
    if len(content) > MAX_FILE_BYTES:
        raise PromptError(
            f"the texts have {len(content) >> 20:,} MB together; pass at most {MAX_FILE_BYTES >> 20} MB"
        )
    unpack(content)
    return content


def unpack(content: bytes) -> list[PromptText]:
    """The documents, each with the hash of its text.

    Errors: PromptError for what is no text, fewer than two documents, or one text twice.
    """
    try:
        lines = content.decode().split("\n")
        values = [from_json(few_values(line)) for line in lines if line]
        texts = [(str(value["name"]), str(value["text"]).encode()) for value in values]
    except (ValueError, KeyError, TypeError) as error:
        raise PromptError(
            f"the texts of this job can't be read ({type(error).__name__}); submit them again"
        ) from None
    documents = [decode_prompt(text, clean_label(name)) for name, text in texts]
    if len(documents) < LEAST_DOCUMENTS:
        raise PromptError(
            f"{len(documents)} document is too few; pass at least {LEAST_DOCUMENTS}, better 20 or more"
        )
    names: dict[str, str] = {}
    for document in documents:
        if document.sha256 in names:
            raise PromptError(
                f"documents {names[document.sha256]!r} and {document.name!r} are the same text; pass it once"
            )
        names[document.sha256] = document.name
    return documents
