"""What errors of a lake's files become: which file, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from routesparse.engine.store import object_store
from routesparse.engine.store.store_errors import damaged_in_lake, gone

FILE = "main/run/ducklake-01.parquet"
LOST = f'IO Error: Cannot open file "/shared/lake/{FILE}": No such file or directory'
LOST_IN_STORE = f"HTTP Error: HTTP GET error on 'http://store/bucket/rows/{FILE}' (HTTP 404)"


@pytest.mark.parametrize("text", [LOST, LOST_IN_STORE])
def test_a_file_that_is_gone_may_be_prune_s(text):
    told = damaged_in_lake(Path("/shared"), OSError(text))
    assert told is not None and FILE in told and object_store.failed(text) is None and gone(OSError(text))
    assert "If `routesparse prune` has just run, read again; else stop all its dashboards" in told


def test_a_torn_file_is_not_read_again():
    error = OSError(f"Invalid Input Error: No magic bytes found at end of file '/shared/lake/{FILE}'")
    told = damaged_in_lake(Path("/shared"), error)
    assert (
        told is not None and "). Stop all its dashboards" in told and "prune" not in told and not gone(error)
    )


def test_a_missing_bucket_is_the_object_store_s():
    text = "HTTP Error: HTTP GET error on 'http://store/bucket/' (HTTP 404)"
    assert "no such bucket" in (object_store.failed(text) or "")
    assert damaged_in_lake(Path("/shared"), OSError(text)) is None
