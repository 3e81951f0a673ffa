"""The settings of a new run, which live in the address, so that a link repeats them, and what is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st

from routesparse.app.screens.new_run import problems, quality, vary
from routesparse.app.screens.new_run.problems import NONE, Problem
from routesparse.app.shell import identity, model_checks, navigate
from routesparse.app.ui import elements
from routesparse.app.ui.glossary import TERMS
from routesparse.engine import paths
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import AUDIT_DEPTHS, MOST_TRACED, POLICIES, PROBE_MODES, RouterConfig
from routesparse.engine.errors import ModelError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import offered, resolve
from routesparse.engine.models.token_count import size_of
from routesparse.engine.profiles.files import stored_for

_MOST_CHARACTERS = 4_000  # two lists of a LongRoPE, with all digits
_ROPE = (
    'Rescales rotary positions for prompts beyond the model’s context: {"rope_type": "yarn", "factor": 4.0}, or linear '
    "(Position Interpolation) or longrope, written as JSON like this. It makes another model of this one: "
    "calibrations and quality targets made without it do not fit"
)
_TRACE = (
    f"Tokens whose rows are kept key by key in every head, such as 120,4071, {MOST_TRACED} at most: the page Text then "
    "draws what each reads and drops"
)
_DENSE = (
    "A second prefill with dense attention checks the next token and gives the speedup. It runs by itself where it is "
    "predicted to take less than half a minute; this runs it however long it takes"
)


@dataclass
class Settings:
    """requests: one, or with something varied one for each value; none where a setting is wrong."""

    model: str
    rope: str | None
    requests: list[RunRequest] = field(default_factory=list)
    varied: vary.Varied | None = None
    problems: list[Problem] = field(default_factory=list)
    target: TunedPrice | None = None  # a tuned price, or a loss target's: whose claim stands behind the price


def form() -> Settings:
    """Draw them."""
    grid, switches, row = st.container(), st.container(), vary.row()
    with row:
        taken = vary.choose()  # first, because it takes the place of a field of the grid
    with grid:
        one, two, three = st.columns(3)
    with one:
        models = offered()
        named = _select(
            "Model", list(models), "with_model", help="The bundled model, and those of the page Models"
        )
        model = models[named]
        if not _prepared(model):
            navigate.link("Prepare this model", "models", named=named)
        policies = sorted(POLICIES, key=lambda policy: policy != RouterConfig.policy)
        policy = _select("Policy", policies, "with_policy", help=TERMS["policy"])
        audit = _select("Audit", AUDIT_DEPTHS, "audit", index=1, help=TERMS["audit"])
        probe = _select("Probe", PROBE_MODES, "probe_mode", help=TERMS["probe"])
        trace = _text("Trace tokens", "trace", max_chars=_MOST_CHARACTERS, help=_TRACE)
    with two:
        above = st.container()  # which calibrations are offered is known once the scaling is
        limit = _text("Time limit Tℓ", "limit", taken == "time limit", help=TERMS["time_limit"])
        domain = _text("Domain", "in_domain", placeholder="unknown", help="A label to filter runs by")
        rope = _text("RoPE scaling", "rope", max_chars=_MOST_CHARACTERS, help=_ROPE)
        with above:
            calibrations = _calibrations(model, rope is not None)
            calibration = _select("Calibration", calibrations, "calibration", help=TERMS["calibration"])
    with three:
        priced, target, price, aim = policy == "priced", None, None, None
        if priced:
            # A calibration holds for its own price; where positions are rescaled the model is another one.
            offer = quality.offer(model, fits=calibration == NONE and rope is None)
            off = {"disabled": taken == "price", "help": TERMS["quality"], "index": offer.index()}
            chosen = _select("Quality", offer.options, "quality", **off)
            if taken != "price":
                target, aim = offer.tuned.get(chosen), offer.aim(chosen, domain)
        default = RouterConfig.tau_layer if priced else RouterConfig.tau
        name = "tau_layer" if priced else "tau"
        tau = _number("τ layer" if priced else "τ", "tau", 0.01, f"{default:.2f}", "%.2f", help=TERMS[name])
        if priced:
            usual = target.price if target else aim[1].price if aim else RouterConfig.price
            if target or aim:
                st.session_state["price"] = None  # the target's stands in the greyed field
            shown = "varied" if taken == "price" else f"{usual:g}"
            off = {"disabled": bool(taken == "price" or target or aim), "help": TERMS["price"]}
            price = _number("Price", "price", 0.05, shown, "%.3g", **off)
        segment = _number("Segment, tokens", "segment", 128, "by the device", help=TERMS["segment"])
        even = _number("Break-even, tokens", "break_even", 128, "predicted", help=TERMS["break_even"])
    with switches, st.container(horizontal=True, gap="large", vertical_alignment="center"):
        kept = "Off: the run holds the prompt's hash only, and its text is deleted with the job"
        keep = st.toggle("Keep the text", True, key="keep_text", bind="query-params", help=kept)
        dense = st.toggle("Always run dense too", key="dense", bind="query-params", help=_DENSE)
    wishes: dict[str, Any] = {
        "model": model,
        "policy": policy,
        "audit": audit,
        "probe": probe,
        "trace": trace,
        "calibration": None if calibration == NONE else calibration,
        "budget": limit,
        "domain": domain,
        "rope": rope,
        "tau": tau,
        "price": price,
        "segment": segment,
        "break_even": even,
        "keep_text": keep,
        "measure_dense": dense,
    }
    if target is not None:
        wishes["price"], wishes["quality"] = target.price, target.name
        elements.note(f"{target.name}: {target.says}.")
    elif priced and taken != "price":
        if aim is not None:
            wishes["loss"] = aim[0]
        elif offer.fit is not None:
            wishes["price"] = usual if price is None else price  # else the job would aim at the default loss
        quality.tell(offer, named, aim, usual if price is None else price)
    made = Settings(model, rope, target=target if aim is None else aim[1].found)
    if taken is not None:
        with row:
            made.varied = vary.values(taken)
        made.requests, made.problems = vary.requests(made.varied, wishes)
    else:
        made.problems = problems.of_settings(wishes)
        if not made.problems:
            request = RunRequest(**wishes)
            wrong = problems.of_calibration(request)
            if wrong is not None:
                request = replace(request, calibration=None)
                made.problems.append(Problem(wrong, (problems.UNCALIBRATED,)))
            made.requests = [request]
    if made.requests and made.target is not None:
        # A loss target's price is taken all the same.
        found = problems.of_target(made.requests[0], made.target)
        made.problems += [replace(one, blocks=aim is None) for one in found]
    if priced and offer.wrong is not None:
        made.problems.append(Problem(offer.wrong))
    return made


def _select(label: str, options: Any, key: str, **look: Any) -> Any:
    return st.selectbox(label, options, key=key, bind="query-params", **look)


def _text(label: str, key: str, varied: bool = False, placeholder: str = "none", **look: Any) -> str | None:
    shown = "varied" if varied else placeholder
    typed = st.text_input(label, key=key, bind="query-params", placeholder=shown, disabled=varied, **look)
    return typed.strip() or None


def _number(
    label: str, key: str, step: float, placeholder: str, format: str | None = None, **look: Any
) -> float | None:
    found: float | None = st.number_input(
        label,
        value=None,
        step=step,
        format=format,
        key=key,
        bind="query-params",
        placeholder=placeholder,
        **look,
    )
    return found


def _calibrations(model: str, rescaled: bool) -> list[str]:
    """The bundled ones, and those made here that are for this model, or that may be where positions are rescaled.
    The chosen one stays offered when a scaling is entered or cleared, so that the page says that it does not
    fit; a choice that is no longer offered would become none without a word."""
    bundled = [file.stem for file in (paths.DATA / "calibrations").glob("*.json")]
    chosen: str = st.session_state.get("calibration") or st.query_params.get("calibration", "")
    others = {chosen}.intersection(_made_for(model, not rescaled))
    return [NONE, *sorted({*bundled, *_made_for(model, rescaled), *others})]


def _made_for(model: str, rescaled: bool = False) -> list[str]:
    """The calibrations of this model's weights; none where its files are broken, which the page says elsewhere."""
    try:
        found = model_checks.calibrations_for(resolve(model)[0], identity.owner(), rescaled)
        return [one.name for one in found]
    except ModelError:
        return []


def _prepared(model: str) -> bool:
    """Whether calibrations for this model and a latency profile for its heads are there."""
    try:
        heads = size_of(model, 1).head_dim
    except ModelError:
        return False
    return bool(_made_for(model)) and bool(stored_for(heads, RouterConfig()))
