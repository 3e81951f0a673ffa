"""The dashboard's owner of the store (app/shell/access.py) without its pages: ``python web.py '{"home": ...}'``.

After every look into the spool it writes what a page would read into ``home/status.json``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import StoreError
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.tables import FACT_TABLES

CURE = "with some space"  # of what need not be mended by hand


def web(home: Path) -> int:
    """Take bundles in until the process ends."""
    from routesparse.app.shell import access

    paths.DATA = home / "no-samples"
    access.Access.SPOOL_SECONDS = 0.0
    while True:  # as a page that says so and is loaded again
        try:
            opened = access.Access()
            break
        except StoreError as error:
            if CURE not in str(error):
                raise
            with suppress(OSError):
                tell(home, {"runs": [], "partial": {}, "rejected": {}, "trouble": str(error)})
            time.sleep(0.2)
    partial: dict[str, str] = {}
    checked: set[str] = set()
    written = None
    runs: set[str] = set()
    while True:
        trouble = None
        try:
            opened.look_into_spool()
            runs = opened.store.run_ids()
            for run_id in runs - checked:
                partial |= _lacking(opened.store, paths.bundles() / run_id)
                checked.add(run_id)
            twice = "SELECT run_id FROM stored GROUP BY run_id HAVING count(*) > 1"
            partial |= {run_id: "stored twice" for (run_id,) in opened.store.rows(twice)}
        except StoreError as error:
            trouble = str(error)
        rejected = {each.name: each.reason for each in opened.rejections()}
        waiting = [each.reason for each in opened.waiting()]
        found = {"partial": partial, "rejected": rejected, "trouble": trouble or next(iter(waiting), None)}
        if written != (found, runs):
            with suppress(OSError):  # a full disk: the next look tries again
                tell(home, {"runs": sorted(runs), **found})
                written = (found | {"partial": dict(partial)}, set(runs))
        time.sleep(0.1)


def tell(home: Path, status: dict[str, Any]) -> None:
    """Write what a page would read, whole. Errors: OSError."""
    file = home / ".status.partial"
    file.write_text(json.dumps(status))
    file.replace(home / "status.json")


def _lacking(store: OwnerView, bundle: Path) -> dict[str, str]:
    """The run and what is wrong, where the store has other rows of it than its bundle."""
    files = json.loads((bundle / "manifest.json").read_text())["files"]
    for file, about in files.items():
        table = {"probe": "probe_meta"}.get(file.removesuffix(".parquet"), file.removesuffix(".parquet"))
        if table not in ("run", *FACT_TABLES):
            continue  # read from the bundle's own file
        sql = f"SELECT count(*) FROM {table} WHERE run_key = (SELECT run_key FROM run WHERE run_id = ?)"
        ((rows,),) = store.rows(sql, [bundle.name])
        if rows != about["rows"]:
            return {bundle.name: f"{rows} rows of {table}, the bundle has {about['rows']}"}
    return {}


if __name__ == "__main__":
    home = Path(json.loads(sys.argv[1])["home"])
    os.environ["ROUTESPARSE_HOME"] = str(home)
    sys.exit(web(home))
