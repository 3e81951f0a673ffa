"""What launchers share: sizes of blocks, and what kernels with a matrix product have to know.

Loads no torch: the dashboard's process imports launchers (method/policy.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from routesparse.kernels.common import instead_of_launching

if TYPE_CHECKING:
    import torch


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


def product_constants(q: torch.Tensor) -> dict[str, Any]:
    """What every kernel with a matrix product needs to know of the queries."""
    import torch
    import triton

    # The interpreter's bf16 matrix product is silently wrong.
    interpreted = bool(triton.knobs.runtime.interpret)
    return {
        "HEAD": q.shape[-1],
        "HEAD_PADDED": power_of_two(q.shape[-1]),
        "UPCAST": interpreted,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def power_of_two(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def head_strides(tensors: Sequence[torch.Tensor], batch: int, heads: int) -> tuple[tuple[int, int], ...]:
    """Strides over prompts and heads of contiguous tensors [B, H, ...], in what one head has; 0 where all share one."""
    return tuple((x.shape[1] if x.shape[0] == batch else 0, int(x.shape[1] == heads)) for x in tensors)


def knows_ptx() -> bool:
    """Whether kernels run on an NVIDIA GPU; Triton's interpreter takes a slower way round."""
    import torch
    import triton

    return torch.version.cuda is not None and not triton.knobs.runtime.interpret
