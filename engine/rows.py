"""The records that leave the engine: plain frozen dataclasses, one per table of a run bundle.

An annotation says what a column may hold (``store/ranges.py``).
No torch here: the web process and replays read them. ``None`` means "not measured", never 0. Every record is
keyed by (layer, global head); nothing in it depends on which device or rank produced it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from routesparse.engine.store import ranges

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

    run_id: ranges.RunId
    created_at: ranges.Time  # ISO 8601, UTC
    model: ranges.Name
    model_revision: ranges.Name  # hash of the weights' header and config
    tokenizer_hash: ranges.Name
    calibration: ranges.Name | None
    profile: ranges.Name
    policy: ranges.Policy
    tau: ranges.Mass  # of a single head's certificate; under the policy "priced" that is tau_head
    gate_threshold: ranges.Mass | None  # lambda; None under the policy "priced", where every unit has its own
    confidence: ranges.Fraction  # q
    budget: ranges.Limit | None  # T_l as given: "0.25" of dense or "800us"
    probe_mode: ranges.ProbeMode
    seed: ranges.Seed
    config_json: ranges.Json
    prompt_name: ranges.Name  # a label only, never a path
    prompt_sha256: ranges.Name
    domain: ranges.Name | None
    batch: ranges.Few
    tokens: ranges.Tokens
    layers: ranges.Dimension
    heads: ranges.Dimension
    kv_heads: ranges.Dimension
    head_dim: ranges.Few
    segments: ranges.Cells
    block_q: ranges.Cells
    block_k: ranges.Cells
    device: ranges.Name
    dtype: ranges.Dtype
    versions_json: ranges.Json
    git_commit: ranges.Name | None
    routed: bool  # False: the prompt is below break-even, dense ran untouched
    probe_ms: ranges.Amount
    index_ms: ranges.Amount
    route_ms: ranges.Amount
    kernel_ms: ranges.Amount
    total_ms: ranges.Amount  # whole prefill, first token's logits included
    dense_ms: ranges.Amount | None  # the same prefill with dense attention, if it was measured
    density: ranges.Mass | None  # kept share of the causal area, mean over units, tail included
    units: ranges.Place  # routed (batch, layer, head, segment) units
    sparse_units: ranges.Place
    expanded_units: ranges.Place
    dense_fallback_units: ranges.Place
    dense_router_units: ranges.Place
    over_budget_layers: ranges.Steps
    audit_depth: ranges.AuditDepth
    audit_rows: ranges.Token  # rows per unit
    coverage: ranges.Mass | None  # share of selected sparse units whose audited mass >= their certified one
    mean_error: ranges.Amount | None  # mean relative output error over audited units
    max_error: ranges.Amount | None
    # Of the next token with dense attention's; only where a dense prefill ran too.
    top1_agreement: ranges.Mass | None
    # What differed from the stamp of a calibration used by force.
    calibration_mismatch: ranges.Reason | None = None
    delta: ranges.Mass | None = None  # delta_q of the conformal claim; None: no calibration, or infinite
    # Of the prompt's descriptors from the calibration's, drift.py.
    drift_distance: ranges.Amount | None = None
    drift_p: ranges.Mass | None = None  # conformal p-value of that distance
    drift_alarm: bool | None = None
    unmet_units: ranges.Place | None = None  # policy strict: escalations that T_l had no time for
    # ||z - z_dense|| / ||z_dense|| of the next token, as top1_agreement.
    logit_error: ranges.Amount | None = None
    kl_nats: ranges.Amount | None = None  # KL(dense || routed) of the next token, as top1_agreement
    price: ranges.Price | None = None  # policy "priced": RouterConfig.price
    tau_layer: ranges.Mass | None = None  # policy "priced": what a layer's certificate must reach
    # A login's identity (app/shell/identity.py); None: the person at this machine.
    owner: ranges.Name | None = None
    # The quality target that set the price, by its name; None: chosen by hand.
    tuned_price: ranges.Name | None = None
    # Shared by the runs of one sweep (engine/jobs/sweep.py); None: a run of its own.
    sweep: ranges.Sweep | None = None
    # Predicted loss against dense attention, in nats a token, and its upper bound at q (calibration/fitted.py).
    loss_nats: ranges.Amount | None = None
    loss_bound: ranges.Amount | None = None
    # Of what kind of texts the factor between replay and loss is; None: the model is not fitted, a stated factor.
    loss_fit: ranges.Name | None = None
    loss_alarm: bool | None = None  # the replayed rows are unlike those of the fit; None: not fitted
    loss_target: ranges.Amount | None = None  # what was asked for, nats a token
    loss_ms: ranges.Amount | None = None  # of the replay, not part of total_ms

    @property
    def loss_bounded(self) -> bool:
        """Whether the bound of the predicted loss has coverage: of a fit, for rows like those that it saw."""
        return self.why_unbounded is None

    @property
    def why_unbounded(self) -> str | None:
        """What keeps the predicted loss from a bound with coverage; None where it has one."""
        if self.loss_fit is None:
            return "the model is not fitted"
        if self.loss_alarm:
            return "rows unlike the fit’s"
        return (
            "the fit has too few texts, or is of runs routed otherwise" if self.loss_bound is None else None
        )

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

    run_id: ranges.RunId
    layer: ranges.Layer
    limit_us: ranges.Amount | None  # T_l
    planned_us: ranges.Amount  # probe + kernels as predicted by the profile
    dense_us: ranges.Amount  # dense attention as predicted by the profile
    probe_us: ranges.Amount
    index_us: ranges.Amount
    route_us: ranges.Amount
    kernel_us: ranges.Amount  # measured
    density: ranges.Mass
    over_budget: bool
    # Relative error against the dense forward's output, full audit only.
    forward_error: ranges.Amount | None = None
    # Policy "priced": what the layer's certificate says of its mean retained mass over heads, at 95 % (q) for each of
    # its segments and prompts; the least of them. None where it was not certified, and where nothing ran sparse.
    lower_mass: ranges.Bound | None = None
    # Policy "priced": levels that the layer climbed for its certificate, the most in a segment that did not end dense.
    raised: ranges.Steps | None = None


@dataclass(frozen=True)
class UnitKey:
    """The columns that a unit's tables begin with."""

    run_id: ranges.RunId
    batch_index: ranges.Place
    layer: ranges.Layer
    head: ranges.Head
    segment: ranges.Place


