"""The field Quality of New run: a target that sets the price."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import streamlit as st

from routesparse.app.screens.new_run import problems
from routesparse.app.shell import identity
from routesparse.app.ui import states
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ModelError
from routesparse.engine.models.files import resolve, revision_of

_ASKED = "asked-quality"  # what the address named: quality and price
_UNUSED = "unused-quality"  # the one that the address named under a policy without a price


def target(model: str, varied: bool) -> TunedPrice | None:
    """The quality target that is chosen: it sets the price."""
    st.session_state.pop(_UNUSED, None)
    fitting = {one.name: one for one in _tuned_for(model)}
    _remember_what_was_asked()
    name = st.selectbox(
        "Quality",
        [problems.NO_CALIBRATION, *fitting],
        key="quality",
        bind="query-params",
        help=TERMS["quality"],
        disabled=varied,
        on_change=st.session_state.pop,
        args=(_ASKED, None),
    )
    if varied:
        return None
    if (asked := st.session_state.get(_ASKED)) is not None:
        wanted, price = asked
        _tell(wanted, price, name, fitting)
    return fitting.get(name)


def say_unused(policy: str) -> None:
    """In the place of the field under a policy that reads no price: that the address's target sets nothing."""
    if _UNUSED not in st.session_state:
        st.session_state[_UNUSED] = st.query_params.get("quality", problems.NO_CALIBRATION)
    if (wanted := st.session_state[_UNUSED]) != problems.NO_CALIBRATION:
        states.note(
            f"Quality {wanted[:80]} is not used: it sets a price, and policy {policy} reads none. Choose policy priced "
            "for it."
        )


def _remember_what_was_asked() -> None:
    """Quality and price of the address that the page was opened with, which its fields then overwrite."""
    if "quality" not in st.session_state:
        wanted = st.query_params.get("quality", problems.NO_CALIBRATION)
        price = None
        with contextlib.suppress(ValueError):
            price = float(st.query_params.get("price", ""))
        st.session_state[_ASKED] = None if wanted == problems.NO_CALIBRATION else (wanted, price)


def _tell(wanted: str, price: float | None, name: str, fitting: Mapping[str, TunedPrice]) -> None:
    """That a target of the address is gone, or sets another price now than the one that stood beside it."""
    if wanted not in fitting:
        if st.session_state.get("price") not in (None, RouterConfig.price if price is None else price):
            return  # another one was entered since
        instead = "the default price" if price is None else f"its price, {price:g},"
        states.note(f"Quality {wanted[:80]} is not here for this model: {instead} is taken instead.")
    elif name == wanted and price not in (None, fitting[name].price):
        states.note(f"Quality {name} now sets price {fitting[name].price:g}; before, it was {price:g}.")


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
    return tuned.ordered(found)
