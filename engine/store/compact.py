"""Give back the room that deleted runs left in the file of a closed store."""

from __future__ import annotations

import stat
from pathlib import Path

import duckdb

from routesparse.engine.errors import StoreError
from routesparse.engine.store.duckdb_store import Store


def compact(database: Path) -> tuple[int, int]:
    """Write the file of a closed store anew, without the room that deleted runs left; its bytes before and after.

    DuckDB fills that room with later runs but never gives it back: neither CHECKPOINT nor VACUUM shrinks a file.
    Errors: StoreError, also where a dashboard holds the file; it is then as it was.
    """
    Store(database).close()  # of today's schema, and not held by anybody
    before, fresh = database.stat().st_size, database.with_suffix(".compact")
    logs = [file.with_name(f"{file.name}.wal") for file in (database, fresh)]
    try:
        fresh.unlink(missing_ok=True)
        with duckdb.connect() as connection:
            for name, file, how in (("old", database, " (READ_ONLY)"), ("fresh", fresh, "")):
                quoted = str(file).replace("'", "''")
                connection.execute(f"ATTACH '{quoted}' AS {name}{how}")
            connection.execute("COPY FROM DATABASE old TO fresh")
            connection.execute(
                "CHECKPOINT fresh"
            )  # closing checkpoints too, but says nothing where that fails
        if any(log.exists() for log in logs):
            raise OSError("a log of writes is left beside it")
        fresh.chmod(stat.S_IMODE(database.stat().st_mode))
        fresh.replace(database)
    except (duckdb.Error, OSError) as error:
        for left in (fresh, logs[1]):
            left.unlink(missing_ok=True)
        raise StoreError(f"{database.name} was not compacted ({error}); it is as it was") from error
    return before, database.stat().st_size
