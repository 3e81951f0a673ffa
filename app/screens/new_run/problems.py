"""What keeps a job from being queued, or would make it fail later: every problem at once, each with its fix."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from routesparse.app.shell import identity, view
from routesparse.app.ui import numbers, states
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import PRICES, RouterConfig
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import resolve, revision_of
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.models.token_count import most_tokens
from routesparse.engine.profiles.limits import LeastLimit

EXAMPLE_LIMIT = "0.35"
_LABELS = {
    "tau": "τ",
    "tau_layer": "τ layer",
    "budget": "Time limit Tℓ",
    "break_even": "Break-even",
    "rope": "RoPE scaling",
    "trace": "Trace",
}


@dataclass(frozen=True)
class Fix:
    """A button, and what it writes into the form: widget key -> value."""

    label: str
    changes: dict[str, Any]


NONE = "none"  # the first of the calibrations and quality targets that are offered
UNSCALED = Fix("Run without RoPE scaling", {"rope": ""})
UNTRACED = Fix("Trace no token", {"trace": ""})
UNCALIBRATED = Fix("Run without a calibration", {"calibration": NONE})


@dataclass(frozen=True)
class Problem:
    """What is wrong, in words, and the buttons that mend it. blocks: whether nothing can be queued until then."""

    text: str
    fixes: tuple[Fix, ...] = ()
    blocks: bool = True


def of_settings(wishes: dict[str, Any]) -> list[Problem]:
    """Every setting that is wrong by itself; where none is, what is wrong about them together."""
    priced = wishes["policy"] == "priced"
    tau = RouterConfig.tau_layer if priced else RouterConfig.tau
    fixes = {
        "budget": Fix(f"Set Tℓ to {numbers.limit(EXAMPLE_LIMIT)}", {"limit": EXAMPLE_LIMIT})
        if wishes["policy"] == "strict"
        else Fix("Run without a limit", {"limit": ""}),
        "tau": Fix(f"Use {tau:.2f}", {"tau": None}),
        "price": Fix(f"Use {RouterConfig.price:g}", {"price": None}),
        "segment": Fix("Leave it to the device", {"segment": None}),
        "break_even": Fix("Let the profile predict it", {"break_even": None}),
        "rope": UNSCALED,
        "trace": UNTRACED,
    }
    segment, rows = wishes["segment"], RouterConfig.block_q
    if segment is not None and segment > 0:
        near = max(1, round(segment / rows)) * rows
        fixes["segment"] = Fix(f"Use {near:,} tokens", {"segment": near})
    found = []
    for name, fix in fixes.items():
        alone = {"policy": wishes["policy"], "budget": EXAMPLE_LIMIT, name: wishes.get(name)}
        if wishes.get(name) is not None and (text := _error(alone)):
            if name == "segment" and (segment < rows or segment % rows):
                text = (
                    f"A segment of {segment:,} tokens is not made of whole blocks: use a multiple of {rows}."
                )
            elif name == "price":
                text = out_of_range(wishes[name]) or text
            found.append(Problem(labelled(text), (fix,)))
    if wishes.get("rope") is not None and not _error({"rope": wishes["rope"], "model": wishes["model"]}):
        try:
            most_tokens(wishes["model"], RopeScaling.parse(wishes["rope"]))
        except InputError as error:
            found.append(Problem(f"{error}.", (UNSCALED,)))
    default = Fix(f"Use policy {RouterConfig.policy}", {"with_policy": RouterConfig.policy})
    if wishes["budget"] is None and _error({"policy": wishes["policy"]}):
        limited = Fix(f"Set Tℓ to {numbers.limit(EXAMPLE_LIMIT)}", {"limit": EXAMPLE_LIMIT})
        text = (
            f"Policy {wishes['policy']} needs a time limit Tℓ for each layer: a share of dense attention’s time, such "
            "as 0.35, or microseconds, such as 800us."
        )
        found.append(Problem(text, (limited, default)))
    if not found and (text := _error(wishes)):
        found.append(Problem(text, (default,)))
    return found


def scaling(model: str, text: str | None) -> RopeScaling | None:
    """The scaling that is entered; None where there is none, or one that ``of_settings`` names as a problem."""
    if text is None:
        return None
    try:
        found = RopeScaling.parse(text)
        most_tokens(model, found)
    except InputError:
        return None
    return found


def labelled(text: str) -> str:
    """An engine's message that begins with a setting's name in the code, with the name that its field has here."""
    name, _, rest = text.partition(" ")
    return f"{_LABELS.get(name, name)} {rest}"


def out_of_range(price: float) -> str | None:
    """Why a price can't be one; None where it can."""
    least, most = PRICES
    if least <= price <= most:
        return None
    return f"A price of {price:g} is out of range: use one from {least:.6f} to {most:,.0f}."


