"""What the twin of level maps and their kernels share."""

from __future__ import annotations

MAX_LEVELS = 16  # of the families that rank by score
