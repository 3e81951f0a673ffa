"""The pattern families that the kernels know, by the number that their branches compare with.

``retained_mass``, ``lower_plan`` and ``pictures`` take four level maps in this order and treat any other number
as one of these: what is not here must not reach them.
"""

from __future__ import annotations

from typing import Literal

FAMILIES: tuple[Literal["a_shape", "vertical_slash", "block_sparse", "block_top_p"], ...] = (
    "a_shape",
    "vertical_slash",
    "block_sparse",
    "block_top_p",
)
DENSE = -1
