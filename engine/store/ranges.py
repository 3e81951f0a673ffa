"""What every value of a run's bundle may be: one schema of ranges, checked before a bundle is moved or stored.

``SCHEMA`` has a rule for every column of every table of ``engine/rows.py``: the least and the most of a number, the
words of a choice, the length of a text. ``run_checks.py`` holds a bundle's tables to it, and to each other.
What passes can be stored (whole numbers fit the store's columns) and drawn. Nothing that RouteSparse writes is
refused: shares may exceed 1 and fall below 0 by rounding, bounds that were not computed are NaN.
"""

from __future__ import annotations

from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PRICES, PROBE_MODES
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.store.rules import Blob, Flag, Number, OneOf, Rule, Text, Whole

INT64 = 2**63 - 1
MOST_LAYERS = 4_096
MOST_HEADS = 4_096
MOST_MAP_CELLS = 1 << 16  # layers x heads: the largest map that pages draw
MOST_BLOCKS = 1 << 22  # KV blocks of a prompt, of which pages hold one number each
_TOKENS = 1 << 28
_CANDIDATES = 1 << 12
_LARGEST = 1e15  # of a time or an error: sums of such numbers stay finite
ROUNDING = 1e-3  # of masses, which kernels sum in float32
_NAME = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_WORDS = r"^[^<>&\x00-\x1f\x7f]{1,200}$"  # a budget in words, no markup


_SHARE = Number(-ROUNDING, 1 + ROUNDING)
_BOUND = Number(-ROUNDING, 1 + ROUNDING, bound=True)
_AMOUNT = Number(-ROUNDING, _LARGEST)
_DIFFERENCE = Number(-_LARGEST, _LARGEST)
_ID = Text(128)
_PATTERN = Text(64, _NAME)
_BUDGET = Text(200, _WORDS)
_REASON = Text(2_000)
_JSON = Text(1 << 18, lines=True)  # the manifest has two of them
_FALLBACK = OneOf(("expand", "dense"))
_UNIT: dict[str, Rule] = {
    "run_id": _ID,
    "batch_index": Whole(),
    "layer": Whole(0, MOST_LAYERS - 1),
    "head": Whole(0, MOST_HEADS - 1),
    "segment": Whole(),
}
_CANDIDATE: dict[str, Rule] = {
    "candidate": Whole(0, _CANDIDATES - 1),
    "pattern": _PATTERN,
    "budget": _BUDGET,
    "density": _SHARE,
    "mass": _SHARE,
    "recent_mass": _SHARE,
    "disagreement": _AMOUNT,
    "risk": _DIFFERENCE,
    "kernel_us": _AMOUNT,
    "reason": _REASON,
}
UNIT_COUNTS = ("sparse_units", "expanded_units", "dense_fallback_units", "dense_router_units", "unmet_units")
_TIMES = ("probe_ms", "index_ms", "route_ms", "kernel_ms", "total_ms", "dense_ms")
_NAMES = (
    *("model", "model_revision", "tokenizer_hash", "calibration", "profile", "prompt_name", "prompt_sha256"),
    *("domain", "device", "git_commit", "owner", "tuned_price"),
)

