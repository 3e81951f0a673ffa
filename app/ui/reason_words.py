"""A stored reason as pages print it: older versions wrote formulas as code ("g >= 0.925 < tau 0.900"), and what a head
took before it was expanded stands there by the name that the code gives its family."""

from __future__ import annotations

import re

from routesparse.app.ui import design, numbers

_SIGNS = (
    (r"^(the floor at price [^\s:]+): ", r"\1, since no cheaper candidate loses little enough: "),
    (r">=", "≥"),
    (r"\btau_layer\b", "τ layer"),
    (r"\btau\b", "τ"),
    (r"\bT_l\b", "Tℓ"),
    (r"(?<=\d) us\b", " µs"),
)


# "expanded 1x from vertical_slash 967 columns (certificate 0.896 < τ 0.900); now certificate 0.930 ≥ τ 0.900"
_EXPANDED = re.compile(r"expanded (\d+)x from (\w+) (.+?) \(([^()]*)\); now (.*)", re.DOTALL)


def shown(reason: str) -> str:
    """The reason in the words and signs that the pages use; still to be escaped where it becomes HTML."""
    if found := _EXPANDED.fullmatch(reason):
        times, family, budget, why, now = found.groups()
        reason = (
            f"the first choice, {design.name(family)} with {budget}, failed ({why}) and had to grow; after "
            f"{numbers.several(int(times), 'step')}: {now}"
        )
    for code, sign in _SIGNS:
        reason = re.sub(code, sign, reason)
    return re.sub(r"\b\d{4,}(?= µs)", lambda found: f"{int(found[0]):,}", reason)
