"""Which part of the prompt the page speaks of, and who reads it: a passage, or the occurrences of a phrase."""

from __future__ import annotations

import numpy as np
import streamlit as st

from routesparse.app.screens.text import find
from routesparse.engine.store.block_shares import BlockShares
from routesparse.engine.store.word_queries import Words

BELOW = {
    "50": "half",
    "10": "10 %",
    "1": "1 %",
}  # of later rows; a head that fewer read it by has dropped a passage

Parts = list[tuple[int, int]]  # first and last KV block of each part


def part_shares(shares: BlockShares, parts: Parts) -> np.ndarray:
    """float [layers, heads, parts]: what each head reads of each part, mean over its cells; NaN not measured."""
    cells = shares.reads.shape[-1]
    first, last = (np.minimum(np.array(side) // shares.pool, cells - 1) for side in zip(*parts, strict=True))
    known = ~np.isnan(shares.reads)
    read = _between(np.where(known, shares.reads, 0), first, last)
    count = _between(known, first, last)
    return np.divide(read, count, out=np.full(read.shape, np.nan), where=count > 0)


def summed(per_part: np.ndarray) -> np.ndarray:
    """float [layers, heads]: the mean over parts, those that are not measured left out."""
    known = ~np.isnan(per_part)
    count = known.sum(-1)
    read = np.where(known, per_part, 0).sum(-1)
    return np.divide(read, count, out=np.full(read.shape, np.nan), where=count > 0)


def passage(blocks: int) -> tuple[int, int] | None:
    """The KV blocks that the address names, ``at=first-last``, within the prompt's ``blocks``; None for none."""
    first, _, last = st.query_params.get("at", "").partition("-")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (first, last)):
        return None
    if not int(first) <= int(last) or int(first) >= blocks:
        return None
    return int(first), min(int(last), blocks - 1)


def occurrences(found: find.Found, words: Words) -> Parts:
    """The KV blocks of each occurrence."""
    return [words.blocks_of(int(start), int(end)) for start, end in found.spans]


def below() -> float:
    """The share of later rows below which a head has dropped a passage, from the address."""
    value = st.query_params.get("below", "")
    return int(value if value in BELOW else next(iter(BELOW))) / 100


def _between(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sums over cells first to last: [layers, heads, cells] -> [layers, heads, parts]."""
    sums = np.cumsum(values, -1, dtype=np.float64)
    sums = np.concatenate([np.zeros((*sums.shape[:2], 1)), sums], -1)
    found: np.ndarray = sums[..., last + 1] - sums[..., first]
    return found