SCHEMA: dict[str, dict[str, Rule]] = {
    "run": {
        "run_id": _ID,
        "created_at": Text(40, r"^\d{4}-\d\d-\d\dT"),
        **dict.fromkeys(_NAMES, Text(lines=True)),  # shown escaped
        "policy": OneOf(POLICIES),
        "probe_mode": OneOf(PROBE_MODES),
        "audit_depth": OneOf(AUDIT_DEPTHS),
        "dtype": OneOf(tuple(EXECUTED_TOLERANCE)),
        "budget": Text(40),
        "calibration_mismatch": _REASON,
        **dict.fromkeys(("config_json", "versions_json"), _JSON),
        **dict.fromkeys(("tau", "gate_threshold", "tau_layer", "coverage", "top1_agreement"), _SHARE),
        "confidence": Number(0.0, 1.0),
        "price": Number(*PRICES),
        "sweep": Text(64, r"^[0-9A-Za-z-]+$"),
        "seed": Whole(-INT64 - 1, INT64),
        "batch": Whole(1, 1 << 16),
        "tokens": Whole(1, _TOKENS),
        "layers": Whole(1, MOST_LAYERS),
        **dict.fromkeys(("heads", "kv_heads"), Whole(1, MOST_HEADS)),
        "head_dim": Whole(1, 1 << 16),
        "segments": Whole(1, 1 << 20),
        **dict.fromkeys(("block_q", "block_k"), Whole(1, 1 << 20)),
        "routed": Flag(),
        **dict.fromkeys(_TIMES, _AMOUNT),
        "density": _SHARE,
        **dict.fromkeys(("units", *UNIT_COUNTS), Whole()),
        "over_budget_layers": Whole(0, MOST_LAYERS),
        "audit_rows": Whole(0, _TOKENS),
        **dict.fromkeys(("mean_error", "max_error", "logit_error", "kl_nats", "drift_distance"), _AMOUNT),
        "delta": _SHARE,
        "drift_p": _SHARE,
        "drift_alarm": Flag(),
    },
    "layer_run": {
        "run_id": _ID,
        "layer": _UNIT["layer"],
        **dict.fromkeys(
            ("limit_us", "planned_us", "dense_us", "probe_us", "index_us", "route_us", "kernel_us"), _AMOUNT
        ),
        "density": _SHARE,
        "over_budget": Flag(),
        "forward_error": _AMOUNT,
        "lower_mass": _BOUND,
        "raised": Whole(0, _CANDIDATES),
    },
    "head_choice": {
        **_UNIT,
        **_CANDIDATE,
        **dict.fromkeys(("first_token", "body_tokens"), Whole(0, _TOKENS)),
        "tokens": Whole(1, _TOKENS),
        "tests": Whole(0, _CANDIDATES),
        **dict.fromkeys(("gate_statistic", "local_band", "agreement", "gate_threshold"), _SHARE),
        **dict.fromkeys(("lower_mass", "conformal_lower_mass", "row_lower_mass"), _BOUND),
        "entropy": _AMOUNT,
        "fallback": _FALLBACK,
        "unmet": Flag(),
    },
    "candidate_score": {
        **_UNIT,
        **_CANDIDATE,
        "predicted_error": _AMOUNT,
        **dict.fromkeys(("admissible", "chosen"), Flag()),
    },
    "fallback_event": {
        **_UNIT,
        "test": Whole(1, _CANDIDATES),
        **dict.fromkeys(("from_candidate", "to_candidate"), _CANDIDATE["candidate"]),
        "lower_mass": _BOUND,
        "tau": _SHARE,
        "kind": _FALLBACK,
        "paid_us": _DIFFERENCE,
        "scope": OneOf(("head", "layer")),
    },
    "audit": {
        **_UNIT,
        "rows": Whole(1, _TOKENS),
        **dict.fromkeys(("mass", "min_mass", "row_covered"), _SHARE),
        "lower_mass": _BOUND,
        "covered": Flag(),
        **dict.fromkeys(("mean_error", "max_error", "bound_paper", "bound_tight", "forward_error"), _AMOUNT),
        "violations": Whole(),
        "executed_error": Number(-ROUNDING, _LARGEST, open=True),
    },
    "probe": {
        **_UNIT,
        "rows": Whole(1, 1 << 16),
        **dict.fromkeys(("columns", "mask_columns"), Whole(1, 1 << 20)),
        **dict.fromkeys(("pool", "mask_pool"), Whole(1, _TOKENS)),
        "scale": Number(0.0, 1e6),
        "positions": Blob(4),
        **dict.fromkeys(("kinds", "masks"), Blob(1)),
        "mass": Blob(2),
    },
    "worst_row": {
        **_UNIT,
        "rank": Whole(0, _TOKENS),
        "position": Whole(0, _TOKENS),
        "mass": _SHARE,
        "error": _AMOUNT,
        **dict.fromkeys(("lost_blocks", "lost_mass"), Blob(4)),
    },
    "block_reads": {
        **_UNIT,
        "cells": Whole(1, 1 << 20),
        "pool": Whole(1, _TOKENS),
        "reads": Blob(1),
        **dict.fromkeys(("mass", "lost"), Blob(2)),
    },
    "answer": {
        "run_id": _ID,
        "batch_index": Whole(),
        "token_id": Whole(0, _TOKENS),
        "text": Text(lines=True),  # shown escaped
        **dict.fromkeys(("dense", "routed"), _SHARE),
        **dict.fromkeys(("dense_rank", "routed_rank"), Whole(1, _TOKENS)),
    },
    "continuation": {
        "run_id": _ID,
        "batch_index": Whole(),
        "tokens": Whole(1, 1 << 16),
        "same_tokens": Whole(0, 1 << 16),
        # Shown escaped.
        **dict.fromkeys(("same_text", "dense_text", "routed_text"), Text(10_000, lines=True)),
    },
    "prompt": {
        "run_id": _ID,
        "text": Text(1 << 26, lines=True),
        **dict.fromkeys(("block_starts", "token_starts"), Blob(4)),
    },
}
# Of what people add to runs (labels.py); a comma would part two tags.
LABEL = {"name": Text(120), "notes": Text(4_000, r"^[^\x00]*$", lines=True), "tag": Text(40, "^[^,]+$")}
