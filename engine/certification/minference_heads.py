"""Head budgets in MInference's own format (arXiv 2407.02490), as its authors publish them for many models.

A list over layers of {"head": [pattern, columns, slashes, score]}. A head or layer that a file leaves out gets
(1000, 6096), as in their code. Of their patterns vertical_and_slash and stream_llm are served; block_sparse, which
their search never writes, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from routesparse.engine.errors import ConfigError, shortened
from routesparse.engine.files.plain_files import few_values, read_bounded

PATTERNS = ("vertical_and_slash", "stream_llm")
_MOST_BYTES = 1 << 26
_MOST_HEADS = 4_096  # of a layer
_MOST_TOKENS = 2**31


class HeadBudget(NamedTuple):
    """One head's entry. vertical_and_slash: budgets by the last queries; stream_llm: first keys and last keys."""

    pattern: str
    columns: int  # v
    slashes: int  # s
    score: float = 1.0  # mass kept in the search


DEFAULT = HeadBudget("vertical_and_slash", 1_000, 6_096)
# By layer and query head; one that a file leaves out is DEFAULT itself.
Heads = tuple[tuple[HeadBudget, ...], ...]


def heads_from_json(path: Path) -> Heads:
    """Budgets of a file in the authors' format. Raises ConfigError where it is none."""
    try:
        layers = json.loads(few_values(read_bounded(path, _MOST_BYTES).decode("utf-8")))
        if not isinstance(layers, list):
            raise ValueError(f"it is one {type(layers).__name__}, not a list")
        return tuple(_layer(layer) for layer in layers)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ConfigError(
            f"{path} holds no MInference heads ({shortened(error)}); "
            'it should be a list over layers of {"head": [pattern, columns, slashes, score]}'
        ) from error


def _layer(entries: Mapping[str, Sequence[object]]) -> tuple[HeadBudget, ...]:
    """One layer's heads, up to the last that it names. Raises ValueError with what is wrong."""
    most = max(map(int, entries), default=-1)
    names = [str(head) for head in range(min(most, _MOST_HEADS) + 1)]
    if strange := set(entries).difference(names):
        raise ValueError(f"head {min(strange)!r}; number the heads from 0")
    return tuple(_entry(entries[name]) if name in entries else DEFAULT for name in names)


def _entry(values: Sequence[object]) -> HeadBudget:
    """One head's list. Raises ValueError with what is wrong."""
    pattern, columns, slashes, score = values
    if pattern not in PATTERNS:
        raise ValueError(f"pattern {pattern!r}; known are {', '.join(PATTERNS)}")
    if not (isinstance(columns, int) and isinstance(slashes, int) and isinstance(score, int | float)):
        raise ValueError(f"entry {values!r}")
    if not 0 <= min(columns, slashes) <= max(columns, slashes) < _MOST_TOKENS:
        raise ValueError(f"{columns} columns and {slashes} slashes")
    return HeadBudget(str(pattern), columns, slashes, float(score))
