"""Memory of freed tensors: kept for the next ones, given back when asked. Linux with glibc, each in a new process."""

import platform
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

ALLOCATE = """
import resource, psutil, torch
from routesparse.engine.device import host_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(64 << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return psutil.Process().memory_info().rss >> 20
"""


def run(code: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE + textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def test_large_tensors_take_over_the_pages_of_those_before():
    # An aligned tensor does not fit into one freed neighbour, only into several: the first rounds still make room.
    [later] = run("""
        assert host_memory.keep_freed()
        for _ in range(10):
            faults()
        print(faults())
    """)
    [by_default] = run("print(faults())")
    assert later < by_default / 10


def test_between_jobs_the_memory_is_given_back():
    before, kept, after = run("""
        host_memory.keep_freed()
        print(held())
        faults()
        print(held())
        host_memory.give_back()
        print(held())
    """)
    assert kept > before + 50, "nothing was kept"
    assert after < kept - 50
