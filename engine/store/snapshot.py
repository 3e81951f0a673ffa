"""The stored rows for a notebook, read-only, also while the dashboard holds the database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.store import bundle, tables

if TYPE_CHECKING:
    import pandas as pd


def snapshot(table: str = "run", home: str | Path | None = None) -> pd.DataFrame:
    """One table of the stored runs and certificates (``engine/rows.py``), the oldest first.

    It reads the bundles of the stored runs, which never change, and no database. home: another ROUTESPARSE_HOME.
    Errors: InputError for an unknown table; BundleError for a bundle that can't be read.
    """
    import pyarrow as pa

    known = [*tables.TABLES, *tables.CERTIFICATE_TABLES]
    if table not in known:
        raise InputError(f"no table {table!r} is stored; choose one of {', '.join(known)}")
    folder = paths.bundles() if home is None else paths.local(home) / "bundles"
    found = [bundle.read_table(file.parent, table) for file in sorted(folder.glob(f"*/{table}.parquet"))]
    return pa.concat_tables([tables.to_arrow(table, []), *found]).to_pandas()
