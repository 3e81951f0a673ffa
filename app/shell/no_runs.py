"""A page without a run to show: how to get one, and that deleted ones wait in the trash."""

from __future__ import annotations

from routesparse.app.shell import navigate
from routesparse.app.ui import numbers, states
from routesparse.engine.store import label_queries
from routesparse.engine.store.owner_view import OwnerView


def empty(store: OwnerView, lines: list[str]) -> None:
    """The box, the command, and where to go."""
    deleted = trashed(store)
    states.empty(f"No runs: {deleted}" if deleted else "No runs yet", lines, states.ANALYZE)
    navigate.link("New run", "new")
    if deleted:
        navigate.link("Restore from the trash", "runs")


def trashed(store: OwnerView) -> str:
    """How many runs are in the trash, as a clause; nothing where none is."""
    count = len(label_queries.trash(store))
    if not count:
        return ""
    return f"{numbers.several(count, 'run')} {'is' if count == 1 else 'are'} in the trash"
