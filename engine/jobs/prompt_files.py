"""Prompts of jobs on disk: ``prompts/<job id>.txt``, readable by the user only, written whole or not at all.

A file goes when its job is done (the text is then in the bundle, or nobody's). A failed or cancelled job's text stays
for another try until the job is deleted, unless the user did not want it kept.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection
from pathlib import Path

from routesparse.engine.errors import PromptError, StoreError
from routesparse.engine.files.plain_files import read_bounded, sync, write_synced
from routesparse.engine.prompts.text import MAX_FILE_BYTES

ORPHAN_SECONDS = 3600.0  # a file is written before its row: only old ones without a row are leftovers
_SUFFIX = ".txt"


class PromptFiles:
    """The folder of prompts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, job_id: str, content: bytes) -> None:
        """Write, flush to the disk, rename. Errors: StoreError; nothing stays then."""
        partial = self.folder / f".{job_id}.partial"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                write_synced(partial, content)
                os.rename(partial, self._file(job_id))
            except OSError:
                partial.unlink(missing_ok=True)
                raise
            sync(self.folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(
                    "the disk is full: the prompt was not kept and nothing was queued; free space and retry"
                ) from error
            raise StoreError(
                f"the prompt can't be kept in {self.folder} ({error.strerror}); check that it is writable"
            ) from error

    def read(self, job_id: str) -> bytes:
        """The bytes as submitted. Errors: PromptError when the file is gone."""
        try:
            return read_bounded(self._file(job_id), MAX_FILE_BYTES)
        except OSError as error:
            raise PromptError(
                f"the prompt of job {job_id} is gone ({error.strerror}); submit it again"
            ) from error

    def remove(self, job_id: str) -> None:
        """Delete a job's prompt, if it is there."""
        self._file(job_id).unlink(missing_ok=True)

    def names(self) -> list[str]:
        """Job ids that have a file here."""
        if not self.folder.is_dir():
            return []
        return [path.stem for path in self.folder.iterdir() if path.suffix == _SUFFIX]

    def sweep(self, names: Collection[str], known: Collection[str], needed: Collection[str]) -> None:
        """Delete the files of ``names`` that no job needs: known jobs' at once, unknown ones when they are old."""
        for name in names:
            if name in needed:
                continue
            if name in known or self._age(self._file(name)) > ORPHAN_SECONDS:
                self.remove(name)
        for partial in self.folder.glob(".*.partial"):
            if self._age(partial) > ORPHAN_SECONDS:
                partial.unlink(missing_ok=True)

    def _file(self, job_id: str) -> Path:
        return self.folder / f"{job_id}{_SUFFIX}"

    @staticmethod
    def _age(file: Path) -> float:
        try:
            return time.time() - file.stat().st_mtime
        except FileNotFoundError:
            return 0.0
