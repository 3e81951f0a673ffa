"""What a repository keeps of an evaluation: its predictions and times, packed, so that every later run adds to them.

A folder with kept files needs no prompts to be scored, and what they hold counts as done: ``evaluate`` skips it.

    kept.jsonl.gz        one line a prediction: configuration hash, sample, seed, what scoring needs, area, times,
                         device, weights, commit
    kept_times.jsonl.gz  one line a timed prompt and configuration (timing.py)
    job.json             the job, without folders of one machine

``keep`` adds the lines of predictions.jsonl and times.jsonl that are not there yet, each time as one more gzip member,
and never changes or removes a line. Of two predictions for one configuration and prompt the kept one stays. Times of
another commit are added beside those that are there, and the last ones count: times of two sittings compare nothing,
and a configuration that did not change is timed again with those that did.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import InputError
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import key

DIGITS = 5  # of a float that is kept


def keep(job: Job) -> tuple[int, int]:
    """Add what was predicted and timed to the folder's kept files; returns how many lines each has now.

    Errors: InputError where a prediction was made from another prompt than the kept ones of its sample.
    """
    _same_prompts((*_rows(job.kept), *_rows(job.predictions)))
    found = (
        _add(job.kept, job.predictions, key),
        _add(job.kept_times, job.times, lambda row: (*key(row), row.get("git_commit"))),
    )
    dataclasses.replace(job, data=Path("data"), out=Path(".")).save_in(job.out)
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    """What was measured; not what failed."""
    found = (row for _, row in read_lines(path)) if path.exists() else ()
    return [row for row in found if "failed" not in row and "config_hash" in row]


def _same_prompts(found: Iterable[dict[str, Any]]) -> None:
    """Errors: InputError."""
    seen: dict[tuple[str, int], str] = {}
    for row in found:
        sample = row["sample_id"], row["seed"]
        if seen.setdefault(sample, row["prompt_sha256"]) != row["prompt_sha256"]:
            raise InputError(
                f"{row['sample_id']} of seed {row['seed']} was predicted from two different prompts; choose another "
                "--out"
            )


def _add(path: Path, new: Path, named: Callable[[dict[str, Any]], object]) -> int:
    """Lines that the file has afterwards. It is replaced as a whole: a torn one would lose what came before.

    named: what tells two lines apart.
    """
    there = {named(row) for row in _rows(path)}
    fresh = {named(row): row for row in _rows(new) if named(row) not in there}
    if fresh:
        ordered = sorted(fresh.values(), key=lambda row: (row["length"], row["task"], row["index"]))
        text = "".join(json.dumps(_rounded(row), separators=(",", ":")) + "\n" for row in ordered)
        before = path.read_bytes() if path.exists() else b""
        partial = path.with_suffix(".partial")
        partial.write_bytes(before + gzip.compress(text.encode(), 9, mtime=0))
        partial.replace(path)
    return len(there) + len(fresh)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x for name, x in row.items()}
