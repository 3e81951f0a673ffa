"""Values kept for a session: a rerun takes them again as long as their inputs are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import streamlit as st


def remembered(name: str, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """What ``make`` returned for this key; the last one per name, in this session."""
    digest = hashlib.sha256()
    for part in key:
        digest.update(part if isinstance(part, bytes) else str(part).encode() + b"\0")
    known = st.session_state.get(f"remembered-{name}")
    if known is None or known[0] != digest.digest():
        known = digest.digest(), make()
        st.session_state[f"remembered-{name}"] = known
    return known[1]
