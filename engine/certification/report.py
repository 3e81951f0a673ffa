"""What a certification says: claims by head, by layer and of the whole pass, and one verdict.

Every claim is about this pass's own Q, K and V, layer by layer: what earlier layers lost has already changed them, and
the model's answer is not looked at. It is about means, or about all rows but a small share: a rare row may lose
everything. Each claim holds at the stated confidence for itself; the verdict reads the pass's alone. Worst heads are
the worst of those that were seen, picked after the fact.

Rows that the caller named are counted in no claim. The verdict is the worst of what the drawn rows lead to and what
each set of named rows shows of itself: NaN or Inf in one of them is broken, one beyond rounding is not exact, and of a
tolerance the same share of them may be beyond as of all rows. Without that, a pass would be called exact beside a row
that was seen to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from routesparse.engine.certificate_rows import (
    PASSED,
    ClaimRow,
    Level,
    NamedRow,
    NamedTotal,
    level_of,
    totals,
    worst_of,
)
from routesparse.engine.certification import named_rows
from routesparse.engine.certification.bounds import least_mean, most_mean, most_share, share_within_largest
from routesparse.engine.config import check_settings
from routesparse.engine.method.shape import PARTS
from routesparse.engine.rounding import all_digits, at_least, at_most
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.schema import POSITIVE, Holds, Number

WORST_HEADS = 5
InnerShare = Annotated[
    float, Number(), Holds(lambda share: 0 < share < 1, "a number between 0 and 1, such as 0.95")
]


@dataclass(frozen=True)
class Settings:
    """What is asked of a certification."""

    confidence: InnerShare = 0.95
    mass_level: InnerShare = 0.5  # rows whose retained mass is below it are counted
    # Relative error of a row; None: rounding only.
    tolerance: Annotated[float, Number(POSITIVE, 1e38)] | None = None
    most_beyond: InnerShare = 0.01  # share of rows that may exceed the tolerance

    def __post_init__(self) -> None:
        """Errors: ConfigError."""
        check_settings(self)


@dataclass(frozen=True)
class Verdict:
    """level: broken (NaN or Inf), differs, within (the tolerance), exact (up to rounding, and within it)."""

    level: Level
    sentence: str
    findings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the output is finite and within what was asked."""
        return self.level in PASSED


