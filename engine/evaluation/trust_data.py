"""Reading what ``trust_measures`` wrote: frames of units and windows, and prompts as the calibration measures them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from routesparse.engine.calibration_measures import PromptMeasure, UnitTruth
from routesparse.engine.drift import KINDS

LISTS = ("gate_all", "target_all", "disagreement_all", "error_all")


def read(stems: Sequence[Path], part: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(units, windows) of one part, "A", "B" or "test", of one or more runs of the measuring; windows count once.

    units: one row per unit with its window's domain, document, tokens; windows by number. ``residual`` is g - g*.
    """
    units, windows = [], []
    seen: set[int] = set()
    for stem in stems:
        file = stem.with_name(f"{stem.name}-{part}.parquet")
        if not file.exists():
            continue
        table = pd.read_parquet(stem.with_name(f"{stem.name}-windows.parquet"))
        table = table[(table["part"] == part) & ~table["window"].isin(seen)]
        rows = pd.read_parquet(file)
        units.append(rows[rows["window"].isin(table["window"])])
        windows.append(table)
        seen |= set(table["window"])
    found, of = pd.concat(units), pd.concat(windows).set_index("window", drop=False)
    facts = of[["window", "domain", "document", "document_sha256", "tokens"]].reset_index(drop=True)
    found = found.merge(facts, on="window").sort_values(["window", "layer", "segment", "head"])
    found["is_sparse"] = found["chosen"] < found["dense"]
    found["target"] = np.minimum(found["true_mass"], found["recent_mass"])
    found["residual"] = found["gate"] - found["target"]
    return found, of


def measures(units: pd.DataFrame, windows: pd.DataFrame) -> list[PromptMeasure]:
    """The windows as ``calibration_measures.measure_window`` would give them, in order of number."""
    return [_measure(windows.loc[number], rows) for number, rows in units.groupby("window", sort=True)]


def _measure(window: pd.Series, rows: pd.DataFrame) -> PromptMeasure:
    names, values = descriptors(rows)
    truths = []
    for (layer, segment), unit in rows.groupby(["layer", "segment"], sort=True):
        lists = {name: np.stack(unit[name].to_list()).astype(np.float32) for name in LISTS}
        truths.append(
            UnitTruth(
                layer=int(layer),
                segment=int(segment),
                chosen=unit["chosen"].to_numpy(),
                gate=lists["gate_all"],
                target=lists["target_all"],
                disagreement=lists["disagreement_all"],
                entropy=unit["entropy"].to_numpy(),
                error=lists["error_all"],
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
