"""What New run's Quality offers: loss targets of a fitted model, prices tuned for it, or a price of one's own."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import streamlit as st

from routesparse.app.screens.new_run import problems
from routesparse.app.screens.new_run.problems import NONE
from routesparse.app.shell import identity, jobs_view, new_run_address
from routesparse.app.ui import elements
from routesparse.engine.calibration import fitted, tuned
from routesparse.engine.calibration.choose import Aim, aimed
from routesparse.engine.calibration.fitted import DEFAULT_LOSS, Fitted
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.errors import CalibrationError, ModelError
from routesparse.engine.models.files import resolve, revision_of

_LOSSES = (DEFAULT_LOSS, 0.02, 0.05)  # nats a token
_OWN = "own price"  # of a fitted model: no loss target


@dataclass(frozen=True)
class Offer:
    """losses: target of each option; none without a fit. wrong: why the fits can't be read."""

    tuned: dict[str, TunedPrice]
    fit: Fitted | None = None
    losses: tuple[float, ...] = ()
    unfitted: bool = False
    wrong: str | None = None

    @property
    def options(self) -> list[str]:
        """The first is what is taken where nothing is chosen, and no price is given."""
        return [*map(new_run_address.quality_of, self.losses), _OWN if self.losses else NONE, *self.tuned]

    def index(self) -> int:
        """Where the choice starts: a given price stays in force."""
        given = st.session_state.get("price") or st.query_params.get("price")
        start = self.options.index(_OWN) if self.losses and given else 0
        if self.losses and st.session_state.get("quality") == NONE:
            st.session_state["quality"] = self.options[start]
        return 0 if "quality" in st.session_state else start

    def aim(self, chosen: str, domain: str | None) -> tuple[float, Aim] | None:
        """The loss target that was chosen, and its price on this domain."""
        loss = next((one for one in self.losses if new_run_address.quality_of(one) == chosen), None)
        return None if loss is None or self.fit is None else (loss, aimed(self.fit, domain, loss))


def offer(model: str, fits: bool) -> Offer:
    """fits: whether a loss target may be asked for."""
    tuned_ones = {one.name: one for one in _tuned_for(model)}
    if not fits:
        return Offer(tuned_ones)
    try:
        fit = fitted.of_model(revision_of(resolve(model)[0]))
    except ModelError:  # which the prompt's size says
        return Offer(tuned_ones)
    except CalibrationError as error:  # no job would run
        return Offer(tuned_ones, wrong=f"{error}.")
    if fit is None:
        return Offer(tuned_ones, unfitted=True)
    own = new_run_address.loss_of(st.session_state.get("quality") or st.query_params.get("quality", ""))
    more = {own} if own is not None and problems.out_of_range(own) is None else set()
    others = sorted({*_LOSSES, *more} - {DEFAULT_LOSS})
    return Offer(tuned_ones, fit, (DEFAULT_LOSS, *others))


def tell(offer: Offer, named: str, aim: tuple[float, Aim] | None, price: float) -> None:
    """What a loss target's price promises and on which texts it was measured, or how a model gets a fit: one line."""
    if aim is not None and offer.fit is not None:
        elements.note(
            f"Loss target: {aim[1].says}. Fitted on {', '.join(offer.fit.domains)}, which Domain may name."
        )
    elif offer.unfitted:
        jobs_view.to_fit(f"{named} is not fitted: no loss target; price {price:g}. To fit it:", named)


def _tuned_for(model: str) -> list[TunedPrice]:
    """The prices that were tuned for this model's weights; a file that can't be read is named on page Domains."""
    found = []
    for name in tuned.known(identity.owner()):
        with contextlib.suppress(CalibrationError, ModelError):
            one = tuned.load(name, identity.owner())
            if one.model_revision == revision_of(resolve(model)[0]):
                found.append(one)
    return tuned.ordered(found)
