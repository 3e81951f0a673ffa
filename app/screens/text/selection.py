"""Which part of the prompt the page speaks of, and who reads it: a passage, or the occurrences of a phrase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import streamlit as st

from routesparse.app.screens.text import find
from routesparse.app.shell import address
from routesparse.engine.rows import RunRow
from routesparse.engine.store.block_shares import BlockShares
from routesparse.engine.store.word_queries import Words

SCOPES = {"head": "This head", "layer": "This layer", "all": "All heads"}
SHADES = {"reads": "What later rows read", "lost": "Attention lost"}
CLICKS = {"who": "Click: who reads it", "reads": "Click: what it reads"}
# Per cent of later rows: a head by which fewer read a passage reads it little.
BELOW = {"50": "< 50 %", "10": "< 10 %", "1": "< 1 %"}

Parts = list[tuple[int, int]]  # first and last KV block of each part


@dataclass(frozen=True)
class Shown:
    """What the page is about. at: (layer, head); segment None: the rows of all segments; row: a token; below: the share
    of later rows below which a head reads a passage little."""

    run: RunRow
    at: tuple[int, int]
    segment: int | None
    batch_index: int
    scope: str
    shade: str
    row: int | None
    below: float
    click: str = "who"

    @property
    def name(self) -> str:
        """The heads in words."""
        layer, head = self.at
        named = {"head": f"layer {layer}, head {head}", "layer": f"layer {layer}", "all": "all heads"}
        return named[self.scope]


def part_shares(shares: BlockShares, parts: Parts) -> np.ndarray:
    """float [layers, heads, parts]: what each head reads of each part, mean over its cells; NaN not measured."""
    cells = shares.reads.shape[-1]
    first, last = (np.minimum(np.array(side) // shares.pool, cells - 1) for side in zip(*parts, strict=True))
    known = ~np.isnan(shares.reads)
    return _mean(_between(np.where(known, shares.reads, 0), first, last), _between(known, first, last))


def mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean over an axis, such as parts, what is not measured left out; NaN where nothing is."""
    known = ~np.isnan(values)
    return _mean(np.where(known, values, 0).sum(axis), known.sum(axis))


def _mean(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def passage(blocks: int) -> tuple[int, int] | None:
    """The KV blocks that the address names, ``at=first-last``, within the prompt's ``blocks``; None for none."""
    text = st.query_params.get("at", "")
    first, _, last = text.partition("-")
    if all(part.isascii() and part.isdigit() and len(part) < 10 for part in (first, last)) and (
        int(first) <= int(last) and int(first) < blocks
    ):
        return int(first), min(int(last), blocks - 1)
    address.absent("at", text, f"the prompt has blocks 0 to {blocks - 1:,}")
    return None


def occurrences(found: find.Found, words: Words) -> Parts:
    """The KV blocks of each occurrence."""
    return [words.blocks_of(int(start), int(end)) for start, end in found.spans]


def _between(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sums over cells first to last: [layers, heads, cells] -> [layers, heads, parts]."""
    sums = np.cumsum(values, -1, dtype=np.float64)
    sums = np.concatenate([np.zeros((*sums.shape[:2], 1)), sums], -1)
    found: np.ndarray = sums[..., last + 1] - sums[..., first]
    return found
