"""How far a long step is, told to whoever shows it or may stop it."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # stage, done, total


def no_progress(stage: str, done: int, total: int) -> None:
    """For callers that show none."""
