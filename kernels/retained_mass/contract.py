"""What the operation reads: probed rows and the nested budgets of every family, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class ProbedRows:
    """P probe rows of each head. rows int64 [B, H, P], numbers in the segment, whose row r is q[first_row + r]."""

    rows: torch.Tensor
    lse: torch.Tensor  # float32 [B, H, P]
    block_mass: torch.Tensor  # float32 [B, H, P, N]
    sink_mass: torch.Tensor  # float32 [B, H, P], mass of the always-kept attention sink
    first_row: int
    # Start and end of the first and start of the second range of rows that know whole blocks only (pooled probe).
    pooled: tuple[int, int, int] | None


@dataclass(frozen=True)
class RankedColumns:
    """Single columns of one family. They are the best ``counts[l]`` of V for level l."""

    ranked: torch.Tensor  # int64 [B, H, V], best first
    levels: torch.Tensor  # uint8 [V], the smallest level that holds the column of each rank
    counts: torch.Tensor  # int32 [levels]
    by_key: torch.Tensor  # int32 [B, H, V], 8 times the key plus the smallest level that holds it, ascending


@dataclass(frozen=True)
class FamilyMaps:
    """Level maps of F families, of any kind and order; a family's number is its place here.

    maps: uint8 [B, H, M, N] each, where B and H may be 1: one map for all prompts or heads.
    """

    maps: tuple[torch.Tensor, ...]
    columns: RankedColumns | None  # single columns that one family reads beside its blocks
    columns_of: int  # that family's number, DENSE where none has columns


@dataclass(frozen=True)
class FamilyLevels(FamilyMaps):
    """Level maps to be scored.

    depths: levels of each family. counts: what each level reads, int32, B and H as in the maps: [B, H, M, levels], the
    blocks of each query block, where by_row says so, else [B, H, levels, N], the body's query blocks that read each KV
    block, as the family with columns has them.
    """

    depths: tuple[int, ...]
    counts: tuple[torch.Tensor, ...]
    by_row: tuple[bool, ...]


class RetainedMass(NamedTuple):
    """C candidates, dense last. float32."""

    row_mass: torch.Tensor  # [B, H, P, C] in [0, 1]; dense: 1
    tiles: torch.Tensor  # [B, H, C], KV tiles read over the body's query blocks
    columns: torch.Tensor  # [B, H, C], single columns read over the body's query blocks
    density: torch.Tensor  # [B, H, C], kept share of the body's causal area, left padding aside
