"""Which stored runs are compared, as the address says: ``compare?runs=a,b&baseline=a`` or ``compare?sweep=id``;
``other`` names the side that the map shows against the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import address, setting_words
from routesparse.engine.errors import InputError
from routesparse.engine.export.plain_text import visible
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
    uncertified_layers: int | None = None  # policy priced; None for another


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

    def letter(self, side: Side) -> str:
        """What tables call a side."""
        return ascii_uppercase[self.all.index(side)]

    def same_prompt(self, other: Side) -> bool:
        """Whether a side and the baseline are of one prompt."""
        return self.baseline.run.prompt_sha256 == other.run.prompt_sha256

    def same_model(self, other: Side) -> bool:
        """Whether a head's number means the same head in a side as in the baseline."""
        return self.baseline.run.model_revision == other.run.model_revision

    def same_segments(self, other: Side) -> bool:
        """Whether a segment's number means the same tokens in a side as in the baseline."""
        sides = (self.baseline, other)
        single = all(side.run.segments == 1 for side in sides)
        return single or len({side.settings.get("segment_tokens") for side in sides}) == 1

    def paired(self, other: Side) -> bool:
        """Whether units can be paired: the same model and prompt, cut into the same segments."""
        return self.same_model(other) and self.same_prompt(other) and self.same_segments(other)


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
    if len(sides) < 2:
        return problems
    sides = _named_apart(sides)
    baseline = _named("baseline", sides) or sides[0]
    others = [side for side in sides if side is not baseline]
    return Sides(sides, baseline, _named("other", others) or others[0], problems)


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


def _named(parameter: str, sides: list[Side]) -> Side | None:
    name = st.query_params.get(parameter, "")
    found = next((side for side in sides if name and (side.key == name or side.run.run_id == name)), None)
    if found is None:
        address.absent(parameter, name)
    return found
