"""Vary: several values of one setting, for a sweep of one job each; every value is checked like a single one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from routesparse.app.screens.new_run import problems
from routesparse.app.screens.new_run.problems import Fix, Problem
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.request import RunRequest

_NOTHING = "nothing"
_MOST_CHARACTERS = 400


@dataclass(frozen=True)
class Varied:
    """What a sweep varies, and its values as they were entered."""

    field: str  # of RunRequest
    key: str  # of the widget with the values, and their name in the address
    label: str
    example: str
    stand_in: Any = None  # a value that fits every policy, to check the other settings while there is none
    texts: tuple[str, ...] = ()

    def leave_out(self, value: Any) -> Fix:
        """The button that takes a value out of the entered ones, a text that is none included."""
        left = [text for text in self.texts if text != value and not self._is(text, value)]
        return Fix("Leave it out", {self.key: ", ".join(left)})

    def _is(self, text: str, value: Any) -> bool:
        try:
            return sweep.value_of(self.field, text) == value
        except ConfigError:
            return False


_KINDS = {
    "price": Varied("price", "prices", "Prices", "0.25, 0.5, 1"),
    "time limit": Varied("budget", "limits", "Time limits Tℓ", "0.25, 0.5, none", problems.EXAMPLE_LIMIT),
}


def row() -> DeltaGenerator:
    """Where the choice and its values stand."""
    return st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="vary-row")


def choose() -> str | None:
    """Draw the choice of what is varied, which lives in the address; None for nothing."""
    chosen = st.segmented_control(
        "Vary",
        [_NOTHING, *_KINDS],
        key="vary",
        bind="query-params",
        default=_NOTHING,
        required=True,
        help=TERMS["sweep"],
    )
    return chosen if chosen in _KINDS else None


def values(chosen: str) -> Varied:
    """Draw the field with the values, which live in the address. chosen: what ``choose`` returned."""
    kind = _KINDS[chosen]
    typed = st.text_input(
        kind.label,
        key=kind.key,
        bind="query-params",
        placeholder=f"two to {sweep.MOST_POINTS}, such as {kind.example}",
        max_chars=_MOST_CHARACTERS,
        width="stretch",
    )
    # "800 us" is one value.
    texts = re.split(r"[,;]|\s+(?!us\b)", typed.strip())
    return replace(kind, texts=tuple(text.strip() for text in texts if text.strip()))


def requests(varied: Varied, wishes: dict[str, Any]) -> tuple[list[RunRequest], list[Problem]]:
    """A request for each value, in the order entered, and everything that is wrong with values and other settings."""
    values, found = _values(varied, wishes["policy"])
    wishes = {**wishes, varied.field: values[0] if values else varied.stand_in}
    found += problems.of_settings(wishes)
    if found:
        return [], found
    asked = sweep.with_values(RunRequest(**wishes), varied.field, values)
    # A calibration holds for one price and one limit, so that another one settles it for the whole sweep.
    wrong = next(filter(None, map(problems.of_calibration, asked)), None)
    return ([], [Problem(wrong, (problems.UNCALIBRATED,))]) if wrong else (asked, [])


def _values(varied: Varied, policy: str) -> tuple[list[Any], list[Problem]]:
    """The values as requests take them, and what is wrong with each."""
    field, nothing = varied.field, Fix("Vary nothing", {"vary": _NOTHING})
    if field == "price" and policy != "priced":
        text = f"Policy {policy} reads no price, so there is nothing to vary."
        return [], [Problem(text, (Fix("Use policy priced", {"with_policy": "priced"}), nothing))]
    values: list[Any] = []
    found = []
    for text in varied.texts[: sweep.MOST_POINTS]:
        try:
            value = sweep.value_of(field, text)
            if field == "price" and isinstance(value, float) and (wrong := problems.out_of_range(value)):
                raise ConfigError(wrong)
            alone: dict[str, Any] = {"policy": policy, "budget": problems.EXAMPLE_LIMIT, field: value}
            RunRequest(**alone)
        except ConfigError as error:
            told = problems.labelled(str(error))
            told = told if text in told else f"{text}: {told}"
            found.append(Problem(told, (varied.leave_out(text),)))
            continue
        if value in values:
            found.append(Problem(f"{text} repeats a value that stands before it; change or delete it."))
        values.append(value)
    try:
        sweep.check_size(len(varied.texts))
    except ConfigError as error:
        example = Fix(f"Use {varied.example}", {varied.key: varied.example})
        found.append(Problem(f"{varied.label}: {error}", () if varied.texts else (example, nothing)))
    return values, found
