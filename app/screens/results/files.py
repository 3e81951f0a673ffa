"""Which evaluations the page offers: the shipped ones, and those that were run in this home. They hold no prompts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import streamlit as st

from routesparse.app.ui.states import wrong
from routesparse.engine.errors import ResultsError
from routesparse.engine.files.plain_files import identity
from routesparse.engine.results import evaluations
from routesparse.engine.results.evaluations import Evaluation, MethodRow


@dataclass(frozen=True)
class Offered:
    """One evaluation. key: its name in the address, with its file's, so that a file shipped later takes no link from
    another; beside: all suites of its file."""

    key: str
    label: str
    source: str
    found: Evaluation
    beside: list[Evaluation]


def offered() -> tuple[list[Offered], list[str]]:
    """What can be shown, shipped first, and what can't be read."""
    found: list[Offered] = []
    problems: list[str] = []
    sources = [("", "shipped", path) for path in evaluations.shipped()]
    sources += [(path.parent.name, "run here", path) for path in evaluations.of_home()]
    for folder, origin, path in sources:
        try:
            held = _read(str(path), identity(path))
        except ResultsError as error:
            problems.append(wrong(error))
            continue
        file = f"data/results/{path.name}" if not folder else f"evaluations/{folder}/{path.name}"
        for one in held:
            # "kept" of evaluations_kept.json
            key = f"here-{folder}" if folder else f"{path.stem.removeprefix('evaluations_')}-{one.suite}"
            taken = sum(other.key.partition("@")[0] == key for other in found)
            key += f"@{taken + 1}" if taken else ""
            what = evaluations.KINDS.get(path.name) if not folder else folder if folder != one.suite else None
            where = f"{origin} ({what})" if what else origin
            lengths = ", ".join(f"{length:,}" for length in one.lengths) or "no"
            each = "a task" if one.by_task else "a length"
            label = f"{one.suite}, {where}: {lengths} tokens, n {one.run} {each}, seed {one.seed}, model {one.model}"
            label += f" ({taken + 1})" if any(other.label == label for other in found) else ""
            found.append(Offered(key, label, file, one, held))
    return found, problems


@st.cache_data(max_entries=32, show_spinner=False)
def _read(path: str, changed: tuple[int, int] | None) -> list[Evaluation]:
    """Read once as long as the file is the same: ``changed`` is part of the cache's key."""
    return evaluations.read(Path(path))


def method_rows(found: Evaluation, rows: list[MethodRow]) -> pd.DataFrame:
    """Rows to download, one a method; what was not measured is empty."""
    values = [{**asdict(row), "tasks": None} for row in rows]
    frame = _flat(pd.json_normalize(values, sep="_").drop(columns="tasks"))
    about = {"suite": found.suite, "seed": found.seed, "devices": ", ".join(found.devices) or None}
    return frame.assign(**about)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """An estimate's columns under its own name: difference, difference_low, difference_high; lists as text."""
    estimates = {name.removesuffix("_value") for name in frame if name.endswith("_value")}
    frame = frame.drop(columns=[name for name in frame if name in estimates])
    frame = frame.rename(columns={f"{name}_value": name for name in estimates})
    lists = [name for name in frame if frame[name].map(lambda value: isinstance(value, tuple)).any()]
    return frame.assign(**{name: frame[name].map(_text) for name in lists})


def _text(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value
