"""An error of the engine as a page prints it: what is wrong, without a cure that is a command or one of its options.

The engine's messages end in what to do, "...; run `routesparse profile`". A page says its own: a button, a link, or the
command in a field to copy.
"""

from __future__ import annotations

import re

_COMMAND = re.compile(r"`|(?<!\S)--[a-z]")


def wrong(error: Exception | str) -> str:
    """The message, cut before its last clause where that names a command or an option."""
    told, _, cure = str(error).rpartition("; ")
    return told if told and _COMMAND.search(cure) else str(error)
