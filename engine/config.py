"""RouterConfig: the paper's symbols with plain names, validated where they are made.

Units stand in the names. The symbols in the comments are those of the paper (sections 3.1 to 3.5); engine/README.md
has them as a table.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from routesparse.engine.errors import ConfigError
from routesparse.engine.schema import POSITIVE, FieldError, Holds, Number, Share, Whole, check_fields, checked

Policy = Literal["priced", "certified", "budgeted", "strict"]
ProbeMode = Literal["exact", "pooled"]
AuditDepth = Literal["none", "rows", "full"]
Launch = Literal["fused", "grouped", "per_head"]
SolverName = Literal["greedy", "device"]
BoundName = Literal["betting", "bernstein"]

POLICIES: tuple[Policy, ...] = ("priced", "certified", "budgeted", "strict")
PROBE_MODES: tuple[ProbeMode, ...] = ("exact", "pooled")
AUDIT_DEPTHS: tuple[AuditDepth, ...] = ("none", "rows", "full")
# At this price the KL to dense was .003 to .008 nats a token from 8,192 to 131,072 tokens (development windows).
DEFAULT_PRICE = 0.5
PRICES = (1e-6, 1e6)  # least and most: floors stay numbers, and levels apart
MAX_TOKENS = 2**24  # more than any model reads
MAX_SEED = 2**63 - 1  # what bundles and the store hold
MOST_WEIGHT = 1e6  # of alpha and beta: a risk stays a number
MOST_ROWS = 2**16  # of each kind of probed rows
MOST_TESTS = 1_000  # more than a head has candidates
MOST_BUDGET = 1e12
MOST_HEAD_FLOOR = 5.0
Price = Annotated[float, Number(*PRICES)]
Weight = Annotated[float, Number(0.0, MOST_WEIGHT)]
HeadFloors = tuple[tuple[Annotated[float, Number(-MOST_HEAD_FLOOR, MOST_HEAD_FLOOR)], ...], ...]  # [L][H]
Confidence = Annotated[float, Number(0.5, 0.9999)]
Tokens = Annotated[int, Whole(0, MAX_TOKENS)]
Rows = Annotated[int, Whole(1, MOST_ROWS)]
Seed = Annotated[int, Whole(0, MAX_SEED)]
BlockSize = Annotated[
    int, Whole(16, MAX_TOKENS), Holds(lambda rows: rows & (rows - 1) == 0, "a power of two of at least 16")
]


@dataclass(frozen=True)
class LatencyBudget:
    """T_l, the latency limit of one layer: microseconds, or a fraction of the layer's dense attention time."""

    value: Annotated[float, Number(POSITIVE, MOST_BUDGET)]
    unit: Literal["fraction", "us"]

    def __post_init__(self) -> None:
        advice = "; pass a fraction of dense such as 0.25, or microseconds a layer such as 800us"
        with _as_config_error("budget", advice):
            check_fields(self)
        if self.unit == "fraction" and self.value > 2.0:
            raise ConfigError(f"budget {self.value:g} times dense; for microseconds write {self.value:g}us")

    @classmethod
    def parse(cls, text: str) -> LatencyBudget:
        """'0.25' is a quarter of dense attention's time, '800us' is 800 microseconds a layer.

        Errors: ConfigError for anything else, zero and negative values included.
        """
        match = re.fullmatch(r"\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(us)?\s*", text)
        if match is None:
            raise ConfigError(
                f"budget {text!r} is not understood; pass a fraction like 0.25 or a time like 800us"
            )
        return cls(float(match[1]), "us" if match[2] else "fraction")

    def limit_us(self, dense_us: float) -> float:
        """The limit in microseconds for a layer whose dense attention takes dense_us."""
        return self.value if self.unit == "us" else self.value * dense_us

    def __str__(self) -> str:
        return f"{self.value:g}us" if self.unit == "us" else f"{self.value:g}"


MOST_TRACED = 16  # rows of a run that are kept key by key


