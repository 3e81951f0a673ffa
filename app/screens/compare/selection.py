"""What is compared: stored runs, or one run's candidates under several calibrations, as the address says.

``compare?runs=a,b&baseline=a``, ``compare?sweep=id`` or ``compare?run=a&calibrations=prose,code&baseline=prose``;
``other`` names the side that the map shows against the baseline.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import identity, setting_words
from routesparse.app.ui import numbers
from routesparse.app.ui.plain_text import visible
from routesparse.engine.calibration.artifact import Calibration, load_known
from routesparse.engine.calibration.replay import NoPriceError, replay
from routesparse.engine.errors import CalibrationError, InputError
from routesparse.engine.rows import RunRow
from routesparse.engine.stats import comparison
from routesparse.engine.store import compare_queries, fallback_queries, label_queries, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 6  # that a reader may choose; a sweep has up to twice as many
_MORE = 2  # settings beyond the usual ones that may stand in a side's name
# Settings that setting_words.parts has already, and those that nobody reads as a name.
_SAID = (
    "model calibration device domain tokens prompt_name prompt_sha256 policy price tau tau_layer "
    "tau_head budget probe audit_depth calibration_mismatch profile"
)


@dataclass(frozen=True)
class Side:
    """One column of the comparison. ``key`` is its name in the address."""

    key: str
    label: str  # what tells it from the other sides, or the owner's name for it
    run: RunRow
    choices: pd.DataFrame
    settings: dict[str, Any]
    calibration: Calibration | None = None  # the one replayed; None for a stored run
    uncertified_layers: int | None = None  # policy priced; None for another and for a replay

    @property
    def kept(self) -> float | None:
        """The kept share of a run as every page means it; of a replay, which has no tail, the mean over unit bodies."""
        if self.calibration is None:
            return self.run.density
        return float(self.choices["density"].mean()) if len(self.choices) else None


@dataclass(frozen=True)
class Sides:
    """All sides, the pinned one, the one shown against it, and what could not be opened."""

    all: list[Side]
    baseline: Side
    other: Side
    problems: list[str]

    @property
    def others(self) -> list[Side]:
        """All but the baseline."""
        return [side for side in self.all if side is not self.baseline]

    @property
    def replayed(self) -> bool:
        """Whether calibrations are compared on one run, and not runs."""
        return self.baseline.calibration is not None

    def same_prompt(self, other: Side) -> bool:
        """Whether a side and the baseline are of one prompt."""
        return self.baseline.run.prompt_sha256 == other.run.prompt_sha256

    def same_segments(self, other: Side) -> bool:
        """Whether a segment's number means the same tokens in a side as in the baseline."""
        sides = (self.baseline, other)
        single = all(side.run.segments == 1 for side in sides)
        return single or len({side.settings.get("segment_tokens") for side in sides}) == 1

    def paired(self, other: Side) -> bool:
        """Whether units can be paired: the same prompt, cut into the same segments."""
        return self.same_prompt(other) and self.same_segments(other)


def names(parameter: str) -> list[str]:
    """The comma-separated names of the address, each once, at most MOST."""
    found = [name for name in st.query_params.get(parameter, "").split(",") if name]
    return list(dict.fromkeys(found))[:MOST]


def of_runs(store: OwnerView, wanted: Sequence[str]) -> Sides | list[str]:
    """Stored runs side by side, or why there are fewer than two."""
    problems, ids = [], []
    for name in wanted:
        try:
            ids.append(queries.resolve(store, name))
        except InputError as error:
            problems.append(str(error))
    ids = list(dict.fromkeys(ids))
    found = compare_queries.choices_of_runs(store, ids)
    layers = fallback_queries.layer_certificates(store, ids)
    sides = []
    for run_id in ids:
        run = queries.run(store, run_id)
        if run is None:
            continue
        missed = layers.loc[layers["run_id"] == run_id, "uncertified"]
        sides.append(
            Side(
                queries.short_id(store, run_id),
                label_queries.label(store, run_id).name or "",
                run,
                found[found["run_id"] == run_id].reset_index(drop=True),
                comparison.settings(run),
                uncertified_layers=int(missed.sum()) if len(missed) else None,
            )
        )
    return _pinned(_named_apart(sides), problems) if len(sides) > 1 else problems


