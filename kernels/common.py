"""What every operation shares: whether a tensor goes to Triton's kernels or to their naive twin, and how they launch.

Loads no torch: the dashboard's process imports operations (method/policy.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

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


def dispatched(naive: Callable[P, T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make one operation of a launch and its naive twin: where the first argument (or its queries) lies decides."""
    return _by(naive, runs_triton)


def dispatched_on_gpu(naive: Callable[P, T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """``dispatched`` for an operation that Triton's interpreter cannot run: on CUDA tensors alone."""
    return _by(naive, on_gpu)


def _by(naive: Callable[P, T], takes: Callable[[Any], bool]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    def operation_of(launch: Callable[P, T]) -> Callable[P, T]:
        @wraps(naive)
        def operation(*args: P.args, **kwargs: P.kwargs) -> T:
            first = getattr(args[0], "q", args[0])
            return (launch if takes(first) else naive)(*args, **kwargs)

        vars(operation)["launch"] = launch  # for tests: the launch alone, wherever its tensors lie
        return operation

    return operation_of


# Arguments that grow with the prompt, under the names that kernels have for them.
LENGTHS = frozenset(("rows", "keys", "query_blocks", "key_blocks", "segment_keys"))


def launch(
    kernel: Any, grid: tuple[int, ...], *bundles: Mapping[str, Any], lengths: Iterable[str] = (), **named: Any
) -> None:
    """Launch a kernel with its arguments by name, those of a tensor x as ``x`` for ``x_ptr``, and Triton's options.

    bundles: arguments that several kernels ask for together; a kernel takes those that it has. lengths: the names of
    arguments beside LENGTHS that grow with the prompt (``variant``).
    """
    known = kernel.arg_names
    given = {name: value for bundle in bundles for name, value in bundle.items() if name in known}
    given |= {f"{name}_ptr" if f"{name}_ptr" in known else name: value for name, value in named.items()}
    arguments = {name: given.pop(name) for name in known if not name.isupper()}
    fixed = getattr(kernel, "do_not_specialize", ())
    growing = [*lengths, *(name for name in arguments if name in LENGTHS and name not in fixed)]
    variant(kernel, **{name: arguments[name] for name in growing})[grid](*arguments.values(), **given)


def variant(kernel: Any, **lengths: int) -> Any:
    """The kernel as a launch takes it: ``variant(kernel, keys=keys)[grid](...)``; lengths by their arguments' names.

    Triton compiles a kernel anew where an integer argument becomes a multiple of 16, or stops being one. Arguments that
    grow with the prompt would make that a new compilation for many a length. So there are two variants only: all of
    ``lengths`` are multiples of 16, as at the lengths that are measured, or none is known to be.
    """
    import triton

    if not triton.knobs.runtime.interpret and any(length % 16 for length in lengths.values()):
        kernel = _of_any_length(kernel, tuple(lengths))
    instead = instead_of_launching.get()
    return kernel if instead is None else _Asked(kernel, instead)


@cache
def _of_any_length(kernel: Any, lengths: tuple[str, ...]) -> Any:
    """The kernel (Triton's or Gluon's) without anything assumed about these arguments."""
    unknown = set(lengths) - set(kernel.arg_names)
    if unknown:
        raise ValueError(f"{kernel.__name__} has no argument {', '.join(sorted(unknown))}; name those it has")
    return type(kernel)(kernel.fn, do_not_specialize=[*kernel.do_not_specialize, *lengths])


@dataclass(frozen=True)
class _Asked:
    """Takes a launch's grid and arguments and launches nothing."""

    kernel: Any
    instead: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **options: self.instead(self.kernel, args, options)


def gpu_of(x: torch.Tensor) -> torch.device | None:
    """The GPU that a tensor lies on; for one that stands for it (common.on_gpu), the current one."""
    return x.device if x.is_cuda else None


def power_of_two(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def strides(name: str, x: torch.Tensor) -> dict[str, int]:
    """Strides of a tensor [B, H, n, D] by the names that kernels have for those of a tensor so called."""
    return {f"stride_{name}{axis}": stride for axis, stride in zip("bhnd", x.stride(), strict=True)}


def head_strides(tensors: Sequence[torch.Tensor], batch: int, heads: int) -> tuple[tuple[int, int], ...]:
    """Strides over prompts and heads of contiguous tensors [B, H, ...], in what one head has; 0 where all share one."""
    return tuple((x.shape[1] if x.shape[0] == batch else 0, int(x.shape[1] == heads)) for x in tensors)


def knows_ptx() -> bool:
    """Whether kernels run on an NVIDIA GPU; Triton's interpreter takes a slower way round."""
    import torch
    import triton

    return torch.version.cuda is not None and not triton.knobs.runtime.interpret
