"""A small seeded sample of the fuzz targets; FUZZ_ROUNDS=1000 runs as many of them, each with other seeds. No GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.fuzz.fuzzed.sandbox import Escape, Sandbox
from tests.fuzz.targets import TARGETS

CASES = 120
ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "1"))
LEAST_ACCEPTED = 3  # of the cases of each target


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    set_hypothesis_home_dir(folder)
    made = Sandbox(folder)
    made.install()
    return made


@pytest.mark.timeout(600 * ROUNDS)
@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_raises_its_own_error_alone_and_stays_in_its_folder(sandbox, name):
    target, folder = TARGETS[name], sandbox.folder / name
    folder.mkdir()
    target.prepare(folder)
    outcomes = []

    @settings(max_examples=CASES, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(target.cases)
    def one(case):
        try:
            with sandbox.watch():
                target.parse(case, folder)
        except target.allowed:
            outcomes.append("refused")
        else:
            outcomes.append("accepted")

    for seed in range(ROUNDS):
        hypothesis.seed(seed)(one)()
    # Else the cases test nothing but the parser's first check, or nothing that it refuses.
    assert outcomes.count("refused") > ROUNDS * CASES // 4
    assert outcomes.count("accepted") >= ROUNDS * LEAST_ACCEPTED


def _refused(make, size):
    try:
        make(size)
    except MemoryError:
        raise ValueError("no file of ours") from None


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda outside: outside.write_text("x"), "wrote"),
        (lambda _: subprocess.run([sys.executable, "-c", ""], check=True), r"subprocess\.Popen"),
        (lambda _: os.system("true"), r"os\.system"),
        (lambda _: _refused(bytearray, 1 << 36), "more than 512 MB of memory"),
    ],
    ids=["a file outside", "a process", "a shell", "memory, where the error is caught"],
)
def test_the_sandbox_sees_what_no_parser_may_do(sandbox, tmp_path, act, told):
    with pytest.raises(Escape, match=told), sandbox.watch():
        act(tmp_path / "outside")
