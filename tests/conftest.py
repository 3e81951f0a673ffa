"""Every skip must be one that we know: in CI a test that skips for a reason not listed here fails the run."""

from __future__ import annotations

import os
import re

import pytest

# As the command line does (engine/cli/main.py): browser, worker and tests share two cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Reasons that may skip a test, with where they occur; anything else is a hole in the suite.
ALLOWED_SKIPS = (
    r"shared/data",  # development data beside the checkout, which not every machine has
    r"needs a GPU",
    r"needs DeepSpeed",
    r"running as root",  # permissions don't bind root
    r"vLLM is not installed",  # an environment of its own: `make vllm`
    r"only who may mount",  # a disk small enough to be filled
)
_skips: list[tuple[str, str]] = []


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
