"""Whether this process can still use its GPU.

A kernel that fails on the device (an illegal address, a failed assertion) ends the process's CUDA context: every later
call fails with the same error, and only a new process has a new context. Running out of memory is no such failure.
"""

from __future__ import annotations

import sys


def broken_device() -> str | None:
    """What every call to this process's current GPU says now; None where it answers, or none is in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return None
