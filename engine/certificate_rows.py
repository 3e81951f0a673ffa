"""The records of a certificate, the bundle that ``routesparse certify`` writes: one dataclass a table, as ``rows.py``.

A certificate is no run: no routing is recorded. It says what an attention function did to one prompt, from random rows
scored exactly (``engine/certification``). ``None`` means "not measured", never 0.

Rows that the caller names stand apart (``NamedRow``): nobody drew them, so they are a measurement of themselves and
bound nothing. They can make a verdict worse, never better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from routesparse.engine.store import ranges
from routesparse.engine.store.rules import one_of, text

Level = Literal["broken", "differs", "within", "exact"]
LEVELS: tuple[Level, ...] = get_args(Level)  # of a verdict, the worst first
PASSED: tuple[Level, ...] = ("within", "exact")  # finite, and within what was asked
SCOPES = ("pass", "layer", "head")
MOST_TOKEN_TEXT = 64  # characters that are kept of a named token
Verdict = Annotated[str, one_of(LEVELS)]
OfRows = Annotated[str, one_of(SCOPES)]
TokenText = Annotated[str, text(MOST_TOKEN_TEXT, lines=True)]


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

    run_id: ranges.RunId  # of this certificate; unique among runs and certificates
    created_at: ranges.Time  # ISO 8601, UTC
    function: ranges.Name  # the attention function, as transformers calls it
    # What the plan is called: a rule, the name of a mask's file; None: no plan was given.
    plan: ranges.Name | None
    model: ranges.Name
    model_revision: ranges.Name
    tokenizer_hash: ranges.Name
    prompt_name: ranges.Name  # a label only, never a path
    prompt_sha256: ranges.Name
    batch: ranges.Few
    tokens: ranges.Tokens
    layers: ranges.Dimension
    heads: ranges.Dimension
    kv_heads: ranges.Dimension
    head_dim: ranges.Few
    device: ranges.Name
    dtype: ranges.Dtype
    versions_json: ranges.Json
    git_commit: ranges.Name | None
    seed: ranges.Seed
    # The options of certify, and the router's settings where our router was certified.
    config_json: ranges.Json
    sampled_rows: ranges.Drawn  # of each head
    confidence: ranges.Fraction  # of each claim for itself
    mass_level: ranges.Fraction  # rows whose retained mass is below it are counted
    tolerance: ranges.Tolerance | None  # relative output error that a row may have; None: rounding only
    most_beyond: ranges.Fraction  # share of rows that may exceed the tolerance
    dense_layers: ranges.Steps  # layers for which the plan says nothing: they count as reading everything
    verdict: Verdict  # one of LEVELS
    sentence: ranges.Reason
    findings_json: ranges.Findings  # what stands beside the verdict, a list of sentences
    owner: ranges.Name | None = None  # as RunRow.owner

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

    run_id: ranges.RunId
    scope: OfRows  # one of SCOPES
    batch_index: ranges.Place | None  # of a head
    layer: ranges.Layer | None  # of a head or a layer
    head: ranges.Head | None  # of a head
    # Of a head: the token, among those drawn, whose output is farthest off.
    worst_position: ranges.Token | None
    rows: ranges.AllRows
    mean_error: ranges.Mass  # of min(||o - o~|| / ||o||, 1)
    mean_error_bound: ranges.Mass  # at most
    largest_error: ranges.Error  # infinite where the output is
    share_within: ranges.Mass  # at least this share of rows has at most the largest error seen
    nonfinite_rows: ranges.Rows  # with NaN or Inf
    beyond_rounding: ranges.Rows  # rows
    beyond_rounding_bound: ranges.Mass  # at most this share of rows
    beyond_tolerance: ranges.Rows | None
    beyond_tolerance_bound: ranges.Mass | None
    mass: ranges.Mass | None = None  # this and the next: of a plan; None without one
    mass_bound: ranges.Mass | None = None  # at least
    low_rows: ranges.Rows | None = None  # with a mass below mass_level
    low_rows_bound: ranges.Mass | None = None  # at most this share of rows
    hit_rate: ranges.Mass | None = None  # share of rows whose largest key the plan reads
    hit_rate_bound: ranges.Mass | None = None  # at least
    plan_error: ranges.Error | None = None  # mean relative output error of the plan in float32
    disagreement: ranges.Error | None = None  # largest distance between the function's output and the plan's
    # Where the cells that the plan reads lie (method/shape.py); None where it reads everything.
    sink_share: ranges.Mass | None = None
    local_share: ranges.Mass | None = None
    vertical_share: ranges.Mass | None = None
    slash_share: ranges.Mass | None = None
    scattered_share: ranges.Mass | None = None


@dataclass(frozen=True)
class NamedRow:
    """One token that the caller named, scored exactly in every head of every layer. Table named_row.

    Figures are of these ``rows`` alone: a measurement, no bound for others.
    """

    run_id: ranges.RunId
    label: ranges.NamedRows  # how the rows were named: "16000:16384", "last:64"; never a word of the prompt
    batch_index: ranges.Place
    position: ranges.Token  # the token
    # What it reads; None where the prompt's text is not kept.
    text: TokenText | None
    rows: ranges.AllRows  # heads of all layers
    mean_error: ranges.Mass  # of min(||o - o~|| / ||o||, 1)
    largest_error: ranges.Error  # infinite where the output is
    worst_layer: ranges.Layer  # this and the next: where the largest error is
    worst_head: ranges.Head
    nonfinite_rows: ranges.Rows
    beyond_rounding: ranges.Rows
    beyond_tolerance: ranges.Rows | None
    mass: ranges.Mass | None  # mean retained mass, and the next: of a plan; None without one
    hit_rate: ranges.Mass | None  # share of rows whose largest key the plan reads


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
