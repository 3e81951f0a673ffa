"""The records of a certificate, the bundle that ``routesparse certify`` writes: one dataclass a table, as ``rows.py``.

A certificate is no run: no routing is recorded. It says what an attention function did to one prompt, from random rows
scored exactly (``engine/certification``). ``None`` means "not measured", never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Level = Literal["broken", "differs", "within", "exact"]
LEVELS: tuple[Level, ...] = get_args(Level)  # of a verdict, the worst first
PASSED: tuple[Level, ...] = ("within", "exact")  # finite, and within what was asked
SCOPES = ("pass", "layer", "head")


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
class CertificateRecord:
    """Everything one certificate leaves behind; ``routesparse.engine.store.bundle`` writes and reads it."""

    certificate: CertificateRow
    claims: tuple[ClaimRow, ...] = ()