def default_segment(on_gpu: bool) -> int:
    """Tokens of a segment where nobody names them: deciding costs a GPU by the segment and a CPU by the token."""
    return 131_072 if on_gpu else 16_384


def parse_trace(text: str | None) -> tuple[int, ...]:
    """Tokens as people name them, "120,4071". Errors: ConfigError."""
    parts = [] if text is None or not text.strip() else text.split(",")
    if len(parts) > MOST_TRACED or not all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        raise ConfigError(
            f"trace {str(text)[:40]!r} names no tokens; pass at most {MOST_TRACED} numbers, such as 120,4071"
        )
    return tuple(sorted({int(part) for part in parts}))


def check_trace(trace: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    """Errors: ConfigError for a token that the prompt does not have."""
    if trace and trace[-1] >= tokens:
        raise ConfigError(f"trace names token {trace[-1]:,}; the prompt has 0 to {tokens - 1:,}")
    return trace


@dataclass(frozen=True)
class RouterConfig:
    """Everything that a routing decision depends on besides the prompt, the model and the machine."""

    policy: Policy = "priced"
    tau: Share = 0.9  # tau: the mass that each head's certificate must reach; not read by the policy "priced"
    tau_layer: Share = 0.3  # policy "priced": the same for the mean over a layer's heads
    tau_head: Share = 0.25  # policy "priced": the same for each head, so that none is given up
    price: Price = DEFAULT_PRICE  # of a KV block's time in shares of rows: Segment.floor_share
    confidence: Confidence = 0.95  # q
    gate_threshold: Share | None = None  # lambda; None: the calibration's, or effective_gate_threshold's rule
    budget: LatencyBudget | None = None  # T_l; None: no ceiling (policies "priced" and "certified" only)
    segment_tokens: Tokens = 16_384
    tail_tokens: Tokens = 128  # the last rows of the prompt are dense: they usually ask the question
    block_q: BlockSize = 128  # rows of a query block
    block_k: BlockSize = 64  # B: keys of a KV block, and the pool width g of the pooled probe
    probe: ProbeMode = "exact"
    recent_rows: Rows = 64
    routing_rows: Rows = 64  # R
    certificate_rows: Annotated[int, Whole(8, MOST_ROWS)] = 128  # C
    boundary_rows: Annotated[int, Whole(0, MOST_ROWS)] = 16
    max_tests: Annotated[int, Whole(1, MOST_TESTS)] = 3  # s: certificates tested a head before it is dense
    bound: BoundName = "betting"  # of the in-prompt certificate; empirical Bernstein is simpler and wider
    alpha: Weight = 0.5  # weight of disagreement u in the risk (eq. 4)
    beta: Weight = 0.0  # weight of the error predictor e in the risk (eq. 4); 0: training-free
    solver: SolverName = "greedy"  # of eq. 6; a GPU takes "device", since the others run on the host
    launch: Launch = "fused"
    fallback: bool = True  # step 5; False only for the ablation
    fallback_limit: Share = 0.25  # a higher rate of dense-by-fallback units is reported as a failure
    break_even_tokens: Tokens | None = None  # below it dense runs untouched; None: from the latency profile
    seed: Seed = 0
    head_floors: HeadFloors | None = None  # ln of what multiplies each head's Segment.floor_share; of a fit

    def __post_init__(self) -> None:
        check_settings(self)
        if self.block_q % self.block_k:
            raise ConfigError(f"block_q {self.block_q} must be a multiple of block_k {self.block_k}")
        if self.segment_tokens < self.block_q or self.segment_tokens % self.block_q:
            raise ConfigError(
                f"segment {self.segment_tokens} tokens must be a positive multiple of {self.block_q}"
            )
        if self.policy in ("budgeted", "strict") and self.budget is None:
            raise ConfigError(
                f"policy {self.policy!r} needs a latency limit; pass budget, such as 0.25 or 800us"
            )

    def check_runnable(self, predicts: bool = False) -> None:
        """Refuse what no model could be routed with. predicts: whether a calibration with an error predictor is given.

        Errors: ConfigError.
        """
        if self.beta and not predicts:
            raise ConfigError(
                f"beta {self.beta:g} needs an error predictor; pass a calibration with one, or beta 0"
            )
        least = 2 * (self.least_body_rows + self.tail_tokens)
        if self.segment_tokens < least:
            told = f"use at least {least}, a multiple of {self.block_q}"
            raise ConfigError(f"segment {self.segment_tokens} tokens is too short to be probed; {told}")

    @property
    def least_body_rows(self) -> int:
        """A segment with fewer body rows is not probed: its statistics would say nothing."""
        return max(self.certificate_rows, 2 * self.block_q)

    @property
    def effective_gate_threshold(self) -> float:
        """lambda, the least gate statistic g of an admissible candidate, where no calibration has fixed one.

        A head whose certificate rows all had mass x would pass the in-prompt test only with
        x >= tau + ln(s / (1 - q)) / C (the bound's resolution). A lambda below that wastes a test on a candidate that
        cannot pass, so lambda stands a quarter above it, and never more than half-way from tau to 1; .94 by default.
        """
        if self.gate_threshold is not None:
            return self.gate_threshold
        resolution = math.log(self.max_tests / (1.0 - self.confidence)) / self.certificate_rows
        return min(self.tau + 1.25 * resolution, (1.0 + self.tau) / 2.0)

    @property
    def gates(self) -> bool:
        """Whether a head takes the cheapest candidate that passes a gate, with T_l as a ceiling only."""
        return self.policy in ("priced", "certified")

    @property
    def least_head_mass(self) -> float:
        """What the certificate of a single head must reach."""
        return self.tau_head if self.policy == "priced" else self.tau

    @property
    def row_level(self) -> float:
        """Level of the row statement: the candidate was kept after up to s looks at the rows, so the union bound."""
        return 1.0 - (1.0 - self.confidence) / self.max_tests

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the budget as the text that LatencyBudget.parse reads."""
        values = dataclasses.asdict(self)
        values["budget"] = None if self.budget is None else str(self.budget)
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RouterConfig:
        """The inverse of to_dict; ``gate`` is gate_threshold's older name. Errors: ConfigError on an unknown name."""
        values = renamed(values, {"gate": "gate_threshold"})
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            told = f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"unknown configuration names {', '.join(unknown)}; {told}")
        budget = values.get("budget")
        return cls(**{**values, "budget": LatencyBudget.parse(budget) if isinstance(budget, str) else budget})

    def digest(self) -> str:
        """Sixteen hex digits that change with any value: part of the stamp of calibrations and results."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def default_config(on_gpu: bool, /, **settings: Any) -> RouterConfig:
    """What routes a model where nobody passes a whole configuration; settings by name. Errors: ConfigError."""
    return RouterConfig.from_dict({"segment_tokens": default_segment(on_gpu), **settings})


@contextmanager
def _as_config_error(field: str | None = None, advice: str = "") -> Iterator[None]:
    """What the schema refuses, as the user's error. field: what the value is called, if not as the schema says."""
    try:
        yield
    except FieldError as error:
        told = error if field is None else FieldError(field, error.value, error.wanted)
        raise ConfigError(f"{told}{advice}") from None


def check_settings(one: Any) -> None:
    """Hold a dataclass's fields to their annotations, for its ``__post_init__``. Errors: ConfigError."""
    with _as_config_error():
        check_fields(one)


def argument(kind: Any, value: Any, name: str) -> None:
    """Hold an argument or an option to this kind (``schema.checked``). Errors: ConfigError."""
    with _as_config_error():
        checked(kind, value, name)


def certified_mass(policy: Policy, tau: float | None) -> dict[str, Any]:
    """What ``--tau`` sets: the layer's under the policy "priced", each head's under the others; None: the default."""
    return {} if tau is None else {"tau_layer" if policy == "priced" else "tau": tau}


def renamed(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """values with their older keys (left in names) as they are called now (right); a key of today wins."""
    return {names.get(name, name): value for name, value in values.items()} | {
        name: values[name] for name in names.values() if name in values
    }
