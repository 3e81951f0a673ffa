"""Compiling kernels before they are launched, in parallel: one after another, a decision's take 17 to 19 s.

What is to be compiled is found by running the real operations on meta tensors, which have shapes and no memory:
inside ``wanted_by`` these stand for a GPU's tensors, and a launch asks for its kernel instead of running it. So
nothing lists the kernels a second time. Triton compiles without holding Python's lock most of the time, so threads are
enough, and what they compile lies in this process's own caches, as well as in Triton's on the disk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from routesparse.kernels.common import instead_of_launching

Compile = Callable[["Wanted"], Any]


@dataclass(frozen=True)
class Wanted:
    """A kernel with the arguments that it would be launched with."""

    kernel: Any
    args: tuple[Any, ...]
    options: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> Hashable:
        """What Triton tells compilations of one kernel apart by."""
        names = self.kernel.arg_names
        fixed = {name for name in self.kernel.do_not_specialize if isinstance(name, str)}
        kinds = tuple(_kind(arg, name in fixed) for name, arg in zip(names, self.args, strict=False))
        return self.kernel, kinds, tuple(sorted(self.options.items()))


def wanted_by(run: Callable[[], object]) -> Iterator[Wanted]:
    """The kernels that ``run`` would launch, each once; run computes with meta tensors that stand for a GPU's."""
    found: dict[Hashable, Wanted] = {}

    def ask(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        wanted = Wanted(kernel, tuple(map(_placed, args)), options)
        found.setdefault(wanted.key, wanted)

    token = instead_of_launching.set(ask)
    try:
        run()
    finally:
        instead_of_launching.reset(token)
    yield from found.values()


def compile_kernel(wanted: Wanted) -> Any:
    """Compile for the current GPU, load the result there and build its launcher."""
    compiled = wanted.kernel.warmup(*wanted.args, grid=(1,), **wanted.options)
    # Reading it loads the binary; up to Triton 3.6 a C compiler builds the launcher then.
    return compiled.run


class Compiler:
    """Compiles for one GPU, each variant of a kernel once; any thread may ask.

    compile: the seam for tests.
    """

    def __init__(self, device: torch.device, compile: Compile = compile_kernel) -> None:
        self._device, self._compile = device, compile
        self.asked: set[Hashable] = set()  # callers' own keys of what need not be asked for again
        self._lock = threading.Lock()
        self._futures: dict[Hashable, Future[Any]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def start(self, wanted: Sequence[Wanted]) -> list[Future[Any]]:
        """Compile what nobody asked for before; the futures of all, whose ``exception()`` says what went wrong."""
        with self._lock:
            return [self._future(each) for each in wanted]

    def stop(self) -> None:
        """Give up what has not begun: a process that ends does not wait for it."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _future(self, wanted: Wanted) -> Future[Any]:
        key = wanted.key
        if key not in self._futures:
            if self._pool is None:
                threads = max(1, len(os.sched_getaffinity(0)))
                self._pool = ThreadPoolExecutor(threads, "compile", self._enter)
            self._prepare(wanted.kernel)
            self._futures[key] = self._pool.submit(self._compile, wanted)
        return self._futures[key]

    def _enter(self) -> None:
        """A thread's own current GPU."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _prepare(self, kernel: Any) -> None:
        """Make here, in one thread, what threads that compile variants of one kernel would each make for themselves."""
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                _ = kernel.cache_key, kernel.device_caches[torch.cuda.current_device()]


_compilers: dict[torch.device, Compiler] = {}
_compilers_lock = threading.Lock()


def compiler_of(device: torch.device) -> Compiler:
    """This process's compiler for a GPU: Triton keeps what it compiled by process and GPU, too."""
    if device.index is None:
        device = torch.device(device.type, torch.cuda.current_device())
    with _compilers_lock:
        return _compilers.setdefault(device, Compiler(device))


def stop_compiling() -> None:
    """Give up what no thread has begun to compile; for a process that ends."""
    with _compilers_lock:
        for compiler in _compilers.values():
            compiler.stop()


@dataclass(frozen=True)
class _Placed:
    """A meta tensor that does not start where its memory does: Triton asks whether its address is a multiple of 16."""

    dtype: torch.dtype
    offset_bytes: int

    def data_ptr(self) -> int:
        return self.offset_bytes


def _placed(arg: Any) -> Any:
    if isinstance(arg, tuple):
        return tuple(map(_placed, arg))
    offset = int(arg.storage_offset()) * arg.element_size() if isinstance(arg, torch.Tensor) else 0
    return _Placed(arg.dtype, offset) if offset % 16 else arg


def _kind(arg: Any, fixed: bool) -> Hashable:
    """The part of an argument that a compilation depends on; fixed: an argument that Triton does not specialise on."""
    if isinstance(arg, bool) or arg is None:
        return arg
    if isinstance(arg, tuple):
        return tuple(_kind(each, fixed) for each in arg)
    if isinstance(arg, int):
        size = 32 if -(2**31) <= arg < 2**31 else 64
        return ("int", size) if fixed else ("int", size, arg == 1, arg % 16 == 0)
    if isinstance(arg, float):
        return "float"
    if isinstance(arg, torch.Tensor | _Placed):
        return arg.dtype, arg.data_ptr() % 16 == 0
    base, tile = getattr(arg, "base", None), getattr(arg, "block_shape", None)
    if base is not None and tile is not None:
        return "descriptor", base.dtype, tuple(tile)
    return type(arg), repr(arg)
