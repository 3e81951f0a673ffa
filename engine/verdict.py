"""Is this run safe? One colour and one sentence for a run, by rules from its facts. No torch.

The worst finding speaks for the run, its predicted loss first among equals. Green needs a bound of that loss with
coverage, or that nothing was left out: bounds on kept mass can all hold on a run that loses the answer, measured runs
that did were not told from others by them, and the next token is one position. So 100 % coverage and zero fallbacks
make no run green, and under the policy priced heads below their bound are no finding where a loss was predicted. Nor
is a run green that was slower than dense, took far longer than predicted or was not audited, or whose text parted
from dense's in the first half of what was decoded: near-equal odds part most texts some time.

Ours, not the paper's, are the limits: KL_LIMIT is where plans began to lose answers when selection rules were compared
on look-up tasks (they lost .06 nats, plans that kept the answers less than .01), and what a predicted loss is held
against where no target was given; TIE_KL is a KL so small that another next token means that dense itself was
undecided; ERROR_LIMIT is more than twice the mean error of the bundled model's samples. One row in some 100,000 always
errs much: by 1.07 to 1.78 in every sample of 16,000 tokens and more, so ROW_ERROR_LIMIT is beyond them. Their layers
took 0.84 to 1.22 times the predicted time, and each time is that of one prefill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from routesparse.engine.config import RouterConfig
from routesparse.engine.rows import RunRecord, deviates

Level = Literal["red", "amber", "grey", "green"]
LEVELS: tuple[Level, ...] = ("red", "amber", "grey", "green")  # the worst first
SIGNS: dict[Level, str] = {"red": "✕", "amber": "!", "grey": "?", "green": "✓"}
WORDS: dict[Level, str] = {
    "red": "Not safe",
    "amber": "With care",
    "grey": "Not measured",
    "green": "No warning",
}

KL_LIMIT = 0.05  # nats, next token
TIE_KL = 0.01
ERROR_LIMIT = 0.1  # relative output error, mean over the audited units
ROW_ERROR_LIMIT = 2.0  # of the worst audited row
NOISE = 0.05  # of a prefill's time
TIME_LIMIT = 3.0  # the layers' measured time over the predicted one
# The reasons of findings that are not green, the gravest first.
WARNINGS = (
    "rows lost",
    "wrong kernel output",
    "bound violated",
    "loss too high",
    "layers below mass bound",
    "heads below mass bound",
    "next token differs",
    "loss may be too high",
    "loss unlike the fit",
    "loss not fitted",
    "next token differs, tie",
    "odds moved",
    "answer not checked",
    "text parts early",
    "large error",
    "row far off",
    "low coverage",
    "drift alarm",
    "calibration does not fit",
    "speedup lost to fallback",
    "slower than dense",
    "times far off",
    "loss not predicted",
    "not audited",
)
_ALL_KINDS = "mixed"  # a fit on all its kinds of text, calibration/fitted.py


@dataclass(frozen=True)
class Facts:
    """What the rules look at; names and units as in ``RunRow``, None where it was not measured."""

    routed: bool
    batch: int
    segments: int
    layers: int
    units: int
    stored_units: int  # whose decisions are there
    stored_layers: int  # whose rows are there
    sparse_units: int
    uncertified_units: int
    uncertified_layers: int | None
    tau: float | None  # of a head; None: the store lost it
    tau_layer: float | None
    confidence: float
    dense_fallback_units: int
    fallback_limit: float
    calibration: str | None
    calibration_mismatch: str | None
    drift_alarm: bool | None
    dtype: str
    coverage: float | None
    violations: int | None  # audited rows beyond a proven bound
    executed_error: float | None  # the largest
    mean_error: float | None
    max_error: float | None
    total_ms: float
    dense_ms: float | None
    planned_us: float | None  # of all layers
    measured_us: float | None
    top1_agreement: float | None
    kl_nats: float | None
    same_tokens: int | None  # of the continuation, from its first on
    continued_tokens: int | None
    domain: str | None
    loss_nats: float | None
    loss_true: float | None  # by dense at the replayed rows
    loss_bound: float | None
    loss_fit: str | None
    loss_alarm: bool | None
    loss_target: float | None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Facts:
        """From a mapping that has these names, and perhaps others."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @property
    def noun(self) -> str:
        """What a unit is on this run: a head, where there is one segment of one prompt."""
        return "head" if self.segments == self.batch == 1 else "unit"

    @property
    def mass_counts(self) -> bool:
        """Whether units below their bound on kept mass are a finding: not where the layers' mean alone was asked for
        and the loss itself was predicted."""
        return self.loss_nats is None or self.uncertified_layers is None


