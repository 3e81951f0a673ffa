"""The DuckDB store in a file, owned by the one process that opens it; scale/ducklake.py has the one for many processes.

The tables hold everybody's runs. Schema ``visible`` has a view of each table under the same name that shows one
owner's rows; pages read these alone (owner_view.py).

DuckDB lets one process open a file that somebody writes, so the web process is the only one that does;
workers and the command line hand over bundles through the spool. One transaction for a few bundles, one cursor per
call, so that threads never share one. The store keeps each bundle's folder beside the database: the float16
probes stay in their Parquet files, and a deleted run goes to the trash folder, from where it can come back.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.files.plain_files import identity
from routesparse.engine.store import bundle, store_errors, thumbnail
from routesparse.engine.store.duckdb_file import open_file, roll_back
from routesparse.engine.store.read_cache import ReadCache
from routesparse.engine.store.tables import FACT_TABLES, HEADS, OF_CERTIFICATES

Origin = Literal["spool", "sample"]
Verified = tuple[bundle.Manifest, dict[str, pa.Table]]

# Of the tables of bundles that are taken in together: the rows of a large run may take a gigabyte.
MOST_TOGETHER_BYTES = 64 << 20
_IDLE_READERS = 16


class Store:
    """Runs, kept. Thread-safe: reads take their own cursor, writes one lock."""

    # Bundles that one transaction takes in: half of what one takes is the statements, not the rows.
    AT_ONCE = 4
    SEVERAL_WRITERS = False  # whether other processes write the same store

    def __init__(self, database: Path, *, bundles: Path | None = None, trash: Path | None = None) -> None:
        """Open or create the file and bring its schema up to date.

        Errors: StoreError when the file is held by another process, is no DuckDB file or has a newer schema;
        the file is then left untouched.
        """
        self.database = Path(database)
        connection = open_file(self.database)
        self._identity = identity(self.database)
        parent = self.database.parent
        self._begin(connection, bundles or parent / "bundles", trash or parent / "trash")

    def _begin(self, connection: duckdb.DuckDBPyConnection, bundles: Path, trash: Path) -> None:
        self._connection, self.bundles, self.trash = connection, bundles, trash
        # Runs whose bundle is in the bundles folder but not in the tables: inserting failed (no space left, say).
        self.unlisted: dict[str, Origin] = {}
        self._generation = self._changes = 0
        self.reads, self.reads_of_runs = ReadCache(), ReadCache()
        self._write_lock = threading.RLock()
        self._idle: dict[str | None, duckdb.DuckDBPyConnection] = {}
        try:
            for folder in (self.bundles, self.trash):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._connection.close()
            raise StoreError(
                f"{error.filename} can't be created ({error.strerror}); check the folder"
            ) from error

    @property
    def generation(self) -> int:
        """Grows with every change, so that pages know when to read again."""
        return self._generation

    @property
    def changes(self) -> int:
        """Grows with every change but a new run: the rows of a stored one stay as they are."""
        return self._changes

    def check_there(self) -> None:
        """Errors: StoreError where the file was deleted or replaced: what is written here would be lost."""
        if identity(self.database) != self._identity:
            raise StoreError(
                f"{self.database} was deleted or replaced while the dashboard ran; put its folder back, or start the "
                "dashboard again to begin with an empty store"
            )

    def close(self) -> None:
        """Flush and give the file back."""
        for cursor in self._idle.values():
            cursor.close()
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The result of a read of everybody's rows as tuples; pages have an OwnerView. Errors: StoreError."""
        with self._reads(), self._cursor() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def table(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """As ``rows``, for Arrow. Errors: StoreError."""
        with self._reads(), self._cursor() as cursor:
            return cursor.execute(sql, list(parameters)).to_arrow_table()

    def new_keys(self, cursor: duckdb.DuckDBPyConnection, n: int) -> list[int]:
        """So many run_keys that no run or certificate ever had, ascending; inside ``writing``."""
        return [self._next_key(cursor) for _ in range(n)]

    @contextmanager
    def reading(self, owner: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for which a table's name means the owner's rows and the samples. Errors: StoreError."""
        with self._reads():
            cursor = self._idle.pop(owner, None)
            if cursor is None:
                cursor = self._connection.cursor()
                cursor.execute("SET search_path = 'visible'")
                cursor.execute("SET VARIABLE owner = ?", [owner])
            yield cursor
            # One is kept per owner, for the next query of the page; a failed one is not.
            if len(self._idle) >= _IDLE_READERS or self._idle.setdefault(owner, cursor) is not cursor:
                cursor.close()

    def adopt(self, path: Path, origin: Origin, *, move: bool) -> str | None:
        """Verify a bundle, take its folder in, insert its rows; the run id, or None if it was here already.

        Harmless to repeat: the bundle's id is unique. Killed at any moment, the bundle is either still at its
        source or in the bundles folder, and the next start inserts it. Where inserting fails it stays in the
        bundles folder and its run in ``unlisted``. Errors: BundleError for one that can never be stored (back at its
        source, for the caller to set aside), StoreError.
        """
        manifest, data = self._verified(path, whole=move)
        with self._alone():
            if not self._brought(path, manifest, origin, move=move):
                return None
            try:
                self._insert_all([(manifest, data)], origin)
            except BundleError:
                if path != self.bundles / manifest.run_id:
                    _take_back(path, self.bundles / manifest.run_id)
                self.unlisted.pop(manifest.run_id)
                raise
            self.unlisted.pop(manifest.run_id)
            self._generation += 1
        return manifest.run_id

    def adopt_together(self, paths: Sequence[Path]) -> tuple[list[str], list[Path]]:
        """Take in bundles of the spool in one transaction: the run ids, and the folders left for ``adopt``.

        What is wrong with a bundle ``adopt`` says. Errors: StoreError.
        """
        left, found, size = [], [], 0
        for path in paths:
            try:
                if size > MOST_TOGETHER_BYTES:
                    raise BundleError("as much as memory has room for")
                found.append((path, *self._verified(path, whole=True)))
                size += sum(table.nbytes for table in found[-1][2].values())
            except BundleError:
                left.append(path)
        with self._alone():
            taken: dict[str, Verified] = {}
            for path, manifest, data in found:
                try:
                    if manifest.run_id in taken:
                        left.append(path)
                    elif self._brought(path, manifest, "spool", move=True):
                        taken[manifest.run_id] = manifest, data
                except (BundleError, StoreError):
                    left.append(path)
            if taken:
                try:
                    self._insert_all(list(taken.values()), "spool")
                # One by one ``adopt`` says what is wrong, also of what nobody thought of.
                except Exception:  # noqa: BLE001
                    return [], left + [self.bundles / run_id for run_id in taken]
                self._generation += 1
            for run_id in taken:
                self.unlisted.pop(run_id)
        return list(taken), left

    def _brought(self, path: Path, manifest: bundle.Manifest, origin: Origin, *, move: bool) -> bool:
        """Put a bundle's folder into its place; whether its rows are to be inserted. Errors as ``adopt``."""
        known = self.rows("SELECT bundle_id FROM stored WHERE run_id = ?", [manifest.run_id])
        if known and known[0][0] != manifest.digest:
            raise BundleError(
                f"run {manifest.run_id} is stored already with other contents; delete it first, "
                "or write the bundle under a new run id"
            )
        place = self.bundles / manifest.run_id
        if path != place:
            _bring(path, manifest, place, move=move, keep=bool(known))
        if known or not place.is_dir():  # another process has deleted the run since the bundle was read
            self.unlisted.pop(manifest.run_id, None)
            return False
        self.unlisted[manifest.run_id] = origin
        return True

    # What the store for many processes does in another way (ducklake.py).

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for which a table's name means everybody's rows."""
        return self._connection.cursor()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes meanwhile. May be entered again by the same thread."""
        with self._write_lock:
            yield

    def _verified(self, path: Path, *, whole: bool) -> Verified:
        """``verified`` for this store. Errors: BundleError."""
        return verified(path, whole=whole)

    def _commit(self, cursor: duckdb.DuckDBPyConnection) -> None:
        cursor.commit()

    def _next_key(self, cursor: duckdb.DuckDBPyConnection) -> int:
        """A run_key that no run or certificate ever had."""
        (run_key,) = cursor.execute("SELECT nextval('run_key_sequence')").fetchone() or (None,)
        return int(run_key)

    @contextmanager
    def _reads(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise StoreError(
                self._told("the store could not be read", error, "nothing was changed")
            ) from error

    def _told(self, what: str, error: duckdb.Error, kept: str) -> str:
        return store_errors.failed(self.database, what, error, kept)

    @contextmanager
    def writing(self, failed: str, kept: str = "nothing was changed") -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction under the write lock, all or nothing.

        ``failed`` begins the message, ``kept`` says what is as it was. Errors: StoreError.
        """
        with self._alone(), self._cursor() as cursor:
            try:
                cursor.begin()
                yield cursor
                self._commit(cursor)
            except duckdb.Error as error:
                roll_back(cursor)
                raise StoreError(self._told(failed, error, kept)) from error
            self._generation += 1
            self._changes += 1

    def delete_run(self, run_id: str) -> None:
        """Remove a run or certificate from the tables; its bundle goes to the trash. Errors: StoreError if unknown."""
        if not self.delete_runs([run_id]):
            raise StoreError(f"run {run_id} is not in the store; nothing was deleted")

    def delete_runs(self, run_ids: Sequence[str]) -> list[str]:
        """As ``delete_run``, all in one transaction; those that were stored. Errors: StoreError."""
        with self._alone():
            sql = "SELECT run_id, run_key, bundle_id FROM stored WHERE list_contains(?::VARCHAR[], run_id)"
            found = self.rows(sql, [list(run_ids)])
            if not found:
                return []
            names, keys, bundles = (list(column) for column in zip(*found, strict=True))
            with self.writing(f"run {', '.join(names)} was not deleted") as cursor:
                cursor.execute(
                    "INSERT INTO trashed_run SELECT run_id, owner, prompt_name, tokens, created_at, "
                    "now() AT TIME ZONE 'UTC' FROM stored WHERE list_contains(?::INTEGER[], run_key)",
                    [keys],
                )
                for table in (*FACT_TABLES, *OF_CERTIFICATES, "run_summary", *HEADS):
                    cursor.execute(f"DELETE FROM {table} WHERE list_contains(?::INTEGER[], run_key)", [keys])
                cursor.execute(
                    "UPDATE ingested_bundle SET deleted_at = now() AT TIME ZONE 'UTC' "
                    "WHERE list_contains(?::VARCHAR[], bundle_id)",
                    [bundles],
                )
            for run_id in names:
                place = self.bundles / run_id
                if place.exists():
                    shutil.rmtree(self.trash / run_id, ignore_errors=True)
                    place.rename(self.trash / run_id)
                    os.utime(self.trash / run_id)  # its age in the trash counts from now
        return names

    def was_deleted(self, bundle_id: str) -> bool:
        """Whether somebody deleted this bundle: samples don't come back by themselves."""
        sql = "SELECT 1 FROM ingested_bundle WHERE bundle_id = ? AND deleted_at IS NOT NULL"
        return bool(self.rows(sql, [bundle_id]))

    def run_ids(self) -> set[str]:
        """The ids of all stored runs and certificates."""
        return {row[0] for row in self.rows("SELECT run_id FROM stored")}

    def _insert_all(self, given: Sequence[Verified], origin: Origin) -> None:
        """All rows of these bundles or none. Errors: BundleError for values that the tables can't hold, StoreError."""
        names = ", ".join(manifest.run_id for manifest, _ in given)
        with self._cursor() as cursor:
            try:
                cursor.begin()
                keyed = [(self._next_key(cursor), manifest, data) for manifest, data in given]
                for table in (*HEADS, *FACT_TABLES, *OF_CERTIFICATES):
                    rows = [
                        _with_key(data[table], key, manifest.digest if table in HEADS else None)
                        for key, manifest, data in keyed
                        if table in data and data[table].num_rows
                    ]
                    if rows:
                        cursor.register("incoming", pa.concat_tables(rows))
                        cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
                runs = [key for key, manifest, _ in keyed if manifest.head == "run"]
                if runs:
                    cursor.execute(f"INSERT INTO run_summary BY NAME FROM summaries_from({min(runs)})")
                for _, manifest, _ in keyed:
                    _list_bundle(cursor, manifest, origin)
                cursor.execute(
                    "DELETE FROM trashed_run WHERE list_contains(?::VARCHAR[], run_id)",
                    [[manifest.run_id for manifest, _ in given]],
                )
                self._commit(cursor)
            except duckdb.DataError as error:
                roll_back(cursor)
                raise BundleError(
                    f"run {names} can't be stored ({error}); make the bundle again, or discard it"
                ) from error
            except duckdb.Error as error:
                roll_back(cursor)
                what = f"run {names} was not stored"
                raise StoreError(self._told(what, error, "its bundle is kept and tried again")) from error
            finally:
                cursor.unregister("incoming")


def verified(path: Path, *, whole: bool) -> Verified:
    """A bundle's tables as they are stored; ``whole``: nothing else may lie in its folder. Errors: BundleError."""
    manifest, data = bundle.verified_tables(path)
    if whole and (extra := bundle.extra_entries(path, manifest)):
        raise BundleError(f"{path.name} also holds {extra[0]!r}, which its manifest does not name; remove it")
    if "probe" in data:  # the heatmaps themselves stay in the bundle, and not in memory beside the next one's
        data["probe_meta"] = thumbnail.probe_meta(data.pop("probe"))
    return manifest, data


def _with_key(rows: pa.Table, key: int, bundle_id: str | None) -> pa.Table:
    """A bundle's rows as the store's tables hold them; bundle_id: of the table with one row a bundle."""
    if bundle_id is not None:
        rows = rows.append_column("bundle_id", pa.array([bundle_id] * len(rows), pa.string()))
    elif "run_id" in rows.schema.names:
        rows = rows.drop_columns(["run_id"])
    return rows.append_column("run_key", pa.array([key] * len(rows), pa.int32()))


def _list_bundle(cursor: duckdb.DuckDBPyConnection, manifest: bundle.Manifest, origin: Origin) -> None:
    """One row a bundle, also of one that was deleted and comes back; DuckLake knows no ON CONFLICT."""
    if cursor.execute("SELECT 1 FROM ingested_bundle WHERE bundle_id = ?", [manifest.digest]).fetchone():
        sql = "UPDATE ingested_bundle SET deleted_at = NULL WHERE bundle_id = ?"
        cursor.execute(sql, [manifest.digest])
        return
    cursor.execute(
        "INSERT INTO ingested_bundle VALUES (?, ?, ?, ?, ?, now() AT TIME ZONE 'UTC', NULL)",
        [manifest.digest, manifest.run_id, origin, manifest.schema_version, manifest.size_bytes],
    )


def _bring(source: Path, manifest: bundle.Manifest, place: Path, *, move: bool, keep: bool) -> None:
    """Put a bundle's folder into its place in the store; ``keep``: what is there already is the same run."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not keep:
            shutil.rmtree(place)  # left by a crash and not in the tables
        if not place.exists():
            if move and source.stat().st_dev == place.parent.stat().st_dev:
                bundle.publish(source, place)
            else:
                bundle.copy(source, manifest, place)
        if move:
            _discard(source)
    except OSError as error:
        raise StoreError(
            f"{source.name} could not be taken in ({error.strerror or error}); retry later"
        ) from error


def _discard(source: Path) -> None:
    """Delete a folder that another process may look at: it sees all of it or nothing. Errors: OSError."""
    hidden = source.with_name(f"{bundle.TEMPORARY_PREFIX}{source.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        source.rename(hidden)
    except FileNotFoundError:
        return  # it was moved, not copied, or another process has taken the same bundle
    shutil.rmtree(hidden, ignore_errors=True)


def _take_back(source: Path, place: Path) -> None:
    """Move a bundle that the tables refused back to where it came from; a copy of what is still there goes."""
    try:
        if source.exists():
            shutil.rmtree(place)
        else:
            shutil.move(place, source)
    except OSError as error:
        raise StoreError(
            f"{source.name} could not be set aside ({error.strerror or error}); free space and retry"
        ) from error