def take_fixes(tokens: int) -> tuple[Fix, ...]:
    """Buttons that use a part of the prompt."""
    return tuple(
        Fix(f"Use the {side} {tokens:,} tokens", {"take": side, "take_tokens": tokens})
        for side in ("first", "last")
    )


def of_limit(
    request: RunRequest, least: Sequence[LeastLimit], instead: tuple[Fix, ...] = ()
) -> Iterator[Problem]:
    """A time limit that the probe alone uses up: the job would fail at its first layer.

    least: by each stored profile. The worker may run on any of their devices, so all of them must say so.
    instead: buttons in place of those that set one limit.
    """
    budget = request.config().budget
    if budget is None or not least or any(limit.leaves(budget) for limit in least):
        return
    own = least[0]
    # Rounded up, and with room for at least one sparse plan.
    above = f"{int(100 * own.share * 1.5) + 1}"
    yield Problem(
        f"Tℓ {numbers.limit(str(budget))} is below what the probe takes, {numbers.micros(own.limit_us)} a layer "
        f"({numbers.share(own.share)} of dense): no plan would fit.",
        instead
        or (
            Fix(f"Set Tℓ to {above} % of dense", {"limit": f"{int(above) / 100:g}"}),
            Fix("Run without a limit", {"limit": ""}),
        ),
    )


def of_target(request: RunRequest, target: TunedPrice) -> list[Problem]:
    """Why the price that keeps a target promises nothing here; none where it does."""
    revision = revision_of(resolve(request.model)[0])
    config = target.applied(request.config(), own_segment=request.segment is not None)
    wrong = target.mismatch(revision, config)
    if wrong is None and request.rope is not None:
        wrong = (
            f"Quality {target.name} was tuned without RoPE scaling, which makes another model of this one."
        )
    if wrong is None:
        return []
    longer = Fix(f"Use segments of {target.segment:,} tokens", {"segment": target.segment})
    price = Fix(f"Use price {target.price:g} without it", {"quality": NONE, "price": target.price})
    fixes = (longer, price) if config.segment_tokens < target.segment else (price,)
    return [Problem(f"{states.wrong(wrong).rstrip('.')}.", fixes)]


def of_calibration(request: RunRequest) -> str | None:
    """Why the request's calibration does not fit its model and settings; None where it does, or there is none."""
    if request.calibration is None:
        return None
    try:
        found = load_calibration(request.calibration, identity.owner())
        revision = revision_of(resolve(request.model)[0])
        if request.rope is None:
            return found.mismatch(revision, request.config())
        if found.model_revision == revision:
            return (
                f"Calibration {found.name} was made without RoPE scaling. Scaling makes this another model; choose a "
                "calibration made with the same scaling."
            )
        # Whether it was made with this scaling is known once the model is loaded: its revision then holds both.
        return found.mismatch(found.model_revision, request.config())
    except InputError as error:
        return str(error)


def show(problems: list[Problem]) -> None:
    """All of them, those that block first, each with its buttons."""
    for place, problem in enumerate(sorted(problems, key=lambda problem: not problem.blocks)):
        if problem.blocks:
            states.field_error(problem.text)
        else:
            states.note(problem.text)
        if problem.fixes:
            with st.container(horizontal=True, gap="small", key=f"fixes-{place}"):
                for number, fix in enumerate(problem.fixes):
                    st.button(
                        fix.label,
                        key=f"fix-{place}-{number}",
                        on_click=_apply,
                        args=(fix.changes,),
                        type="secondary",
                    )


def _apply(changes: dict[str, Any]) -> None:
    """What the address decides goes there, everything else to its widget."""
    changes = dict(changes)
    if "take" in changes:
        view.write(take=changes.pop("take"))
    st.session_state.update(changes)


def _error(wishes: dict[str, Any]) -> str | None:
    try:
        RunRequest(**wishes)
    except InputError as error:
        return str(error)
    return None
