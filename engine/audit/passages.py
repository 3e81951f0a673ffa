"""Where the audited attention lies: per KV block what a plan reads and loses, and the rows that came off worst.

Collected while a unit's rows are audited (``rows.measure_rows``), from weights that are there anyway. Only positions
and masses are kept, never words: whether a prompt's text is kept is decided elsewhere (``PromptRow``).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.decide.decision import Decision
from routesparse.engine.rows import BlockReadsRow, UnitKey, WorstRow

WORST_ROWS = 4  # of a unit
LOST_BLOCKS = 8  # of a worst row
READS_STEPS = 255  # of a share of reads, one byte


class Passages:
    """What one unit's audited rows say about KV blocks; ``add`` takes them in parts."""

    def __init__(self, position: int, block_k: int, key_blocks: int) -> None:
        """position: key-axis position of the segment's first row."""
        self._position, self._block, self._blocks = position, block_k, key_blocks
        self._mass: torch.Tensor | None = None  # float64 [N], summed over rows, as is _lost
        self._lost: torch.Tensor | None = None
        self._rows = 0
        self._worst: list[tuple[torch.Tensor, ...]] = []

    def add(
        self,
        rows: torch.Tensor,
        weights: torch.Tensor,
        kept: torch.Tensor,
        retained: torch.Tensor,
        error: torch.Tensor,
    ) -> None:
        """Rows int64 [P] of the segment, their softmax weights float32 [P, keys] with and without what the plan leaves
        out, the mass that they retain and their relative output errors, both [P]."""
        mass = self._by_block(weights)
        lost = (mass - self._by_block(kept)).clamp_min(0)
        if self._mass is None or self._lost is None:
            self._mass, self._lost = (torch.zeros_like(mass[0], dtype=torch.float64) for _ in range(2))
        self._mass += mass.sum(0, dtype=torch.float64)
        self._lost += lost.sum(0, dtype=torch.float64)
        self._rows += len(rows)
        # Rows are drawn with replacement: twice as many, so that enough different ones stay.
        worst = error.topk(min(2 * WORST_ROWS, len(rows))).indices
        top = lost[worst].topk(min(LOST_BLOCKS, self._blocks), dim=-1)
        self._worst.append((rows[worst], error[worst], retained[worst], top.indices, top.values))

    def worst_rows(self, place: UnitKey) -> list[WorstRow]:
        """The rows with the largest relative error, worst first."""
        if not self._worst:
            return []
        rows, error, mass, blocks, lost = (
            torch.cat(part).cpu().numpy() for part in zip(*self._worst, strict=True)
        )
        found: dict[int, WorstRow] = {}
        for at in np.argsort(-error, kind="stable"):
            position = int(rows[at]) + self._position
            if position in found:
                continue
            some = lost[at] > 0
            found[position] = WorstRow(
                **vars(place),
                rank=len(found),
                position=position,
                mass=float(mass[at]),
                error=float(error[at]),
                lost_blocks=blocks[at][some].astype("<i4").tobytes(),
                lost_mass=lost[at][some].astype("<f4").tobytes(),
            )
            if len(found) == WORST_ROWS:
                break
        return list(found.values())

    def block_reads(self, place: UnitKey, reads: np.ndarray) -> BlockReadsRow | None:
        """Means over the added rows, beside the share of reads float [N] (``plan_reads``)."""
        if self._mass is None or self._lost is None:
            return None
        mass, lost = (part.cpu().numpy() / self._rows for part in (self._mass, self._lost))
        return BlockReadsRow(
            **vars(place),
            cells=self._blocks,
            pool=1,
            # Rounded up: a block that is read at all is never 0.
            reads=np.ceil(reads * READS_STEPS).astype(np.uint8).tobytes(),
            mass=mass.astype("<f2").tobytes(),
            lost=lost.astype("<f2").tobytes(),
        )

    def _by_block(self, weights: torch.Tensor) -> torch.Tensor:
        """Sums over KV blocks: [P, keys] -> [P, N]."""
        padded = F.pad(weights, (0, self._blocks * self._block - weights.shape[1]))
        return padded.view(len(weights), self._blocks, self._block).sum(-1)


def plan_reads(decision: Decision, b: int, h: int) -> np.ndarray:
    """float64 [N]: of the pairs (later body row, key of the KV block), the share that the chosen candidate reads.

    Later rows stand in whole query blocks of the body that begin after the KV block; where there is none, the share
    is 0. Before the tail override.
    """
    segment = decision.segment
    candidate = decision.candidates[int(decision.choice[b, h])]
    index = decision.indices[candidate.pattern]
    levels = index.levels.expand(decision.batch, decision.heads, -1, -1)[b, h]
    later = torch.from_numpy(later_blocks(segment.position, segment.body, segment.block_q, segment.block_k))
    rows = len(later)
    later = F.pad(later.to(levels.device), (0, levels.shape[-1] - later.shape[1]))
    whole = (levels[:rows] <= candidate.level) & later
    read = whole.sum(0, dtype=torch.float64)
    if index.columns is not None:
        columns = index.columns[b, h, : index.column_counts[candidate.level]] // segment.block_k
        single = torch.bincount(columns, minlength=levels.shape[-1])[: levels.shape[-1]] / segment.block_k
        read = read + (later & ~whole).sum(0) * single
    return np.asarray((read / later.sum(0).clamp_min(1)).cpu().numpy(), np.float64)


def later_blocks(position: int, body: int, block_q: int, block_k: int) -> np.ndarray:
    """bool [M, N]: whole query blocks of a segment's body that begin after a KV block has ended.

    position: key-axis position of the segment's first row; body: rows. N reaches the body's last KV block.
    """
    starts = position + np.arange(body // block_q) * block_q
    ends = (np.arange(-(-(position + body) // block_k)) + 1) * block_k
    later: np.ndarray = ends[None, :] <= starts[:, None]
    return later
