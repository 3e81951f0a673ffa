"""Synthetic runs that look like real ones; only tests and the scripts beside them use them.

Numbers are invented but consistent: nested budgets, mass that grows with density, a gate at lambda, up to
three certificate tests, fallbacks, an audit, probe heatmaps with sinks, columns, slashes and a diagonal.
The folder ``synthetic`` holds what makes them, one kind of record a file; whoever needs one imports it from here.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Tests load this file by its path: its neighbours are found through the search path.
sys.path.append(str(Path(__file__).parent))

from synthetic.certificates import make_certificate
from synthetic.library import DENSE
from synthetic.priced import priced
from synthetic.requests import fleet, served, small_record
from synthetic.runs import make_record, rename, replace_rows, rewrite

__all__ = [
    "DENSE",
    "fleet",
    "make_certificate",
    "make_record",
    "priced",
    "rename",
    "replace_rows",
    "rewrite",
    "served",
    "small_record",
]
