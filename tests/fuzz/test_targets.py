"""A small seeded sample of the fuzz targets; ``tests/fuzz/run.py`` is the long run. No GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.configuration import set_hypothesis_home_dir

CASES = 120
LEAST_ACCEPTED = 3  # of the cases of each target


def _targets():
    spec = importlib.util.spec_from_file_location("fuzz_targets", Path(__file__).with_name("targets.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


targets = _targets()


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    set_hypothesis_home_dir(folder)
    made = targets.Sandbox(folder)
    made.install()
    return made


@pytest.mark.parametrize("name", targets.TARGETS)
def test_a_parser_raises_its_own_error_alone_and_stays_in_its_folder(sandbox, name):
    target, folder = targets.TARGETS[name], sandbox.folder / name
    folder.mkdir()
    target.prepare(folder)
    outcomes = []

    @hypothesis.seed(0)
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

    one()
    # Else the cases test nothing but the parser's first check, or nothing that it refuses.
    assert outcomes.count("refused") > CASES // 4 and outcomes.count("accepted") >= LEAST_ACCEPTED


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
        (lambda _: _refused(bytearray, 1 << 30), "more than 512 MB of memory"),
    ],
    ids=["a file outside", "a process", "a shell", "memory, where the error is caught"],
)
def test_the_sandbox_sees_what_no_parser_may_do(sandbox, tmp_path, act, told):
    with pytest.raises(targets.Escape, match=told), sandbox.watch():
        act(tmp_path / "outside")
