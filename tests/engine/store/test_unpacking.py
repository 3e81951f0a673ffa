"""Small files that stand for gigabytes are refused before they take them, in this process and in the child. No GPU."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

from routesparse.engine.store import bundle, tables, unpacking
from tests.fuzz.fuzzed import swollen

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

good, *bad = sys.argv[1:]
print(-taken(good) + max(map(taken, bad)))
"""

# A fork reads not at all or twice and ends, then its parent reads on.
FORKED = """
import os, sys
from pathlib import Path
from routesparse.engine.store import bundle

bundle.verify_bundle(Path(sys.argv[1]))
for reads in (0, 2):
    forked = os.fork()
    status = os.waitpid(forked, 0)[1] if forked else 0
    for _ in range(1 if forked else reads):
        bundle.verify_bundle(Path(sys.argv[1]))
    if status or not forked:
        sys.exit(status)
"""


def test_a_small_file_that_stands_for_gigabytes_is_refused_within_a_bound(small, tmp_path):
    table, bad = tables.to_arrow("fallback_event", small.fallbacks), []
    for place, kind in enumerate(swollen.KINDS):
        bad.append(bundle.write_bundle(small, tmp_path / str(place)))
        file, manifest = bad[-1] / "fallback_event.parquet", bad[-1] / bundle.MANIFEST
        file.write_bytes(swollen.swollen(table, *kind))
        values = json.loads(manifest.read_text())
        values["files"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(values))
    good = bundle.write_bundle(small, tmp_path / "good")
    command = [sys.executable, "-c", READER, str(good), *map(str, bad)]
    *refused, taken = subprocess.check_output(command, text=True).splitlines()
    assert len(refused) == len(bad) and "unpacks to more than any run holds" in refused[0]
    assert int(taken) < unpacking.CHILD_BYTES


def test_a_fork_leaves_its_parents_process_alone(small, tmp_path):
    """The end of a fork used to wait for the process of its parent."""
    good = bundle.write_bundle(small, tmp_path)
    command = [sys.executable, "-W", "error", "-c", FORKED, str(good)]
    done = subprocess.run(command, stderr=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
