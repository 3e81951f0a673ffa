"""Seeds that are the same on every machine."""

from __future__ import annotations

import hashlib


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed from its parts, the same on every machine."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