@dataclass(frozen=True)
class Finding:
    """One rule that applied: a sentence for pages, and a few words for a table's cell."""

    level: Level
    text: str
    short: str
    rule: str = ""  # ``short`` without this run's numbers, where it has any

    @property
    def reason(self) -> str:
        """The same for all runs that the rule applies to, so that they can be found by it: one of WARNINGS, if not
        green."""
        return self.rule or self.short


@dataclass(frozen=True)
class Verdict:
    """All findings of a run, the worst first."""

    findings: tuple[Finding, ...]

    @property
    def level(self) -> Level:
        return self.findings[0].level

    @property
    def sentence(self) -> str:
        return self.findings[0].text

    @property
    def short(self) -> str:
        return self.findings[0].short


def verdict(facts: Facts) -> Verdict:
    """Every rule that applies, the worst first; rules of one level in the order below."""
    if not facts.routed:
        text = "Dense attention ran untouched: nothing was left out"
        return Verdict((Finding("green", text, "dense, untouched"),))
    return Verdict(tuple(sorted(_findings(facts), key=lambda finding: LEVELS.index(finding.level))))


def of_record(record: RunRecord) -> Verdict:
    """The verdict on a run that was just made."""
    run = record.run
    compared = [row.executed_error for row in record.audits if row.executed_error is not None]
    return verdict(
        Facts.of(
            {
                **vars(run),
                "stored_units": len(record.choices),
                "stored_layers": len(record.layers),
                "uncertified_units": len(record.uncertified),
                "uncertified_layers": None if run.tau_layer is None else len(record.uncertified_layers),
                "fallback_limit": json.loads(run.config_json).get(
                    "fallback_limit", RouterConfig.fallback_limit
                ),
                "violations": sum(row.violations for row in record.audits) if record.audits else None,
                "executed_error": max(compared, default=None),
                "loss_true": record.true_loss,
                "same_tokens": min((row.same_tokens for row in record.continuations), default=None),
                "continued_tokens": max((row.tokens for row in record.continuations), default=None),
                "planned_us": sum(row.planned_us for row in record.layers),
                "measured_us": sum(
                    row.probe_us + row.index_us + row.route_us + row.kernel_us for row in record.layers
                ),
            }
        )
    )


