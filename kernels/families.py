"""What the operations know of pattern families: numbers that stand for none. torch is not loaded."""

from __future__ import annotations

DENSE = -1  # the number of a candidate that is no family's
NEVER = 255  # in a level map: no budget of the family reads this block
