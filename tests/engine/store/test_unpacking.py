"""Small files that stand for gigabytes are refused before they take them, in this process and in the child. No GPU."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from routesparse.engine.store import bundle, tables, unpacking

# What two processes, this one and those that it started, took more for the second bundle than for the first.
READER = """
import resource, sys
from pathlib import Path
from routesparse.engine.errors import BundleError
from routesparse.engine.store import bundle

def taken(path):
    try:
        bundle.verify_bundle(Path(path))
    except BundleError as error:
        print(error)
    bundle.unpacking._process.end()
    return sum(resource.getrusage(of).ru_maxrss << 10 for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))

print(-taken(sys.argv[1]) + taken(sys.argv[2]))
"""

# A fork reads as often as it is told and ends, then its parent reads on.
FORKED = """
import os, sys
from pathlib import Path
from routesparse.engine.store import bundle

bundle.verify_bundle(Path(sys.argv[1]))
forked = os.fork()
status = os.waitpid(forked, 0)[1] if forked else 0
for _ in range(1 if forked else int(sys.argv[2])):
    bundle.verify_bundle(Path(sys.argv[1]))
sys.exit(status)
"""


def repeated(kind: pa.Array) -> pa.Table:
    """Equal rows with these kinds."""
    equal = {pa.string(): "x", pa.int64(): 0, pa.float64(): 0.0}
    schema = tables.arrow_schema("fallback_event")
    columns = {field.name: pa.repeat(pa.scalar(equal[field.type], field.type), len(kind)) for field in schema}
    return pa.table(columns | {"kind": kind})


def a_dictionary_repeats_a_long_value(file):
    rows = pa.DictionaryArray.from_arrays(np.zeros(1 << 14, np.int32), ["x" * 330_000])
    pq.write_table(repeated(rows), file, compression="zstd", store_schema=False)


def each_value_begins_with_the_one_before(file):
    rows = pa.array(["x" * 1_000_000] * 400)
    encoding = {"kind": "DELTA_BYTE_ARRAY"}
    pq.write_table(repeated(rows), file, compression="zstd", use_dictionary=False, column_encoding=encoding)


def equal_rows(file):
    pq.write_table(repeated(pa.array(["x"] * (1 << 23))), file, compression="zstd")


def a_packed_page(file):
    rows = pa.array(["x" * (1 << 28)])
    pq.write_table(repeated(rows), file, compression="zstd", use_dictionary=False, write_statistics=False)


@pytest.mark.parametrize(
    "write",
    [
        a_dictionary_repeats_a_long_value,
        each_value_begins_with_the_one_before,
        equal_rows,
        a_packed_page,
    ],
)
def test_a_small_file_that_stands_for_gigabytes_is_refused_within_a_bound(small, tmp_path, write):
    good = bundle.write_bundle(small, tmp_path / "good")
    bad = bundle.write_bundle(small, tmp_path / "bad")
    file, manifest = bad / "fallback_event.parquet", bad / bundle.MANIFEST
    write(file)
    assert file.stat().st_size < 1 << 19
    values = json.loads(manifest.read_text())
    values["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(values))
    command = [sys.executable, "-c", READER, str(good), str(bad)]
    refused, taken = subprocess.check_output(command, text=True).splitlines()
    assert "fallback_event.parquet" in refused
    assert int(taken) < unpacking.CHILD_BYTES


@pytest.mark.parametrize("reads", [0, 2])
def test_a_fork_leaves_its_parents_process_alone(small, tmp_path, reads):
    """The end of a fork used to wait for the process of its parent."""
    good = bundle.write_bundle(small, tmp_path)
    command = [sys.executable, "-W", "error", "-c", FORKED, str(good), str(reads)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
