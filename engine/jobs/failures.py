"""What went wrong, as a kind that pages can show and a sentence that says what to do."""

from __future__ import annotations

import errno
import sys

from routesparse.engine import errors
from routesparse.engine.jobs.job import FailureKind

# The first that fits: children before their parents.
_TYPED: tuple[tuple[type[Exception], FailureKind], ...] = (
    (errors.PromptError, "prompt"),
    (errors.UnsupportedModelError, "unsupported_model"),
    (errors.ModelError, "model"),
    (errors.CalibrationError, "calibration"),
    (errors.ProfileError, "profile"),
    (errors.ConfigError, "config"),
    (errors.BundleError, "bundle"),
    (errors.NumericsError, "numerics"),
    (errors.StoreError, "store"),
)
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# torch's allocator on a CPU raises a bare RuntimeError.
_CPU_OUT_OF_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")


def classify(error: Exception, log_id: str) -> tuple[FailureKind, str]:
    """Kind and message of a failed analysis. An unexpected error's own message stays out: it may quote the prompt."""
    if disk_is_full(error):
        if isinstance(error, errors.StoreError):
            return "disk_full", str(error)
        return "disk_full", "the disk is full; nothing half-written stays. Free space and submit again"
    if is_out_of_memory(error):
        return (
            "out_of_memory",
            "out of memory while running this prompt; shorten it, choose a smaller model, or free memory",
        )
    for kind, name in _TYPED:
        if isinstance(error, kind):
            return name, str(error)
    return (
        "unexpected",
        f"unexpected {type(error).__name__}; the worker's log has its place under id {log_id}. "
        "Please report it with that entry",
    )


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU's or the machine's memory ran out, at the root too; torch isn't imported to find out."""
    torch = sys.modules.get("torch")
    kinds: tuple[type[BaseException], ...] = (MemoryError, errors.OutOfMemoryError)
    if torch is not None:
        kinds = (*kinds, torch.OutOfMemoryError)
    while error is not None:
        if isinstance(error, kinds):
            return True
        if isinstance(error, RuntimeError) and any(part in str(error) for part in _CPU_OUT_OF_MEMORY):
            return True
        error = error.__cause__
    return False


def disk_is_full(error: BaseException | None) -> bool:
    """Also where a full disk is the cause of the error that arrived."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return True
        error = error.__cause__
    return False
