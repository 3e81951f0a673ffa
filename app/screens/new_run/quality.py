"""The field Quality of New run: a target that sets the price."""

from __future__ import annotations

import contextlib

import streamlit as st

from routesparse.app.screens.new_run import problems
from routesparse.app.shell import identity
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.errors import CalibrationError, ModelError
from routesparse.engine.models.files import resolve, revision_of


def target(model: str, varied: bool) -> TunedPrice | None:
    """The quality target that is chosen: it sets the price."""
    fitting = {one.name: one for one in _tuned_for(model)}
    name = st.selectbox(
        "Quality",
        [problems.NO_CALIBRATION, *fitting],
        key="quality",
        bind="query-params",
        help=TERMS["quality"],
        disabled=varied,
    )
    return None if varied else fitting.get(name)


def of_length(model: str, tokens: int) -> list[problems.Problem]:
    """That the target says nothing of so long a prompt, where it does not; the price is used all the same."""
    name = st.session_state.get("quality")
    told = [one.beyond(tokens) for one in _tuned_for(model) if one.name == name]
    return [
        problems.Problem(f"{text}: the target says nothing of it.", blocks=False) for text in told if text
    ]


def _tuned_for(model: str) -> list[TunedPrice]:
    """The prices that were tuned for this model's weights; a file that can't be read is named on page Calibration."""
    found = []
    for name in tuned.known(identity.owner()):
        with contextlib.suppress(CalibrationError, ModelError):
            one = tuned.load(name, identity.owner())
            if one.model_revision == revision_of(resolve(model)[0]):
                found.append(one)
    return found
