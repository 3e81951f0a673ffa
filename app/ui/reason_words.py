"""A stored reason as pages print it: runs of older versions wrote formulas as code ("g >= 0.925 < tau 0.900")."""

from __future__ import annotations

import re

_SIGNS = (
    (r">=", "≥"),
    (r"\btau_layer\b", "τ layer"),
    (r"\btau\b", "τ"),
    (r"\bT_l\b", "Tℓ"),
    (r"(?<=\d) us\b", " µs"),
)


def shown(reason: str) -> str:
    """The reason with the signs that the pages use; still to be escaped where it becomes HTML."""
    for code, sign in _SIGNS:
        reason = re.sub(code, sign, reason)
    return reason