@dataclass(frozen=True)
class HeadChoiceRow(UnitKey):
    """The decision for one routing unit (table head_choice)."""

    first_token: ranges.Token
    tokens: ranges.Tokens
    body_tokens: ranges.Token
    candidate: ranges.Candidate
    pattern: ranges.PatternName
    budget: ranges.Budget
    density: ranges.Mass  # kept share of the causal area of the body, before the tail override
    mass: ranges.Mass  # m-hat: mean over the routing rows
    recent_mass: ranges.Mass
    gate_statistic: ranges.Mass  # g = min(mass, recent_mass)
    lower_mass: ranges.Bound | None  # in-prompt certificate of the body mean; None for dense units
    conformal_lower_mass: ranges.Bound | None  # g - delta_q; None without a calibration that knows the family
    row_lower_mass: ranges.Bound | None  # row statement; None for dense units
    disagreement: ranges.Amount  # u
    entropy: ranges.Amount  # nats, mean over the probe rows
    local_band: ranges.Mass  # mass within the local band
    agreement: ranges.Mass  # 1 - total variation between recent and body rows' block distributions
    risk: ranges.Difference
    kernel_us: ranges.Amount  # predicted
    tests: ranges.Steps  # certificates tested, at most s
    fallback: ranges.Step | None  # None | "expand" | "dense"
    reason: ranges.Reason
    # Policy strict: T_l had no time for the escalation that the certificate asked for.
    unmet: bool | None = None
    gate_threshold: ranges.Mass | None = None  # lambda of this unit
    # What the run's predicted loss owes to this head, nats a token; None where the model is not fitted.
    loss_nats: ranges.Amount | None = None
    # Where the attention of the routing rows lies (method/shape.py); they add up to 1.
    sink_share: ranges.Mass | None = None
    local_share: ranges.Mass | None = None
    vertical_share: ranges.Mass | None = None
    slash_share: ranges.Mass | None = None
    scattered_share: ranges.Mass | None = None

    @property
    def outcome(self) -> Outcome:
        """How the unit ended."""
        return outcome(self.pattern, self.fallback)