def _named_apart(sides: list[Side]) -> list[Side]:
    """Sides without a name of the owner's get one from what differs: settings, else the time, else the run id.

    Where names repeat, what differs stands behind them.
    """
    words = [setting_words.parts(vars(side.run)) for side in sides]
    told = setting_words.differing(words)
    if len(set(told)) < len(told):
        table = comparison.settings_table({side.key: side.settings for side in sides})
        more = table[~table["equal"] & ~table["setting"].isin([*_SAID.split(), "quality target"])].head(_MORE)
        for row in more.to_dict("records"):
            for side, found in zip(sides, words, strict=True):
                name = str(row["setting"]).replace("_", " ")
                found[row["setting"]] = f"{name} {setting_words.value(row[side.key])}"
        told = setting_words.differing(words)
    for last in (lambda run: run.created_at[:19].replace("T", " "), lambda run: queries.label(run.run_id)):
        told = [
            text if told.count(text) == 1 else " · ".join(part for part in (text, last(side.run)) if part)
            for text, side in zip(told, sides, strict=True)
        ]
    names = [visible(side.label or text) for side, text in zip(sides, told, strict=True)]
    repeated = [names.count(name) > 1 for name in names]
    for at, (side, text) in enumerate(zip(sides, told, strict=True)):
        more = visible(text) if side.label and text else queries.label(side.run.run_id)
        sides[at] = replace(side, label=f"{names[at]} · {more}" if repeated[at] else names[at])
    return sides


def of_calibrations(store: OwnerView, run: RunRow, wanted: list[str]) -> Sides | list[str]:
    """One run's candidates under each calibration, or why there are fewer than two."""
    problems, sides = [], []
    priced = []  # calibrations of that policy, where the run has no candidate at a price
    candidates = compare_queries.candidates_of_run(store, run.run_id)
    for name in wanted:
        try:
            calibration = load_known(name, identity.owner())
            rows = replay(candidates, calibration, run.tokens, run.confidence)
        except NoPriceError:
            priced.append(name)
            continue
        except (CalibrationError, InputError) as error:
            problems.append(f"{name}: {error}.")
            continue
        problems += _unlike(calibration, run)
        settings = _calibration_settings(calibration, run)
        sides.append(Side(name, calibration.name, run, rows, settings, calibration))
    if priced:
        are = "is a calibration" if len(priced) == 1 else "are calibrations"
        problems.append(
            f"{' and '.join(priced)} {are} of the policy priced; this run is {run.policy} and scored no candidate at a "
            "price. Choose a priced run above, or analyse the prompt again under priced."
        )
    return _pinned(sides, problems) if len(sides) > 1 else problems


def _unlike(one: Calibration, run: RunRow) -> list[str]:
    """In what a calibration was made for other runs than this one."""
    found = []
    price = json.loads(run.config_json).get("price")
    if (one.gate_threshold is None) != (run.tau_layer is not None):
        found.append(
            f"Calibration {one.name} was made for another policy than this run’s, {run.policy}: shown is what its own "
            "policy would have chosen from the same scores, not what the run did."
        )
    if price is not None and one.stamp.get("price") != price:
        found.append(
            f"Calibration {one.name} was made at price {one.stamp.get('price')}, this run’s floors stand at "
            f"{price:g}: shown is the choice among this run’s candidates."
        )
    if one.model_revision != run.model_revision:
        found.append(
            f"Calibration {one.name} was made for other weights ({one.model} {one.model_revision}); its λ and δ are "
            "shown as if they fitted."
        )
    return found


def _pinned(sides: list[Side], problems: list[str]) -> Sides:
    baseline = _named("baseline", sides) or sides[0]
    others = [side for side in sides if side is not baseline]
    return Sides(sides, baseline, _named("other", others) or others[0], problems)


def _named(parameter: str, sides: list[Side]) -> Side | None:
    name = st.query_params.get(parameter, "")
    return next((side for side in sides if name and (side.key == name or side.run.run_id == name)), None)


def _calibration_settings(calibration: Calibration, run: RunRow) -> dict[str, Any]:
    delta = calibration.delta(run.tokens, run.confidence)
    return {
        "lambda": calibration.gate_threshold,
        "alpha": calibration.alpha,
        f"delta at this length, q = {run.confidence:g}": numbers.mass(delta, 4) if delta < 1 else "infinite",
        "domain": calibration.domain,
        "model revision": calibration.model_revision,
        "library": calibration.library_hash,
        "seed": calibration.seed,
        **calibration.stamp,
    }
