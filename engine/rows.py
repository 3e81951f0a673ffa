"""The records that leave the engine: plain frozen dataclasses, one per table of a run bundle.

No torch here: the web process and replays read them. ``None`` means "not measured", never 0. Every record is
keyed by (layer, global head); nothing in it depends on which device or rank produced it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Pattern = str  # the name of a family (engine/method/families), or "dense"; a bundle may hold one that is unknown here
FallbackKind = Literal["expand", "dense"]
# Of ``AuditRow.executed_error``, by the run's dtype: several times what rounding weights and output to it can cost
# (one unit in the last place each: 2^-8 bfloat16, 2^-11 float16), and what long float32 sums in another order do.
EXECUTED_TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1.6e-2}


def deviates(executed_error: float | None, dtype: str) -> bool:
    """Whether a kernel's output lies farther from the chosen plan's than rounding; False where none was compared."""
    return executed_error is not None and executed_error > EXECUTED_TOLERANCE[dtype]


Outcome = Literal["dense by fallback", "expanded", "dense by the router", "kept"]
OUTCOMES: tuple[Outcome, ...] = ("dense by fallback", "expanded", "dense by the router", "kept")


def outcome(pattern: str, fallback: object) -> Outcome:
    """How a unit ended; ``kept``: the router's sparse choice stood. The store's macro ``outcome`` says the same.

    fallback: a FallbackKind; anything else (None, or pandas' NaN) means that no certificate failed.
    """
    if fallback == "dense":
        return "dense by fallback"
    if fallback == "expand":
        return "expanded"
    return "dense by the router" if pattern == "dense" else "kept"


def is_uncertified(pattern: str, lower_mass: float | None, tau: float) -> bool:
    """Whether a unit ran sparse although its in-prompt certificate does not reach tau.

    Policy "strict" leaves units so where T_l has no time to expand, and so does a run without fallback. Pages have
    the column ``uncertified`` of the view head_choice (store/definitions.sql); a test compares the two.
    """
    return pattern != "dense" and not (lower_mass is not None and lower_mass >= tau)


def is_layer_uncertified(lower_mass: float | None, tau_layer: float | None, sparse: bool) -> bool:
    """Whether a layer with sparse units ran although its own certificate does not reach tau_layer.

    False under other policies than "priced", which certify no layer. Pages have the macro layer_uncertified.
    """
    return tau_layer is not None and sparse and not (lower_mass is not None and lower_mass >= tau_layer)


@dataclass(frozen=True)
class RunRow:
    """One analysed prompt (table run): what was asked, on what, and the totals."""

    run_id: str
    created_at: str  # ISO 8601, UTC
    model: str
    model_revision: str  # hash of the weights' header and config
    tokenizer_hash: str
    calibration: str | None
    profile: str
    policy: str
    tau: float  # what the certificate of a single head must reach; under the policy "priced" that is tau_head
    gate_threshold: float | None  # lambda; None under the policy "priced", where every unit has its own
    confidence: float  # q
    budget: str | None  # T_l as given: "0.25" of dense or "800us"
    probe_mode: str
    seed: int
    config_json: str
    prompt_name: str  # a label only, never a path
    prompt_sha256: str
    domain: str | None
    batch: int
    tokens: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    segments: int
    block_q: int
    block_k: int
    device: str
    dtype: str
    versions_json: str
    git_commit: str | None
    routed: bool  # False: the prompt is below break-even, dense ran untouched
    probe_ms: float
    index_ms: float
    route_ms: float
    kernel_ms: float
    total_ms: float  # whole prefill, first token's logits included
    dense_ms: float | None  # the same prefill with dense attention, if it was measured
    density: float | None  # kept share of the causal area, mean over units, tail included
    units: int  # routed (batch, layer, head, segment) units
    sparse_units: int
    expanded_units: int
    dense_fallback_units: int
    dense_router_units: int
    over_budget_layers: int
    audit_depth: str
    audit_rows: int  # rows per unit
    coverage: float | None  # share of selected sparse units whose audited mass >= their certified one
    mean_error: float | None  # mean relative output error over audited units
    max_error: float | None
    top1_agreement: (
        float | None
    )  # of the next token with dense attention's; only where a dense prefill ran too
    calibration_mismatch: str | None = None  # what differed from the stamp of a calibration used by force
    delta: float | None = None  # delta_q of the conformal claim; None: no calibration, or infinite
    drift_distance: float | None = None  # of the prompt's descriptors from the calibration's, drift.py
    drift_p: float | None = None  # conformal p-value of that distance
    drift_alarm: bool | None = None
    unmet_units: int | None = None  # policy strict: escalations that T_l had no time for
    logit_error: float | None = None  # ||z - z_dense|| / ||z_dense|| of the next token, as top1_agreement
    kl_nats: float | None = None  # KL(dense || routed) of the next token, as top1_agreement
    price: float | None = None  # policy "priced": RouterConfig.price
    tau_layer: float | None = None  # policy "priced": what a layer's certificate must reach
    owner: str | None = None  # a login's identity (app/shell/identity.py); None: the person at this machine
    tuned_price: str | None = None  # the quality target that set the price, by its name; None: chosen by hand
    sweep: str | None = None  # shared by the runs of one sweep (engine/jobs/sweep.py); None: a run of its own

    @property
    def speedup(self) -> float | None:
        """Dense over routed prefill, each measured once; None where either is missing."""
        return self.dense_ms / self.total_ms if self.dense_ms is not None and self.total_ms else None

    @property
    def fallback_share(self) -> float | None:
        """Units that became dense by fallback, of all; None without units."""
        return self.dense_fallback_units / self.units if self.units else None


@dataclass(frozen=True)
class LayerRow:
    """Planned against measured time of one layer's attention (table layer_run)."""

    run_id: str
    layer: int
    limit_us: float | None  # T_l
    planned_us: float  # probe + kernels as predicted by the profile
    dense_us: float  # dense attention as predicted by the profile
    probe_us: float
    index_us: float
    route_us: float
    kernel_us: float  # measured
    density: float
    over_budget: bool
    forward_error: float | None = None  # relative error against the dense forward's output, full audit only
    # Policy "priced": what the layer's certificate says of its mean retained mass over heads, at 95 % (q) for each of
    # its segments and prompts; the least of them. None where it was not certified, and where nothing ran sparse.
    lower_mass: float | None = None
    # Policy "priced": levels that the layer climbed for its certificate, the most in a segment that did not end dense.
    raised: int | None = None


@dataclass(frozen=True)
class HeadChoiceRow:
    """The decision for one routing unit (table head_choice)."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    first_token: int
    tokens: int
    body_tokens: int
    candidate: int
    pattern: str
    budget: str
    density: float  # kept share of the causal area of the body, before the tail override
    mass: float  # m-hat: mean over the routing rows
    recent_mass: float
    gate_statistic: float  # g = min(mass, recent_mass)
    lower_mass: float | None  # in-prompt certificate of the body mean; None for dense units
    conformal_lower_mass: float | None  # g - delta_q; None without a calibration that knows the family
    row_lower_mass: float | None  # row statement; None for dense units
    disagreement: float  # u
    entropy: float  # nats, mean over the probe rows
    local_band: float  # mass within the local band
    agreement: float  # 1 - total variation between recent and body rows' block distributions
    risk: float
    kernel_us: float  # predicted
    tests: int  # certificates tested, at most s
    fallback: str | None  # None | "expand" | "dense"
    reason: str
    unmet: bool | None = (
        None  # policy strict: T_l had no time for the escalation that the certificate asked for
    )
    gate_threshold: float | None = None  # lambda of this unit

    @property
    def outcome(self) -> Outcome:
        """How the unit ended."""
        return outcome(self.pattern, self.fallback)


@dataclass(frozen=True)
class CandidateScoreRow:
    """One candidate of one unit (table candidate_score): why it was or was not chosen."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    candidate: int
    pattern: str
    budget: str
    density: float
    mass: float
    recent_mass: float
    disagreement: float
    predicted_error: float | None
    risk: float
    kernel_us: float
    admissible: bool  # g >= lambda
    chosen: bool
    reason: str


@dataclass(frozen=True)
class FallbackEventRow:
    """One failed certificate and what followed (table fallback_event)."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    test: int  # 1, 2, ... s
    from_candidate: int
    lower_mass: float
    tau: float
    kind: str  # "expand" | "dense"
    to_candidate: int
    paid_us: float  # predicted kernel time added by the step
    scope: str | None = None  # whose certificate failed: "head" or "layer" (with its bound and tau)


@dataclass(frozen=True)
class AuditRow:
    """Dense-audited truth of one unit (table audit), over random body rows no other step has read."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    rows: int
    mass: float  # mean retained mass
    min_mass: float
    lower_mass: float | None
    covered: bool | None  # mass >= lower_mass; None for dense units
    mean_error: float  # ||o - o~|| / ||o||, Frobenius over the audited rows
    max_error: float  # worst row
    bound_paper: float  # largest 2 (1 - m) V_max over rows, relative to ||o||
    bound_tight: float  # largest (1 - m)(||o~|| + V_max) over rows, relative to ||o||
    violations: int  # rows whose error exceeds a bound: must be 0
    row_covered: float | None = None  # share of the audited rows with mass >= row_lower_mass
    forward_error: float | None = None  # relative error against the dense forward's output, full audit only
    # Largest ||o_run - o~|| over the audited rows, o_run what the kernel wrote and o~ what the audit rebuilt (the dense
    # output where execution made a row dense), relative to the mean norm of the values that the row read.
    executed_error: float | None = None


@dataclass(frozen=True)
class WorstRow:
    """One of the audited rows of a unit whose output is farthest off (table worst_row), and what it did not read."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    rank: int  # among the unit's audited rows by error, 0 the worst
    position: int  # key-axis position of the row: its token
    mass: float  # retained mass
    error: float  # ||o - o~|| / ||o||
    lost_blocks: bytes  # int32 little endian: the KV blocks that it lost most mass on, most first
    lost_mass: bytes  # float32 little endian: the share of the row's attention lost on each


@dataclass(frozen=True)
class BlockReadsRow:
    """What one audited unit reads of each KV block (table block_reads), and the attention that lies there.

    Means over the unit's audited rows; a cell is ``pool`` KV blocks.
    """

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    cells: int
    pool: int
    reads: (
        bytes  # uint8 [cells]: 255 times the share of pairs (later body row, key) that the chosen plan reads
    )
    mass: bytes  # float16 little endian [cells]: attention on the cell, before anything is left out
    lost: bytes  # float16 little endian [cells]: the part of it that the chosen plan does not read


@dataclass(frozen=True)
class ProbeRow:
    """The probe heatmap of one unit (table probe): block mass, float16, max-pooled along keys if large."""

    run_id: str
    batch_index: int
    layer: int
    head: int
    segment: int
    rows: int
    columns: int
    pool: int  # key blocks per heatmap column
    scale: float  # multiply the stored values by this
    positions: bytes  # int32 little endian [rows], absolute key-axis positions, sorted
    kinds: bytes  # uint8 [rows]: 0 recent, 1 routing, 2 certificate, 3 boundary
    mass: bytes  # float16 little endian [rows, columns]
    masks: bytes | None = (
        None  # uint8 [.., rows, mask_columns]: what each budget reads, packed as in engine/probe_masks.py
    )
    mask_columns: int | None = None
    mask_pool: int | None = None  # KV blocks per column of the masks


@dataclass(frozen=True)
class PromptRow:
    """The prompt, kept only where the user wants it (table prompt): text and where each block begins."""

    run_id: str
    text: str
    block_starts: bytes  # int32 little endian [n_blocks + 1], character offsets of the KV blocks
    token_starts: bytes | None = None  # int32 little endian [tokens + 1], character offsets of the tokens


@dataclass(frozen=True)
class AnswerRow:
    """A token that may come next (table answer): each side's five most probable, with their odds on both sides."""

    run_id: str
    batch_index: int
    token_id: int
    text: str | None  # None where the prompt's text is not kept
    dense: float  # probability by dense attention
    routed: float  # probability by the routed prefill
    dense_rank: int  # 1: the most probable
    routed_rank: int


@dataclass(frozen=True)
class ContinuationRow:
    """How a prompt goes on, decoded greedily from the cache of either prefill (table continuation)."""

    run_id: str
    batch_index: int
    tokens: int  # of the longer side
    same_tokens: int  # leading ones that are the same
    same_text: str | None  # of the tokens that are the same; None, like the next two, where no text is kept
    dense_text: str | None
    routed_text: str | None


@dataclass(frozen=True)
class Audited:
    """The record's rows of one layer and segment, run_id left empty."""

    units: tuple[AuditRow, ...] = ()
    worst_rows: tuple[WorstRow, ...] = ()
    block_reads: tuple[BlockReadsRow, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """Everything one run leaves behind; ``routesparse.engine.store.bundle`` writes and reads it."""

    run: RunRow
    layers: tuple[LayerRow, ...] = ()
    choices: tuple[HeadChoiceRow, ...] = ()
    candidates: tuple[CandidateScoreRow, ...] = ()
    fallbacks: tuple[FallbackEventRow, ...] = ()
    audits: tuple[AuditRow, ...] = ()
    worst_rows: tuple[WorstRow, ...] = ()
    block_reads: tuple[BlockReadsRow, ...] = ()
    probes: tuple[ProbeRow, ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    continuations: tuple[ContinuationRow, ...] = ()
    prompt: PromptRow | None = field(default=None)

    @property
    def uncertified(self) -> tuple[HeadChoiceRow, ...]:
        """The units that ran uncertified."""
        return tuple(c for c in self.choices if is_uncertified(c.pattern, c.lower_mass, self.run.tau))

    @property
    def uncertified_layers(self) -> tuple[int, ...]:
        """Policy "priced": the layers that ran although their own certificate does not reach tau_layer."""
        sparse = {choice.layer for choice in self.choices if choice.pattern != "dense"}
        tau = self.run.tau_layer
        return tuple(
            row.layer for row in self.layers if is_layer_uncertified(row.lower_mass, tau, row.layer in sparse)
        )
