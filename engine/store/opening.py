"""The store that the environment names: the DuckDB file of this home, or the lake of many writers (scale/)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routesparse.engine import paths, shared_folder
from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.store.duckdb_store import Store

if TYPE_CHECKING:
    from routesparse.engine.scale.ducklake import LakeStore


def open_store() -> Store:
    """Open or create it. Errors: ConfigError for a variable that is wrong or missing, StoreError."""
    address = paths.store()
    if address is not None:
        return open_lake(address)
    shared_folder.mark()
    return Store(paths.database())


def open_lake(address: str) -> LakeStore:
    """The store of many writers at this address. Errors as ``open_store``."""
    from routesparse.engine.scale.ducklake import LakeStore

    shared = paths.shared()
    if shared is None:
        raise ConfigError(
            "ROUTESPARSE_STORE is set and ROUTESPARSE_SHARED is not; set it to the folder that all hosts of this store "
            "see"
        )
    store = LakeStore(address, shared, paths.home(), paths.lake())
    try:
        shared_folder.mark()
    except StoreError:
        store.close()
        raise
    return store