@dataclass(frozen=True)
class CandidateScoreRow(UnitKey):
    """One candidate of one unit (table candidate_score): why it was or was not chosen."""

    candidate: ranges.Candidate
    pattern: ranges.PatternName
    budget: ranges.Budget
    density: ranges.Mass
    mass: ranges.Mass
    recent_mass: ranges.Mass
    disagreement: ranges.Amount
    predicted_error: ranges.Amount | None
    risk: ranges.Difference
    kernel_us: ranges.Amount
    admissible: bool  # g >= lambda
    chosen: bool
    reason: ranges.Reason


@dataclass(frozen=True)
class FallbackEventRow(UnitKey):
    """One failed certificate and what followed (table fallback_event)."""

    test: ranges.Dimension  # 1, 2, ... s
    from_candidate: ranges.Candidate
    lower_mass: ranges.Bound
    tau: ranges.Mass
    kind: ranges.Step  # "expand" | "dense"
    to_candidate: ranges.Candidate
    paid_us: ranges.Difference  # predicted kernel time added by the step
    scope: ranges.Scope | None = None  # whose certificate failed: "head" or "layer" (with its bound and tau)


@dataclass(frozen=True)
class AuditRow(UnitKey):
    """Dense-audited truth of one unit (table audit), over random body rows no other step has read."""

    rows: ranges.Tokens
    mass: ranges.Mass  # mean retained mass
    min_mass: ranges.Mass
    lower_mass: ranges.Bound | None
    covered: bool | None  # mass >= lower_mass; None for dense units
    mean_error: ranges.Amount  # ||o - o~|| / ||o||, Frobenius over the audited rows
    max_error: ranges.Amount  # worst row
    bound_paper: ranges.Amount  # largest 2 (1 - m) V_max over rows, relative to ||o||
    bound_tight: ranges.Amount  # largest (1 - m)(||o~|| + V_max) over rows, relative to ||o||
    violations: ranges.Place  # rows whose error exceeds a bound: must be 0
    row_covered: ranges.Mass | None = None  # share of the audited rows with mass >= row_lower_mass
    # Relative error against the dense forward's output, full audit only.
    forward_error: ranges.Amount | None = None
    # Largest ||o_run - o~|| over the audited rows, o_run what the kernel wrote and o~ what the audit rebuilt (the dense
    # output where execution made a row dense), relative to the mean norm of the values that the row read.
    executed_error: ranges.ExecutedError | None = None


@dataclass(frozen=True)
class WorstRow(UnitKey):
    """One of the audited rows of a unit whose output is farthest off (table worst_row), and what it did not read."""

    rank: ranges.Token  # among the unit's audited rows by error, 0 the worst
    position: ranges.Token  # key-axis position of the row: its token
    mass: ranges.Mass  # retained mass
    error: ranges.Amount  # ||o - o~|| / ||o||
    lost_blocks: ranges.Blob4  # int32 little endian: the KV blocks that it lost most mass on, most first
    lost_mass: ranges.Blob4  # float32 little endian: the share of the row's attention lost on each


@dataclass(frozen=True)
class TracedRow(UnitKey):
    """One row that somebody chose, in one head (table traced_row): its strongest keys, most first, those that were
    dropped among them."""

    position: ranges.Token  # key-axis position of the row: its token
    mass: ranges.Mass  # retained mass, by what ran
    keys: ranges.Blob4  # int32 little endian: tokens
    weights: ranges.Blob4  # float32 little endian: the share of the row's attention on each
    read: ranges.Blob1  # uint8: 1 where the run read it


@dataclass(frozen=True)
class BlockReadsRow(UnitKey):
    """What one audited unit reads of each KV block (table block_reads), and the attention that lies there.

    Means over the unit's audited rows; a cell is ``pool`` KV blocks.
    """

    cells: ranges.Cells
    pool: ranges.Tokens
    # Uint8 [cells]: 255 times the share of pairs (later body row, key) that the chosen plan reads.
    reads: ranges.Blob1
    mass: ranges.Blob2  # float16 little endian [cells]: attention on the cell, before anything is left out
    lost: ranges.Blob2  # float16 little endian [cells]: the part of it that the chosen plan does not read


