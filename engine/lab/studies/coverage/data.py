"""Reading what ``measure.py`` wrote: frames of units and windows, and prompts as the calibration measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibrate.fit import PromptMeasure, UnitTruth
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.calibration.drift import KINDS
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.method.router import gate_statistic

FROZEN = ("profile", "config", "revision", "dtype")  # what all windows must share
ENDED = "not measured: the run ended before"
OF_WINDOW = ("window", "domain", "document", "document_sha256", "cluster", "tokens")


@dataclass(frozen=True)
class Measured:
    """One or more runs of the measuring. Every planned window is in ``windows`` or in ``missing``, with the reason.

    units: one row per unit with its window's domain, document, cluster and tokens; ``residual`` is g - g*.
    windows: by number.
    """

    studies: tuple[dict[str, Any], ...]
    units: pd.DataFrame
    windows: pd.DataFrame
    missing: pd.DataFrame

    def part(self, name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
        """(units, windows) of "A", "B" or "test"."""
        windows = self.windows[self.windows["part"] == name]
        return self.units[self.units["part"] == name], windows

    @property
    def config(self) -> RouterConfig:
        """What all windows were routed by."""
        return RouterConfig.from_dict(self.studies[0]["config"])

    @property
    def provenance(self) -> dict[str, Any]:
        """Commands, devices, versions and commits of the measuring, and how many windows each device measured."""
        kinds = self.windows["device"].str.split(":").str[0]
        return {
            "runs": [_origin(s) for s in self.studies],
            "windows_by_device": {str(k): int(n) for k, n in kinds.value_counts().items()},
            "missing": self.missing.groupby(["part", "domain", "tokens", "reason"])
            .size()
            .reset_index(name="windows")
            .to_dict("records")
            if len(self.missing)
            else [],
        }


def _origin(study_record: dict[str, Any]) -> dict[str, Any]:
    kept = ("created_at", "devices", "processes", "versions", "git_commit")
    plan = study_record["plan"]
    return {
        "command": study.portable(study_record["command"]),
        **{name: study_record[name] for name in kept},
        "plan": {
            "command": study.portable(plan["command"]),
            **{name: plan.get(name) for name in ("git_commit", "seed", "test_seed")},
        },
    }


def load(files: Sequence[Path]) -> Measured:
    """All files; a window that several hold counts once.

    Errors: InputError where windows were measured under different profiles, configurations or models.
    """
    studies: list[dict[str, Any]] = []
    windows: dict[tuple[str, str], dict[str, Any]] = {}
    units: list[pd.DataFrame] = []
    planned: dict[tuple[str, str], dict[str, Any]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for record in (record for path in files for _, record in read_lines(path)):
        if "windows" in record:
            planned |= {(w["part"], w["sha256"]): w for w in record.pop("windows")}
            studies.append(record)
        elif "failed" in record:
            reasons[record["part"], record["sha256"]] = record["failed"]
        elif (key := (record["part"], record["sha256"])) not in windows:
            units.append(pd.DataFrame(record.pop("units")).assign(number=len(windows)))
            windows[key] = {**record, "number": len(windows)}
    if not windows:
        raise InputError(f"no window was measured in {', '.join(map(str, files))}")
    of = pd.DataFrame(windows.values())
    for name in FROZEN:
        if of[name].nunique() > 1:
            raise InputError(
                f"the windows differ in {name}: {sorted(of[name].astype(str).unique())}; measure again"
            )
    missing = [{**w, "reason": reasons.get(key, ENDED)} for key, w in planned.items() if key not in windows]
    frame = pd.concat(units, ignore_index=True).merge(
        of[["number", "part", "device", *OF_WINDOW]], on="number"
    )
    return Measured(
        tuple(studies), _derived(frame), of.set_index("number", drop=False), pd.DataFrame(missing)
    )


def _derived(units: pd.DataFrame) -> pd.DataFrame:
    """What follows from the candidates' columns: the chosen one's statistics and truth."""
    chosen, rows = units["chosen"].to_numpy(), np.arange(len(units))
    for name, column in (("mass", "mass_all"), ("recent_mass", "recent_all"), ("true_mass", "true_all")):
        units[name] = stacked(units, column)[rows, chosen]
    units["is_sparse"] = units["chosen"] < units["dense"]
    units["gate_statistic"] = gate_statistic(units["mass"].to_numpy(), units["recent_mass"].to_numpy())
    units["target"] = gate_statistic(units["true_mass"].to_numpy(), units["recent_mass"].to_numpy())
    units["residual"] = units["gate_statistic"] - units["target"]
    return units


def stacked(units: pd.DataFrame, column: str) -> np.ndarray:
    """A column of lists as float64 [units, C]; short prompts have fewer candidates, theirs end in NaN."""
    lists = units[column].to_list()
    width = max(map(len, lists), default=0)
    return np.array([[*row, *[np.nan] * (width - len(row))] for row in lists], dtype=np.float64)


def flattened(units: pd.DataFrame, column: str) -> np.ndarray:
    """A column of lists of any lengths, one after another; units without a list are left out."""
    return np.array([value for row in units[column].dropna() for value in row], dtype=np.float64)


def measures(units: pd.DataFrame, windows: pd.DataFrame) -> list[PromptMeasure]:
    """The windows as ``calibrate.measure.MeasureWindow`` would give them, in order of number."""
    return [_measure(windows.loc[number], rows) for number, rows in units.groupby("number", sort=True)]


def _measure(window: pd.Series, rows: pd.DataFrame) -> PromptMeasure:
    names, values = descriptors(rows)
    truths = []
    for (layer, segment), unit in rows.groupby(["layer", "segment"], sort=True):
        recent = stacked(unit, "recent_all")
        errors = unit["error_all"].notna().all() if "error_all" in unit else False
        truths.append(
            UnitTruth(
                layer=int(layer),
                segment=int(segment),
                chosen=unit["chosen"].to_numpy(),
                gate_statistic=gate_statistic(stacked(unit, "mass_all"), recent),
                target=gate_statistic(stacked(unit, "true_all"), recent),
                disagreement=stacked(unit, "disagreement_all") if errors else np.zeros_like(recent),
                entropy=unit["entropy"].to_numpy(),
                error=stacked(unit, "error_all") if errors else None,
            )
        )
    return PromptMeasure(
        domain=window["domain"],
        document=window["document"],
        document_sha256=window["document_sha256"],
        sha256=window["sha256"],
        tokens=int(window["tokens"]),
        density=float(window["density"]),
        descriptor_names=names,
        descriptors=values,
        truths=tuple(truths),
    )


def descriptors(rows: pd.DataFrame) -> tuple[tuple[str, ...], np.ndarray]:
    """``drift.describe_prompt`` of one window's units."""
    mean = rows.groupby("layer", sort=True)[list(KINDS)].mean()
    names = tuple(f"{kind} {layer}" for kind in KINDS for layer in mean.index)
    return names, np.concatenate([mean[kind].to_numpy(dtype=np.float64) for kind in KINDS])