def _findings(facts: Facts) -> Iterator[Finding]:
    lost = _lost(facts)
    if lost is not None:
        yield lost  # all other rules speak of the rows that are left
    if deviates(facts.executed_error, facts.dtype):
        text = "The kernel’s output is not that of the chosen plan: do not use this run, and report it"
        yield Finding("red", text, "wrong kernel output")
    if facts.violations:
        rows = _several(facts.violations, "audited row")
        text = f"{rows} err more than a proven bound allows: do not trust this run"
        yield Finding("red", text, "bound violated")
    predicted = _loss(facts)
    if predicted is not None:
        yield predicted
    if facts.uncertified_layers and facts.mass_counts:
        yield _below_bound(facts, facts.uncertified_layers, facts.layers, "layer")
    if facts.uncertified_units and facts.mass_counts:
        yield _below_bound(facts, facts.uncertified_units, facts.units, facts.noun)
    bounded = facts.loss_bound is not None and facts.loss_fit is not None and not facts.loss_alarm
    if facts.sparse_units and not (facts.top1_agreement is None and bounded):
        yield _answer(facts)
    same, continued = facts.same_tokens, facts.continued_tokens
    if same and continued and 2 * same < continued:  # at 0 it is the next token that differs
        after = f"after {same} of {continued} tokens"
        told = f"Decoded on, the text parts from dense’s {after}, as it may where two tokens are about equally likely"
        text = f"{told}: compare both texts in the card “The next token” of the routing map"
        yield Finding("amber", text, f"text parts {after}", "text parts early")
    if facts.mean_error is not None and facts.mean_error > ERROR_LIMIT:
        error = _percent(facts.mean_error)
        text = f"The attention outputs of audited {facts.noun}s are off by {error} on average"
        yield Finding("amber", text, f"error {error}", "large error")
    if facts.max_error is not None and facts.max_error > ROW_ERROR_LIMIT:
        error = f"{100 * facts.max_error:.0f} %"
        text = f"The worst audited row is off by {error}: read it on the page Text"
        yield Finding("amber", text, f"worst row off {error}", "row far off")
    if facts.coverage is not None and facts.coverage < facts.confidence - 1e-9:
        held = f"{_percent(facts.coverage)} of the audited certificates held"
        yield Finding("amber", f"Only {held}, {_percent(facts.confidence)} should", held, "low coverage")
    if facts.drift_alarm:
        text = f"The prompt is unlike those of calibration {facts.calibration}: ignore the conformal claim"
        yield Finding("amber", text, "drift alarm")
    if facts.calibration_mismatch:
        text = f"Calibration {facts.calibration} does not fit this run: ignore the conformal claim"
        yield Finding("amber", text, "calibration does not fit")
    if facts.units and facts.dense_fallback_units > facts.fallback_limit * facts.units:
        told = (
            f"{facts.dense_fallback_units:,} of {_several(facts.units, facts.noun)} became dense by fallback"
        )
        yield Finding("amber", f"{told}: quality is kept, the speedup is lost", "speedup lost to fallback")
    yield from _times(facts)
    if facts.sparse_units and facts.mean_error is None:
        yield Finding("grey", "No audit measured the true kept mass and the output error", "not audited")
    if facts.sparse_units and facts.loss_nats is None:
        text = "The loss over the prompt was not measured: no rows were replayed, and the next token is one position"
        yield Finding("grey", text, "loss not predicted")
    if facts.sparse_units == 0:
        yield Finding("green", f"Every {facts.noun} reads all keys: nothing was left out", "all dense")
    elif not (lost or facts.uncertified_units or facts.uncertified_layers):
        told = f"{_several(facts.sparse_units, 'sparse ' + facts.noun)} at least {_plain(facts.tau)}"
        if facts.tau_layer is not None:
            told = f"{_several(facts.layers, 'layer')} at least {_plain(facts.tau_layer)}, {told}"
        told = told.replace(" at least", " keep at least", 1)
        level = f"{100 * facts.confidence:g} % confidence, each alone"
        text = f"Kept mass is bounded with {level}: {told}, on average over rows"
        yield Finding("green", text, "kept mass bounded")


def _times(facts: Facts) -> Iterator[Finding]:
    """What a run cost beside dense and beside what was foretold."""
    dense, total = facts.dense_ms, facts.total_ms
    if dense is not None and dense < (1 - NOISE) * total:
        told = f"Slower than dense here: {total:,.0f} ms for {dense:,.0f} ms"
        yield Finding("amber", told, f"slower than dense, {dense / total:.2f}×", "slower than dense")
    planned, measured = facts.planned_us, facts.measured_us
    if planned and measured is not None and measured > TIME_LIMIT * planned:
        off = f"{measured / planned:,.0f} times"
        why = "this machine was busy or another than was profiled, so do not rely on times"
        yield Finding(
            "amber",
            f"The layers took {off} the predicted time: {why}",
            f"took {off} predicted",
            "times far off",
        )


def _lost(facts: Facts) -> Finding | None:
    counts = (
        (facts.stored_units, facts.units, "decisions", "rows"),
        (facts.stored_layers, facts.layers, "layers", "layers"),
    )
    lost = [count for count in counts if count[0] < count[1]]
    if not lost:
        return None
    left = " and ".join(f"{stored:,} of its {total:,} {noun}" for stored, total, noun, _ in lost)
    stored, total, _, noun = lost[0]
    return Finding(
        "red",
        f"Rows of this run were lost: {left} are stored, and its pages show only these. Restore a backup, or run the "
        "prompt again",
        f"{total - stored:,} of {total:,} {noun} lost",
        "rows lost",
    )


