"""Every skip must be one that we know: in CI a test that skips for a reason not listed here fails the run.

Two processes run the tests (`make test`), each a whole file at a time. What starts browsers and servers is one unit of
work, so that one process does all of it, and never two of them at once. That unit and the longest files come first:
what is left at the end is short, and no process waits long for the other.
"""

from __future__ import annotations

import os
import re
from importlib import import_module

import pytest
from xdist.scheduler import LoadScopeScheduling

# As the command line does (engine/cli/main.py): browser, worker and tests share two cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Reasons that may skip a test, with where they occur; anything else is a hole in the suite.
ALLOWED_SKIPS = (
    r"shared/data",  # development data beside the checkout, which not every machine has
    r"needs a GPU",
    r"needs DeepSpeed",
    r"running as root",  # permissions don't bind root
    r"vLLM is not installed",  # an environment of its own: `make vllm`
    r"DuckLake is not installed",  # `make ducklake`, as .ci/run does
    r"moto is not installed",  # an object store for tests: `make moto`, as .ci/run does
    r"PostgreSQL is not installed",  # .ci/run installs it
    r"only who may mount",  # a disk small enough to be filled
)
# Folders whose tests start servers, workers or browsers.
STAGES = ("e2e", "faults", "load")
# Files of more than a minute.
LONG = (
    "tests/engine/decide/test_fused.py",
    "tests/engine/jobs/test_worker_processes.py",
    "tests/engine/store/test_store.py",
    "tests/engine/operations/test_lake.py",
    "tests/engine/store/test_ducklake.py",
    "tests/kernels/attention/test_attention.py",
    "tests/kernels/test_probe_compiles.py",
)
_skips: list[tuple[str, str]] = []


class Rooms(LoadScopeScheduling):
    """A process takes a file at a time; whoever takes the first stage takes them all."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "stages" if _is_stage(file) else file


def _is_stage(file: str) -> bool:
    return file.split("/")[1] in STAGES


@pytest.fixture(scope="session")
def factory():
    """The module that makes synthetic runs."""
    return import_module("tests.engine.store.factory")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Stages first, then long files, then the others as they were found."""
    if not hasattr(config, "workerinput"):
        return

    def turn(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return -1 if _is_stage(file) else LONG.index(file) if file in LONG else len(LONG)

    items.sort(key=turn)


@pytest.fixture(scope="session", autouse=True)
def no_developer_s_home(tmp_path_factory):
    """A home for tests that make none: what they find does not depend on what was run before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROUTESPARSE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Rooms:
    return Rooms(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _skips.append((report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: ")))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # Without CI, Chromium may be missing; .ci/run installs it.
    if not os.environ.get("CI"):
        return
    unknown = [s for s in _skips if not any(re.search(reason, s[1]) for reason in ALLOWED_SKIPS)]
    for nodeid, reason in unknown:
        print(f"\nunlisted skip: {nodeid}: {reason}")
    if unknown and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
