"""Which evaluations the page offers: the shipped ones, and those that were run in this home. They hold no prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from routesparse.app.ui.error_words import wrong
from routesparse.engine.errors import ResultsError
from routesparse.engine.files.plain_files import identity
from routesparse.engine.results import evaluations, wording
from routesparse.engine.results.evaluations import Evaluation, Verdict


@dataclass(frozen=True)
class Offered:
    """One evaluation. key: its name in the address, with its file's, so that a file shipped later takes no link from
    another; replaced: what it is, where README cites a newer table; verdicts: over all suites of its
    file."""

    key: str
    label: str
    source: str
    replaced: str | None
    found: Evaluation
    verdicts: tuple[Verdict, ...]
    tested_on: str  # whose prompts stand behind them


def offered() -> tuple[list[Offered], list[str]]:
    """What can be shown, shipped first, and what can't be read."""
    found: list[Offered] = []
    problems: list[str] = []
    sources = [("", "shipped", path) for path in evaluations.shipped()]
    sources += [(path.parent.name, "run here", path) for path in evaluations.of_home()]
    for folder, origin, path in sources:
        try:
            held, verdicts = _read(str(path), identity(path))
        except ResultsError as error:
            problems.append(wrong(error))
            continue
        file = f"data/results/{path.name}" if not folder else f"evaluations/{folder}/{path.name}"
        for one in held:
            key = f"here-{folder}" if folder else "-".join(filter(None, [_own_name(path), one.suite]))
            taken = sum(other.key.partition("@")[0] == key for other in found)
            key += f"@{taken + 1}" if taken else ""
            what = evaluations.KINDS.get(path.name) if not folder else folder if folder != one.suite else None
            where = f"{origin} ({what})" if what else origin
            lengths = ", ".join(f"{length:,}" for length in one.lengths) or "no"
            each = "a task" if one.by_task else "a length"
            label = f"{one.suite}, {where}: {lengths} tokens, n {one.run} {each}, seed {one.seed}, model {one.model}"
            label += f" ({taken + 1})" if any(other.label == label for other in found) else ""
            replaced = what if not folder and path.name in evaluations.REPLACED else None
            tested_on = wording.tested_on(held, verdicts)
            found.append(Offered(key, label, file, replaced, one, verdicts, tested_on))
    return found, problems


def _own_name(path: Path) -> str:
    """What tells a shipped file from evaluations.json, the oldest one: "main" of evaluations_main.json."""
    return path.stem.removeprefix("evaluations").removeprefix("_")


@st.cache_data(max_entries=32, show_spinner=False)
def _read(path: str, changed: tuple[int, int] | None) -> tuple[list[Evaluation], tuple[Verdict, ...]]:
    """Read once as long as the file is the same: ``changed`` is part of the cache's key."""
    return evaluations.read(Path(path))
