"""A few rows of attention, exactly, beside what an attention function wrote in them (``routesparse certify``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from routesparse.kernels.common import runs_triton
from routesparse.kernels.exact_rows import launch, naive
from routesparse.kernels.exact_rows.naive import ExactRows, Kept
from routesparse.kernels.logits import Logits

__all__ = ["ExactRows", "Kept", "exact_rows", "joined_rows", "kernel_runs"]


def kernel_runs(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether these queries and values go to the kernels: on a GPU, with numbers and head sizes that they take."""
    return runs_triton(q) and launch.can_run(q, v)


def exact_rows(logits: Logits, v: torch.Tensor, *rest: Any, **named: Any) -> ExactRows:
    """See the naive twin; rows on the host."""
    return (launch if kernel_runs(logits.q, v) else naive).exact_rows(logits, v, *rest, **named)


def joined_rows(parts: Sequence[ExactRows]) -> ExactRows:
    """The rows of several calls, one behind the other along C."""
    found = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    return ExactRows(**{n: torch.cat(values, 2) for n, values in found.items() if values[0] is not None})
