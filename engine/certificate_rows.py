"""The records of a certificate, the bundle that ``routesparse certify`` writes: one dataclass a table, as ``rows.py``.

A certificate is no run: no routing is recorded. It says what an attention function did to one prompt, from random rows
scored exactly (``engine/certification``). ``None`` means "not measured", never 0.

Rows that the caller names stand apart (``NamedRow``): nobody drew them, so they are a measurement of themselves and
bound nothing. They can make a verdict worse, never better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["broken", "differs", "within", "exact"]
LEVELS: tuple[Level, ...] = get_args(Level)  # of a verdict, the worst first
PASSED: tuple[Level, ...] = ("within", "exact")  # finite, and within what was asked
SCOPES = ("pass", "layer", "head")
MOST_TOKEN_TEXT = 64  # characters that are kept of a named token


def level_of(
    nonfinite: int, beyond_rounding: int, beyond_tolerance_bound: float | None, most_beyond: float
) -> Level:
    """The verdict that the claim of a pass leads to. beyond_tolerance_bound: None without a tolerance."""
    if nonfinite:
        return "broken"
    kept = beyond_tolerance_bound is None or beyond_tolerance_bound <= most_beyond
    if kept and not beyond_rounding:
        return "exact"
    return "within" if kept and beyond_tolerance_bound is not None else "differs"


def worst_of(levels: Iterable[Level]) -> Level:
    """The verdict where several stand side by side: that of the drawn rows, and that of each set of named ones."""
    return min(levels, key=LEVELS.index)


@dataclass(frozen=True)
class CertificateRow:
    """One certified prefill (table certificate): what was certified, on what, and the verdict."""

    run_id: str  # of this certificate; unique among runs and certificates
    created_at: str  # ISO 8601, UTC
    function: str  # the attention function, as transformers calls it
    plan: str | None  # what the plan is called: a rule, the name of a mask's file; None: no plan was given
    model: str
    model_revision: str
    tokenizer_hash: str
    prompt_name: str  # a label only, never a path
    prompt_sha256: str
    batch: int
    tokens: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    device: str
    dtype: str
    versions_json: str
    git_commit: str | None
    seed: int
    config_json: str  # the options of certify, and the router's settings where our router was certified
    sampled_rows: int  # of each head
    confidence: float  # of each claim for itself
    mass_level: float  # rows whose retained mass is below it are counted
    tolerance: float | None  # relative output error that a row may have; None: rounding only
    most_beyond: float  # share of rows that may exceed the tolerance
    dense_layers: int  # layers for which the plan says nothing: they count as reading everything
    verdict: str  # one of LEVELS
    sentence: str
    findings_json: str  # what stands beside the verdict, a list of sentences
    owner: str | None = None  # as RunRow.owner

    @property
    def subject(self) -> str:
        """What was certified, in a few words."""
        return self.function if self.plan is None else self.plan


@dataclass(frozen=True)
class ClaimRow:
    """What the random rows of one head, of a layer's heads, or of the whole pass say about all of their rows.

    Columns that end in ``_bound``, and ``share_within``, hold for all rows at the certificate's confidence, each for
    itself; the others are what was seen. Table claim.
    """

    run_id: str
    scope: str  # one of SCOPES
    batch_index: int | None  # of a head
    layer: int | None  # of a head or a layer
    head: int | None  # of a head
    worst_position: int | None  # of a head: the token, among those drawn, whose output is farthest off
    rows: int
    mean_error: float  # of min(||o - o~|| / ||o||, 1)
    mean_error_bound: float  # at most
    largest_error: float  # infinite where the output is
    share_within: float  # at least this share of rows has at most the largest error seen
    nonfinite_rows: int  # with NaN or Inf
    beyond_rounding: int  # rows
    beyond_rounding_bound: float  # at most this share of rows
    beyond_tolerance: int | None
    beyond_tolerance_bound: float | None
    mass: float | None = None  # this and the next: of a plan; None without one
    mass_bound: float | None = None  # at least
    low_rows: int | None = None  # with a mass below mass_level
    low_rows_bound: float | None = None  # at most this share of rows
    hit_rate: float | None = None  # share of rows whose largest key the plan reads
    hit_rate_bound: float | None = None  # at least
    plan_error: float | None = None  # mean relative output error of the plan in float32
    disagreement: float | None = None  # largest distance between the function's output and the plan's


@dataclass(frozen=True)
class NamedRow:
    """One token that the caller named, scored exactly in every head of every layer. Table named_row.

    Figures are of these ``rows`` alone: a measurement, no bound for others.
    """

    run_id: str
    label: str  # how the rows were named: "16000:16384", "last:64"; never a word of the prompt
    batch_index: int
    position: int  # the token
    text: str | None  # what it reads; None where the prompt's text is not kept
    rows: int  # heads of all layers
    mean_error: float  # of min(||o - o~|| / ||o||, 1)
    largest_error: float  # infinite where the output is
    worst_layer: int  # this and the next: where the largest error is
    worst_head: int
    nonfinite_rows: int
    beyond_rounding: int
    beyond_tolerance: int | None
    mass: float | None  # mean retained mass, and the next: of a plan; None without one
    hit_rate: float | None  # share of rows whose largest key the plan reads


@dataclass(frozen=True)
class NamedTotal:
    """The tokens of one label together."""

    label: str
    tokens: int
    rows: int
    mean_error: float
    nonfinite_rows: int
    beyond_rounding: int
    beyond_tolerance: int | None
    mass: float | None
    hit_rate: float | None
    worst: NamedRow  # the token of the largest error

    def level(self, most_beyond: float) -> Level:
        """``level_of`` these rows: all are scored, so the share beyond the tolerance is counted, not bounded."""
        share = None if self.beyond_tolerance is None else self.beyond_tolerance / self.rows
        return level_of(self.nonfinite_rows, self.beyond_rounding, share, most_beyond)


def totals(named: Iterable[NamedRow]) -> tuple[NamedTotal, ...]:
    """By label, in the order of their first tokens."""
    groups: dict[str, list[NamedRow]] = {}
    for row in named:
        groups.setdefault(row.label, []).append(row)
    return tuple(_total(label, rows) for label, rows in groups.items())


def _total(label: str, rows: Sequence[NamedRow]) -> NamedTotal:
    count = sum(row.rows for row in rows)

    def mean(values: Iterable[tuple[float | None, int]]) -> float | None:
        weighted = [value * of for value, of in values if value is not None]
        return sum(weighted) / count if weighted else None

    over = [row.beyond_tolerance for row in rows if row.beyond_tolerance is not None]
    return NamedTotal(
        label=label,
        tokens=len(rows),
        rows=count,
        mean_error=sum(row.mean_error * row.rows for row in rows) / count,
        nonfinite_rows=sum(row.nonfinite_rows for row in rows),
        beyond_rounding=sum(row.beyond_rounding for row in rows),
        beyond_tolerance=sum(over) if over else None,
        mass=mean((row.mass, row.rows) for row in rows),
        hit_rate=mean((row.hit_rate, row.rows) for row in rows),
        worst=max(rows, key=lambda row: row.largest_error),
    )


@dataclass(frozen=True)
class CertificateRecord:
    """Everything one certificate leaves behind; ``routesparse.engine.store.bundle`` writes and reads it."""

    certificate: CertificateRow
    claims: tuple[ClaimRow, ...] = ()
    named: tuple[NamedRow, ...] = ()
