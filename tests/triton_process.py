"""Where a test's Triton kernels run: here with a GPU, else interpreted, in a process of its own.

The interpreter must be chosen before Triton is first imported, which another test may have caused.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch


@contextmanager
def triton_process(deterministic: bool = False) -> Iterator[Callable[..., Any]]:
    """function(*args) where Triton runs; deterministic: there, memory that was never written is NaN."""
    if torch.cuda.is_available():
        yield lambda function, *args: function(*args)
        return
    pytest.importorskip("triton")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _prepare, (deterministic,)) as pool:
        pool.submit(os.getpid).result()
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before
        yield lambda function, *args: pool.submit(function, *args).result()


def _prepare(deterministic: bool) -> None:
    """Spare the interpreter work that changes no result: 60 % of its time (Triton 3.7).

    It puts its own functions in the place of Triton's language at each call of a device function, which once for the
    process does; and it adds, subtracts and multiplies integers a second time for an assertion that only a debugging
    launch looks at.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    torch.use_deterministic_algorithms(deterministic)
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
    assert not interpreter.interpreter_builder.options.debug
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
