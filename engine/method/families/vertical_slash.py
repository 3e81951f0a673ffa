"""Vertical-slash: single columns and diagonal bands, ranked by the recent rows' attention (MInference, sec. 3.2).

Columns are ranked by summed mass over the recent rows, leaving out the offsets that every plan's diagonal reads;
diagonals as bands of KV blocks (``kernels/recent_marginals``). Columns are limited to a sixteenth of the keys: on a CPU
a gathered column costs about twice a key inside a block, and wider column sets were hardly ever the cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from routesparse.engine.method.records import Candidate, Context, Family, FamilyIndex, Look
from routesparse.engine.method.segments import Segment

NAME = "vertical_slash"
DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5)
MAX_COLUMNS = 4_096  # single columns a row may gather; more are cheaper as blocks
COLUMN_SHARE = 0.5  # of a candidate's density; the other half goes to slash bands
COLUMN_LIMIT = 1 / 16  # of the keys: beyond it the density goes to bands alone


def budgets(segment: Segment) -> list[dict[str, int]]:
    """``columns``: single columns; ``blocks``: slash bands, one KV block wide."""
    limit = min(MAX_COLUMNS, round(COLUMN_LIMIT * segment.keys))
    found = []
    for density in DENSITIES:
        columns = max(16, min(limit, round(density * COLUMN_SHARE * segment.keys)))
        bands = segment.blocks_for_density(density - columns / segment.keys)
        found.append({"blocks": bands, "columns": columns})
    return found


def text(budget: Candidate) -> str:
    """The budget in words."""
    return f"{budget.columns} columns + {budget.blocks} slash bands of {budget.block_k}"


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> list[int]:
    """The best bands' KV blocks, counted back from the one of the query block's first row; columns lie beside them."""
    bands = context.probe.band_mass[unit].tolist()
    ranked = sorted(range(len(bands)), key=lambda distance: (-bands[distance], distance))
    base = int(context.segment.base_blocks()[i])
    return [base - distance for distance in ranked[: budget.blocks] if base >= distance]


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    """Level l keeps the best ``budgets[l].columns`` columns and ``budgets[l].blocks`` bands of each head."""
    from routesparse.engine.device.constants import constant
    from routesparse.kernels.level_maps import band_levels, slash_levels

    probe = context.probe
    bands = constant(np.array([c.blocks for c in budgets], dtype=np.int32), probe.band_mass.device)
    levels = slash_levels(band_levels(probe.band_mass, bands), context.geometry)
    most = min(max(c.columns for c in budgets), probe.column_mass.shape[-1])
    columns = probe.column_mass.topk(most, dim=-1).indices
    return FamilyIndex(NAME, levels, columns, tuple(min(c.columns, most) for c in budgets))


FAMILY = Family(
    name=NAME,
    look=Look("vertical-slash", "V", light="#2468b0", dark="#5a9ee6", symbol="square", mark="■"),
    budgets=budgets,
    text=text,
    build=build,
    reads=reads,
    stamp=(DENSITIES, MAX_COLUMNS, COLUMN_SHARE, COLUMN_LIMIT),
    needs_probe=True,
    beside_others=True,  # many short steps that keep few multiprocessors busy
)
