"""Text windows for studies: documents of one domain and split, cut to n tokens, chosen by seed.

The data folder has the layout <data>/<domain>/<split>/*.txt; a window is reported with its document, because
windows of one document are not independent.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.errors import PromptError

CHARACTERS_PER_TOKEN = 6  # more than any tokenizer here needs


@dataclass(frozen=True)
class Window:
    """token_ids start with bos where the tokenizer has one."""

    domain: str
    document: str
    start: int  # character offset in the document
    token_ids: tuple[int, ...]


def windows(
    data: Path, domain: str, split: str, tokens: int, count: int, tokenizer: Any, seed: int
) -> Iterator[Window]:
    """``count`` windows, the documents in turn, starts uniform; documents too short for one are skipped.

    Errors: PromptError where the folder is missing or no document is long enough.
    """
    folder = data / domain / split
    paths = sorted(p for p in folder.glob("*.txt")) if folder.is_dir() else []
    if not paths:
        raise PromptError(f"no documents in {folder}; pass the data folder with --data")
    rng = random.Random(f"{seed}/{domain}/{split}/{tokens}")
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    made = missed = 0
    while made < count:
        if missed > 20 * len(paths):
            raise PromptError(f"no document in {folder} holds {tokens} tokens; ask for shorter windows")
        path = paths[(made + missed) % len(paths)]
        text = path.read_text()
        start = rng.randrange(max(1, len(text) - CHARACTERS_PER_TOKEN * tokens))
        ids = tokenizer(text[start : start + CHARACTERS_PER_TOKEN * tokens], add_special_tokens=False)[
            "input_ids"
        ]
        if len(bos) + len(ids) < tokens:
            missed += 1
            continue
        yield Window(domain, path.stem, start, tuple((bos + ids)[:tokens]))
        made += 1