@dataclass(frozen=True)
class Certified:
    """One certified pass: a prefill, a chunk of one, or one call of a function."""

    name: str  # the attention function, as transformers or its author calls it
    plan: str | None  # what the plan is called; None without one
    prompt: str  # hash of the token ids (of a function: of its keys), which placed the rows
    queries: int
    keys: int
    dtype: str
    device: str
    kv_heads: int
    head_dim: int
    seed: int
    settings: Settings
    layers: tuple[int, ...]
    scores: tuple[dict[str, np.ndarray], ...]  # of each layer, RowScores.numpy()
    dense_layers: tuple[
        int, ...
    ] = ()  # layers for which the plan says nothing: they count as reading everything
    plan_note: str | None = None
    places: tuple[tuple[str, range], ...] = ()  # labels of named rows, and which tokens they are here
    named_scores: tuple[dict[str, np.ndarray], ...] = ()  # of each layer, in the order of the places

    @property
    def tokens(self) -> str:
        """Which tokens this pass had queries of: "0:4096"."""
        return f"{self.keys - self.queries}:{self.keys}"

    @cached_property
    def named(self) -> tuple[NamedRow, ...]:
        """The tokens that the caller named, over all heads of all layers: a measurement of them alone."""
        if not self.named_scores:
            return ()
        tolerance = self.settings.tolerance
        return named_rows.named_tokens(self.places, self.named_scores, self.layers, self.dtype, tolerance)

    @cached_property
    def by_name(self) -> tuple[NamedTotal, ...]:
        """The same, the tokens of each label together."""
        return totals(self.named)

    @cached_property
    def run(self) -> ClaimRow:
        """Pooled over all rows, heads and layers."""
        return self._claims(_pooled(self.scores), "pass")

    @cached_property
    def by_layer(self) -> tuple[ClaimRow, ...]:
        """Pooled over the heads of each layer (and the prompts of a batch)."""
        return tuple(
            self._claims(_pooled([scores]), "layer", layer=layer)
            for layer, scores in zip(self.layers, self.scores, strict=True)
        )

    @cached_property
    def by_head(self) -> tuple[ClaimRow, ...]:
        """Of each head alone."""
        return tuple(self._heads())

    def worst_heads(self, count: int = WORST_HEADS) -> tuple[ClaimRow, ...]:
        """By mean output error, the largest first."""
        return tuple(sorted(self.by_head, key=lambda claims: -claims.mean_error)[:count])

    @cached_property
    def verdict(self) -> Verdict:
        """The pass in one sentence."""
        return _verdict(self)

    @property
    def told_dense(self) -> str | None:
        """For how many layers the plan was not used; None where it was in all."""
        if not self.dense_layers:
            return None
        return (
            f"{len(self.dense_layers)} of {len(self.layers)} layers have no plan and count as dense; the plan was not "
            "used there"
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the single rows."""
        return {
            "function": self.name,
            "plan": self.plan,
            "dense_layers": list(self.dense_layers),
            "prompt": self.prompt,
            "queries": self.queries,
            "keys": self.keys,
            "dtype": self.dtype,
            "seed": self.seed,
            "settings": asdict(self.settings),
            "verdict": {**asdict(self.verdict), "passed": self.verdict.passed},
            "run": _told(self.run),
            "layers": [_told(claims) for claims in self.by_layer],
            "named": [asdict(row) for row in self.named],
            "heads": [_told(claims) for claims in self.by_head],
        }

    def _heads(self) -> Iterable[ClaimRow]:
        for layer, scores in zip(self.layers, self.scores, strict=True):
            batch, heads, _ = scores["error"].shape
            for b in range(batch):
                for h in range(heads):
                    mine = {name: values[b, h][None] for name, values in scores.items()}
                    worst = int(mine["positions"][0, mine["error"][0].argmax()])
                    yield self._claims(mine, "head", batch_index=b, layer=layer, head=h, worst_position=worst)

    def _claims(self, scores: dict[str, np.ndarray], scope: str, **where: int) -> ClaimRow:
        return claims_of(scores, self.dtype, self.settings, scope, **where)


def claims_of(
    scores: dict[str, np.ndarray], dtype: str, settings: Settings, scope: str = "pass", **where: int
) -> ClaimRow:
    """What the rows of one pool say, without a run: scores [H, C] by name; where: batch_index, layer and so on."""
    error = 1.0 - settings.confidence
    clipped = np.minimum(scores["error"].astype(np.float64), 1.0)
    rows = clipped.size
    beyond = int((scores["deviation"] > EXECUTED_TOLERANCE[dtype]).sum())
    over = None if settings.tolerance is None else int((scores["error"] > settings.tolerance).sum())
    place: dict[str, Any] = dict.fromkeys(("batch_index", "layer", "head", "worst_position")) | where
    return ClaimRow(
        run_id="",
        scope=scope,
        **place,
        rows=rows,
        mean_error=float(clipped.mean()),
        mean_error_bound=most_mean(clipped, error),
        largest_error=float(scores["error"].max()),
        share_within=share_within_largest(rows, error),
        nonfinite_rows=int((~scores["finite"]).sum()),
        beyond_rounding=beyond,
        beyond_rounding_bound=most_share(beyond, rows, error),
        beyond_tolerance=over,
        beyond_tolerance_bound=None if over is None else most_share(over, rows, error),
        **(_plan_claims(scores, settings, error) if "mass" in scores else {}),
    )


def _plan_claims(scores: dict[str, np.ndarray], settings: Settings, error: float) -> dict[str, Any]:
    """The part of a ClaimRow that is about a plan."""
    mass, hit = np.clip(scores["mass"].astype(np.float64), 0.0, 1.0), scores["hit"]
    low = int((mass < settings.mass_level).sum())
    parts = scores["shares"].astype(np.float64)
    parts = parts[np.isfinite(parts).all(-1)]
    shares = {} if not len(parts) else dict(zip(PARTS, parts.mean(0).tolist(), strict=True))
    return {
        **{f"{part}_share": share for part, share in shares.items()},
        "mass": float(mass.mean()),
        "mass_bound": least_mean(mass, error),
        "low_rows": low,
        "low_rows_bound": most_share(low, mass.size, error),
        "hit_rate": float(hit.mean()),
        "hit_rate_bound": 1.0 - most_share(int((~hit).sum()), hit.size, error),
        "plan_error": float(scores["plan_error"].astype(np.float64).mean()),
        "disagreement": float(scores["disagreement"].max()),
    }


def _told(claims: ClaimRow) -> dict[str, Any]:
    """For JSON: what was found, and where."""
    return {name: value for name, value in asdict(claims).items() if name not in ("run_id", "scope")}


def _pooled(layers: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """[B, H, C] of every layer as [all heads, C]."""
    names = layers[0]
    return {
        name: np.concatenate([scores[name].reshape(-1, scores[name].shape[-1]) for scores in layers])
        for name in names
    }


def _verdict(found: Certified) -> Verdict:
    """The worst of what the drawn rows and each set of named ones lead to; where both are as bad, the drawn speak."""
    drawn, settings = _drawn(found), found.settings
    told = tuple(named_rows.finding(total) for total in found.by_name)
    level = worst_of([drawn.level, *(total.level(settings.most_beyond) for total in found.by_name)])
    if level == drawn.level:
        return replace(drawn, findings=(*drawn.findings, *told))
    worst = next(total for total in found.by_name if total.level(settings.most_beyond) == level)
    sentence = named_rows.sentence(worst, found.dtype, settings.tolerance, settings.most_beyond)
    return Verdict(level, sentence, (drawn.sentence, *drawn.findings, *told))


def _drawn(found: Certified) -> Verdict:
    """What the random rows alone lead to."""
    claims, settings = found.run, found.settings
    at, findings = _at(settings), _findings(found)
    beyond = claims.beyond_tolerance_bound
    level = level_of(claims.nonfinite_rows, claims.beyond_rounding, beyond, settings.most_beyond)
    if level == "broken":
        told = f"{claims.nonfinite_rows} of {claims.rows:,} sampled rows hold NaN or Inf: this attention is broken"
        return Verdict(level, told, findings)
    if level == "exact":
        return Verdict(
            level,
            f"equal to exact attention up to {found.dtype} rounding in all {claims.rows:,} sampled rows; {at} at most "
            f"{at_most(claims.beyond_rounding_bound, percent=True)} of all rows differ",
            findings,
        )
    if beyond is not None:
        told = (
            f"{claims.beyond_tolerance} of {claims.rows:,} sampled rows are off by more than {settings.tolerance:g}; "
            f"{at} at most {at_most(beyond, percent=True)} of all rows are, and "
            f"{all_digits(settings.most_beyond, percent=True)} may be"
        )
        if level == "differs" and not claims.beyond_tolerance:
            told += ": too few rows to show that; pass more rows"
        return Verdict(level, told, findings)
    return Verdict(
        level,
        f"{claims.beyond_rounding} of {claims.rows:,} sampled rows differ from exact attention by more than "
        f"{found.dtype} rounding; {at} the mean of min(relative output error, 1) is at most "
        f"{at_most(claims.mean_error_bound, 3)}",
        findings,
    )


def _findings(found: Certified) -> tuple[str, ...]:
    """What stands beside the verdict."""
    claims, settings = found.run, found.settings
    at = _at(settings)
    told = [
        f"{at} at least {at_least(claims.share_within, 3, percent=True)} of all rows have a relative output error of "
        f"at most {at_most(claims.largest_error, 3)}"
    ]
    if claims.mass is None:
        return tuple(told)
    if found.told_dense is not None:
        told.append(found.told_dense)
    if found.plan_note is not None:
        told.append(found.plan_note)
    plan: Any = claims  # its columns of a plan are there together
    told.append(
        f"the plan keeps a mean mass of {plan.mass:.3f}, and the largest key in {plan.hit_rate:.1%} of rows; {at} each "
        f"the mean mass is at least {at_least(plan.mass_bound)}, the largest key is kept in at least "
        f"{at_least(plan.hit_rate_bound, percent=True)} of rows, and at most "
        f"{at_most(plan.low_rows_bound, percent=True)} of rows keep less than {settings.mass_level:g}"
    )
    if plan.disagreement > EXECUTED_TOLERANCE[found.dtype]:
        told.append(
            "the function does not compute this plan: mass and hit rate are the plan's, the output error is the "
            f"function's, and they lie up to {plan.disagreement:.2g} apart"
        )
    return tuple(told)


def _at(settings: Settings) -> str:
    return f"at {all_digits(settings.confidence, percent=True)} confidence"
