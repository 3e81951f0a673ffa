"""The error tree. Every message states the value received and what to do about it.

``InputError`` and its children mean "what the user handed in is wrong": the command line prints the message
on one line and exits with 2. Anything else is a defect or a failing machine and exits with 1.
"""

import errno
import sys
from pathlib import Path
from typing import Self

# torch's allocator on a CPU raises a bare RuntimeError.
_CPU_OUT_OF_MEMORY = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
MOST_SHOWN = 160  # characters of a name in a message


class RouteSparseError(Exception):
    """Base of every error that RouteSparse raises on purpose."""


class InputError(RouteSparseError):
    """The user's input is wrong; the message says what to do. Exit code 2."""


class PromptError(InputError):
    """A prompt that cannot be analysed: empty, binary, not UTF-8, too short, longer than the model's limit."""


class ConfigError(InputError):
    """A configuration value outside its range, or two values that contradict each other."""


class ModelError(InputError):
    """A model folder that is missing, corrupt, or of an unsupported family."""


class UnsupportedModelError(ModelError):
    """A model family, cache or attention variant that would give silently wrong results."""


class CalibrationError(InputError):
    """A calibration that is unknown, corrupt, or stamped for another model, library or policy."""


class ProfileError(InputError):
    """A latency profile that is unknown, corrupt, or measured for another device or head size."""


class BundleError(InputError):
    """A run bundle with a missing file, a wrong checksum or a newer schema."""


class ResultsError(InputError):
    """A file of scores that is missing, corrupt, or of another kind."""


class StoreError(RouteSparseError):
    """The store cannot be opened or written; nothing was changed."""


class StoreDamagedError(StoreError):
    """The store's file can't be read; its runs are in their bundles. cause: the database's own words."""

    def __init__(self, message: str, database: Path, cause: str) -> None:
        super().__init__(message)
        self.database, self.cause = database, cause


class DiskFullError(StoreError, InputError):
    """No space left: what was being written is gone, everything finished is kept. Exit code 2: free some space."""


class OutOfMemoryError(RouteSparseError):
    """The memory of a GPU or of the machine ran out in a process that works for this one."""


class PatternError(RouteSparseError):
    """A pattern family that was added in one place and not in another; treating it as a known one would be wrong."""


class RankError(RouteSparseError):
    """A process of a tensor-parallel model failed; every process raises this, and none recorded the prompt."""


class NumericsError(InputError):
    """The model produced NaN or Inf; routing it would hide the defect. Exit code 2: the weights need a look."""

    @classmethod
    def in_layer(cls, layer: int, met: object, dtype: str) -> Self:
        """met: what was found and where; dtype: of Q, K and V, such as "float16", which bfloat16 outranges."""
        told = f"layer {layer}: {met}; nothing was recorded for this prompt"
        if dtype == "float16":
            told += ". float16 holds no number above 65,504: load the model in bfloat16 or float32"
        return cls(told)


def shortened(name: object) -> str:
    """A name for a message of one line: its first characters."""
    text = str(name)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def first_line(error: BaseException) -> str:
    """An error's first line without its full stop, or the error's type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether a GPU's or the machine's memory ran out, at the root too; torch isn't imported to find out."""
    torch = sys.modules.get("torch")
    kinds: tuple[type[BaseException], ...] = (MemoryError, OutOfMemoryError)
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