@dataclass(frozen=True)
class ProbeRow(UnitKey):
    """The probe heatmap of one unit (table probe): block mass, float16, max-pooled along keys if large."""

    rows: ranges.Few
    columns: ranges.Cells
    pool: ranges.Tokens  # key blocks per heatmap column
    scale: ranges.Scale  # multiply the stored values by this
    positions: ranges.Blob4  # int32 little endian [rows], absolute key-axis positions, sorted
    kinds: ranges.Blob1  # uint8 [rows]: 0 recent, 1 routing, 2 certificate, 3 boundary
    mass: ranges.Blob2  # float16 little endian [rows, columns]
    # Uint8 [.., rows, mask_columns]: what each budget reads, packed as in engine/probe_masks.py.
    masks: ranges.Blob1 | None = None
    mask_columns: ranges.Cells | None = None
    mask_pool: ranges.Tokens | None = None  # KV blocks per column of the masks


@dataclass(frozen=True)
class PromptRow:
    """The prompt, kept only where the user wants it (table prompt): text and where each block begins."""

    run_id: ranges.RunId
    text: ranges.Prompt
    block_starts: ranges.Blob4  # int32 little endian [n_blocks + 1], character offsets of the KV blocks
    # Int32 little endian [tokens + 1], character offsets of the tokens.
    token_starts: ranges.Blob4 | None = None


@dataclass(frozen=True)
class AnswerRow:
    """A token that may come next (table answer): each side's five most probable, with their odds on both sides."""

    run_id: ranges.RunId
    batch_index: ranges.Place
    token_id: ranges.Token
    text: ranges.Name | None  # None where the prompt's text is not kept
    dense: ranges.Mass  # probability by dense attention
    routed: ranges.Mass  # probability by the routed prefill
    dense_rank: ranges.Tokens  # 1: the most probable
    routed_rank: ranges.Tokens


@dataclass(frozen=True)
class ContinuationRow:
    """How a prompt goes on, decoded greedily from the cache of either prefill (table continuation)."""

    run_id: ranges.RunId
    batch_index: ranges.Place
    tokens: ranges.Few  # of the longer side
    same_tokens: ranges.Same  # leading ones that are the same
    # Of the tokens that are the same; None, like the next two, where no text is kept.
    same_text: ranges.Passage | None
    dense_text: ranges.Passage | None
    routed_text: ranges.Passage | None


@dataclass(frozen=True)
class LossRow:
    """A stretch of rows that ran again with exact attention over the run's keys (table loss; runtime/replay.py)."""

    run_id: ranges.RunId
    batch_index: ranges.Place
    position: ranges.Token  # of its first row
    tokens: ranges.Tokens
    replayed: ranges.Amount  # KL of the replay to the run, nats a token, mean over its rows
    dense: ranges.Amount | None  # the same of dense attention, where a dense prefill ran too


@dataclass(frozen=True)
class Audited:
    """The record's rows of one layer and segment, run_id left empty."""

    units: tuple[AuditRow, ...] = ()
    worst_rows: tuple[WorstRow, ...] = ()
    block_reads: tuple[BlockReadsRow, ...] = ()
    traced_rows: tuple[TracedRow, ...] = ()


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
    traced_rows: tuple[TracedRow, ...] = ()
    probes: tuple[ProbeRow, ...] = ()
    answers: tuple[AnswerRow, ...] = ()
    continuations: tuple[ContinuationRow, ...] = ()
    losses: tuple[LossRow, ...] = ()
    prompt: PromptRow | None = field(default=None)

    @property
    def true_loss(self) -> float | None:
        """KL of dense attention to the run at the replayed rows, nats a token; None where no dense prefill ran."""
        known = [(row.dense, row.tokens) for row in self.losses if row.dense is not None]
        if not known or len(known) < len(self.losses):
            return None
        return sum(loss * tokens for loss, tokens in known) / sum(tokens for _, tokens in known)

    @property
    def uncertified(self) -> tuple[HeadChoiceRow, ...]:
        """The units that ran without certified mass."""
        return tuple(c for c in self.choices if is_uncertified(c.pattern, c.lower_mass, self.run.tau))

    @property
    def uncertified_layers(self) -> tuple[int, ...]:
        """Policy "priced": the layers that ran although their own certificate does not reach tau_layer."""
        sparse = {choice.layer for choice in self.choices if choice.pattern != "dense"}
        tau = self.run.tau_layer
        return tuple(
            row.layer for row in self.layers if is_layer_uncertified(row.lower_mass, tau, row.layer in sparse)
        )
