"""Where numbers come from: versions of what computed them, and the commit of this repository."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from importlib import metadata

from routesparse.engine import paths

PACKAGES = ("torch", "transformers", "triton", "numpy")


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@lru_cache(maxsize=1)
def git_commit() -> str | None:
    """The repository's commit, None outside a git checkout."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=paths.REPOSITORY, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None if result.returncode == 0 else None
