"""Floor: per query block, every KV block that holds at least a given share of the block's rows.

One floor for all heads and query blocks: a head with flat rows keeps little, one with sharp rows what they read. Each
KV block that is kept costs the same time, so the floor is the price of time, ``Segment.floor_share``, and the grid
lies around it. A share is a root mean square over the query block's rows (``kernels/block_score``).

At equal KL to dense attention it kept half the area of a number of blocks chosen per head (development windows, H200).
"""

from __future__ import annotations

from collections.abc import Sequence

from routesparse.engine.method.families._block_ranking import log_floors, ranked, ranked_row
from routesparse.engine.method.records import Candidate, Context, Family, FamilyIndex, Look
from routesparse.engine.method.segments import Segment

NAME = "floor"
MULTIPLIERS = (16.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.25)  # of the segment's floor
PRICED_LEVEL = 4  # the level of the segment's own floor


def budgets(segment: Segment) -> list[dict[str, float]]:
    """``share``: the least that a KV block must hold; it falls as budgets grow."""
    return [{"share": multiplier * segment.floor_share} for multiplier in MULTIPLIERS]


def text(budget: Candidate) -> str:
    """The budget in words."""
    return f"blocks that hold {100 * budget.share:.3g} % of the rows or more"


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> list[int]:
    """The ranked blocks whose score reaches the floor."""
    row = ranked_row(context, unit, i)
    kept: list[int] = row.free[row.score >= log_floors([budget.share])[0]].tolist()
    return kept


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    """Level l keeps the blocks whose share is at least ``budgets[l].share``, forced ones besides."""
    found = context.once(ranked)
    return FamilyIndex(NAME, found.floor, row_counts=found.floor_counts)


FAMILY = Family(
    name=NAME,
    look=Look("floor", "F", light="#12876a", dark="#3fb593", symbol="diamond", mark="◆"),
    budgets=budgets,
    text=text,
    build=build,
    reads=reads,
    stamp=(MULTIPLIERS, PRICED_LEVEL),
    needs_probe=True,
)
