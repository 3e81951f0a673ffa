"""Putting a bundle's folder into its place in the store, and back to where it came from."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle


def bring(source: Path, manifest: bundle.Manifest, place: Path, *, move: bool, keep: bool) -> None:
    """Put a bundle's folder into its place in the store; ``keep``: what is there already is the same run."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not keep:
            shutil.rmtree(place)  # left by a crash and not in the tables
        if not place.exists():
            if move and source.stat().st_dev == place.parent.stat().st_dev:
                bundle.publish(source, place)
            else:
                bundle.copy(source, manifest, place)
        if move:
            _discard(source)
    except OSError as error:
        raise StoreError(
            f"{source.name} could not be taken in ({error.strerror or error}); retry later"
        ) from error


def _discard(source: Path) -> None:
    """Delete a folder that another process may look at: it sees all of it or nothing. Errors: OSError."""
    hidden = source.with_name(f"{bundle.TEMPORARY_PREFIX}{source.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        source.rename(hidden)
    except FileNotFoundError:
        return  # it was moved, not copied, or another process has taken the same bundle
    shutil.rmtree(hidden, ignore_errors=True)


def take_back(source: Path, place: Path) -> None:
    """Move a bundle that the tables refused back to where it came from; a copy of what is still there goes."""
    try:
        if source.exists():
            shutil.rmtree(place)
        else:
            shutil.move(place, source)
    except OSError as error:
        raise StoreError(
            f"{source.name} could not be set aside ({error.strerror or error}); free space and retry"
        ) from error
