"""The files that ``tuning_windows.py`` appends to, read back: JSON lines, headers and rows, that people may edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.calibration.checks import RoundedShare, check_stamp
from routesparse.engine.config import Price
from routesparse.engine.errors import CalibrationError, shortened
from routesparse.engine.schema import Count, Object, Positive, Real, Share, Text, checked, in_file

# Of all headers whose rows are used together. profile: of routing, and a digest of its costs; older files have none.
SAME = ("revision", "dtype", "library_hash", "stamp", "tokens", "seed", "profile")
WINDOW = ("domain", "cluster", "index", "sha256")  # of a row: what names its window
MEASURED = ("kl", "agreement", "nats", "nats_dense", "area")  # a row's results, finite


@in_file(more=True)
@dataclass(frozen=True)
class Named:
    """A row of a window that failed."""

    domain: Text
    document: Text
    document_sha256: Text
    cluster: Text
    split: Literal["calibration", "test"]
    index: Count
    price: Price
    sha256: Text = "unknown"
    seed: Count = 0
    answer_tokens: Positive = 1


@in_file(more=True)
@dataclass(frozen=True, kw_only=True)
class Measured(Named):
    """A row of a window."""

    kl: Real
    agreement: Share
    nats: Real
    nats_dense: Real
    area: RoundedShare


@in_file(more=True)
@dataclass(frozen=True)
class Header:
    """What rows were measured with."""

    model: Text
    revision: Text
    dtype: Text
    device: Text
    library_hash: Text
    command: Text
    stamp: Object
    tokens: Positive
    seed: Count
    git_commit: Text | None


def read_measured(
    files: Sequence[Path], tell: Callable[[str], object] = lambda _: None
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows, and the headers of all files. Lines that were cut off are left out; ``tell`` gets how many.

    Errors: InputError for what can't be read; CalibrationError for a value that means nothing, or several settings.
    """
    rows: list[dict[str, Any]] = []
    headers: list[dict[str, Any]] = []
    for path in files:
        for number, value in read_lines(path, tell):
            try:
                kind = headers if isinstance(value, dict) and "stamp" in value else rows
                if kind is headers:
                    check_stamp(checked(Header, value).stamp, "stamp")
                else:
                    checked(Named if isinstance(value, dict) and "failed" in value else Measured, value)
            except ValueError as error:
                raise CalibrationError(
                    f"line {number} of {shortened(path)}: {error}; measure again"
                ) from None
            kind.append(value)
    if not headers:
        told = ", ".join(str(path) for path in files)
        raise CalibrationError(
            f"nothing is measured{f' in {told}' if told else ''} yet; pass --prompts first"
        )
    for name in SAME:
        if any(header.get(name) != headers[0].get(name) for header in headers):
            raise CalibrationError(
                f"these rows were measured with different {name}; pass files of one setting"
            )
    seed = headers[0]["seed"]
    if any(row.get("seed", seed) != seed for row in rows):
        raise CalibrationError("these rows were measured with different seed; pass files of one setting")
    return rows, headers
