"""What every operation's dispatch asks: whether a tensor goes to Triton's kernels or to the naive twin beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


# Inside compile_ahead.wanted_by: what a launch does instead of running, with the kernel and its arguments.
instead_of_launching: ContextVar[Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None] = ContextVar(
    "instead_of_launching", default=None
)


def on_gpu(x: Any) -> bool:
    """Whether a tensor lies on a GPU, or stands for one that does.

    While kernels are compiled ahead (compile_ahead.py), meta tensors, which have a shape and no memory, stand for it.
    """
    return bool(getattr(x, "is_cuda", False)) or (
        instead_of_launching.get() is not None and bool(getattr(x, "is_meta", False))
    )


def runs_triton(x: Any) -> bool:
    """Whether operations on this tensor run as Triton kernels: on a GPU, and on a CPU where Triton interprets.

    Triton itself reads TRITON_INTERPRET=1 when it is first imported; anything that is no CUDA tensor, NumPy arrays
    included, takes the naive twin otherwise.
    """
    return on_gpu(x) or (hasattr(x, "data_ptr") and os.environ.get("TRITON_INTERPRET") == "1")


def dispatched(naive: Callable[P, T], launch: Callable[P, T]) -> Callable[P, T]:
    """One operation from its two implementations: the tensor that comes first says which one runs."""

    @wraps(naive)
    def operation(*args: P.args, **kwargs: P.kwargs) -> T:
        return (launch if runs_triton(args[0]) else naive)(*args, **kwargs)

    return operation


def dispatched_on_gpu(naive: Callable[P, T], launch: Callable[P, T]) -> Callable[P, T]:
    """``dispatched`` for an operation that Triton's interpreter cannot run: on CUDA tensors alone."""

    @wraps(naive)
    def operation(*args: P.args, **kwargs: P.kwargs) -> T:
        return (launch if on_gpu(args[0]) else naive)(*args, **kwargs)

    return operation
