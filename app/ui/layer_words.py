"""Which layers ran uncertified (policy priced), by name and with what their certificates missed."""

from __future__ import annotations

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.store import frames, queries

_MOST_NAMED = 4


def uncertified(layers: pd.DataFrame, missed: pd.Series, of_several_runs: bool = False) -> str:
    """ "1 of 8 layers ran uncertified: layer 2 (0.660 < 0.70)".

    layers: ``layer``, ``lower_mass``, ``tau_layer``, and ``run_id`` where they are of several runs; missed: of each,
    whether it ran uncertified.
    """
    found = layers[missed]
    names = []
    for row in frames.rows(found.head(_MOST_NAMED)):
        known = not numbers.is_missing(row.lower_mass)
        why = (
            f"{numbers.bound(row.lower_mass)} < {numbers.threshold(row.tau_layer)}"
            if known
            else "no certificate"
        )
        run = f" of run {queries.label(str(row.run_id))}" if of_several_runs else ""
        names.append(f"layer {row.layer}{run} ({why})")
    more = f" and {len(found) - _MOST_NAMED:,} more" if len(found) > _MOST_NAMED else ""
    total = numbers.several(len(layers), "layer")
    return f"{len(found):,} of {total} ran uncertified: {', '.join(names)}{more}"