def _loss(facts: Facts) -> Finding | None:
    """The predicted loss against the target, or against KL_LIMIT; None where it was not predicted, or nothing was left
    out."""
    value, target = facts.loss_nats, facts.loss_target
    if value is None or not facts.sparse_units:
        return None
    limit = KL_LIMIT if target is None else target
    against = (
        f"{KL_LIMIT:g}, where plans began to lose answers" if target is None else f"the target {target:g}"
    )
    told = f"Predicted loss {_told(value, limit)} nats a token"
    if facts.loss_fit is None:
        told += " by a stated factor; the model is not fitted, so no coverage"
    elif facts.loss_alarm:
        told += (
            f", but the replayed rows are unlike those of the fit ({facts.loss_fit}): no bound holds for them"
        )
    elif facts.loss_bound is not None:
        most = _told(facts.loss_bound, limit)
        nearest = "" if facts.loss_fit in (facts.domain, _ALL_KINDS) else ", the nearest kind"
        told += f", at most {most} ({100 * facts.confidence:g} %, fitted on {facts.loss_fit}{nearest})"
    else:
        told += ", without a bound: the fit has too few texts, or is of runs routed otherwise"
    if facts.loss_true is not None:
        told += f"; true {_told(facts.loss_true, limit)} at the replayed rows"
    # What dense attention showed counts above what was foreseen.
    if (worst := max(value, facts.loss_true or 0.0)) > limit:
        short = f"loss {_told(worst, limit)} above {limit:g}"
        return Finding("red", f"{told}: above {against}", short, "loss too high")
    short = f"loss {_told(value, limit)}"
    if facts.loss_fit is None:
        return Finding("amber", told, f"{short}, not fitted", "loss not fitted")
    if facts.loss_bound is None or facts.loss_alarm:
        return Finding("amber", told, f"{short}, no bound", "loss unlike the fit")
    if (facts.loss_true or 0.0) > facts.loss_bound:
        missed = f"{short}, true {_told(facts.loss_true or 0.0, limit)}"
        return Finding("amber", f"{told}: beyond its bound", missed, "loss may be too high")
    short = f"{short}, ≤ {_told(facts.loss_bound, limit)}"
    if facts.loss_bound > limit:
        return Finding("amber", f"{told}: may be above {against}", short, "loss may be too high")
    return Finding("green", told if target is None else f"{told}: within {against}", short, "loss bounded")


def _told(value: float, limit: float) -> str:
    """A loss with enough digits to tell it from its limit: "0.0061", "0.010004" beside .01, "below 0.0001"."""
    if value < 5e-5 < limit:
        return "below 0.0001"
    digits = next((d for d in range(4, 9) if value == limit or round(value, d) != round(limit, d)), 9)
    return f"{value:.{digits}f}"


def _below_bound(facts: Facts, count: int, total: int, noun: str) -> Finding:
    """Red where more are missing than a bound may be wrong about anyway."""
    tau = f"τ layer {_plain(facts.tau_layer)}" if noun == "layer" else f"τ {_plain(facts.tau)}"
    told = f"{count:,} of {_several(total, noun)} {'has' if count == 1 else 'have'} a bound on kept mass below {tau}"
    short = f"{count:,} of {total:,} {noun}s: bound < τ"
    rule = f"{'layers' if noun == 'layer' else 'heads'} below mass bound"
    if count > (1 - facts.confidence) * total:
        return Finding("red", f"{told}: do not trust this run", short, rule)
    text = f"{told}: look at {'it' if count == 1 else 'them'} before you trust this run"
    return Finding("amber", text, short, rule)


def _answer(facts: Facts) -> Finding:
    if facts.top1_agreement is None:
        return Finding("amber", "Answer not compared: run the prompt with dense, too", "answer not checked")
    kl = "" if facts.kl_nats is None else f", KL {nats(facts.kl_nats)}"
    if facts.top1_agreement < 1:
        told = "Another next token than by dense"
        if facts.batch > 1:
            told += f" in {_percent(1 - facts.top1_agreement)} of the batch"
        if facts.kl_nats is not None and facts.kl_nats <= TIE_KL:
            text = f"{told}{kl}: dense itself was nearly undecided"
            return Finding("amber", text, "next token differs, tie")
        return Finding("red", f"{told}{kl}: routing changed the answer", "next token differs")
    if facts.kl_nats is not None and facts.kl_nats > KL_LIMIT:
        text = f"Next token as by dense, but the odds moved{kl}"
        return Finding("amber", text, f"odds moved{kl}", "odds moved")
    short = f"as dense{kl}".replace("below ", "< ")  # a cell has no room for more
    return Finding("green", f"Next token as by dense{kl}", short, "next token as dense")


def nats(value: float) -> str:
    """A KL with enough digits to tell it from the limits: "0.0021 nats"."""
    return f"{value:.4f} nats" if value >= 5e-5 else "below 0.0001 nats"


def _plain(value: float | None) -> str:
    return "not known" if value is None else f"{value:g}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _several(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
