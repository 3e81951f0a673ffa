"""What every value of a bundle may be: one schema of ranges, checked before a bundle is moved or stored.

``SCHEMA`` has a rule for every column of every table of a run and of a certificate: the least and the most of a number,
the words of a choice, the length of a text. ``checks.py`` holds a bundle's tables to it, and to each other.
What passes can be stored (whole numbers fit the store's columns) and drawn. Nothing that RouteSparse writes is
refused: shares may exceed 1 and fall below 0 by rounding, bounds that were not computed are NaN.
"""

from __future__ import annotations

from routesparse.engine.certificate_rows import LEVELS, MOST_TOKEN_TEXT, SCOPES
from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PRICES, PROBE_MODES
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.store.rules import FLAG, Rule, blob, number, one_of, text, whole

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


_SHARE = number(-ROUNDING, 1 + ROUNDING)
_BOUND = number(-ROUNDING, 1 + ROUNDING, bound=True)
_AMOUNT = number(-ROUNDING, _LARGEST)
_DIFFERENCE = number(-_LARGEST, _LARGEST)
_ID = text(128)
_PATTERN = text(64, _NAME)
_BUDGET = text(200, _WORDS)
_REASON = text(2_000)
_JSON = text(1 << 18, lines=True)  # the manifest has two of them
_FALLBACK = one_of(("expand", "dense"))
_UNIT: dict[str, Rule] = {
    "run_id": _ID,
    "batch_index": whole(),
    "layer": whole(0, MOST_LAYERS - 1),
    "head": whole(0, MOST_HEADS - 1),
    "segment": whole(),
}
_CANDIDATE: dict[str, Rule] = {
    "candidate": whole(0, _CANDIDATES - 1),
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
        "created_at": text(40, r"^\d{4}-\d\d-\d\dT"),
        **dict.fromkeys(_NAMES, text(lines=True)),  # shown escaped
        "policy": one_of(POLICIES),
        "probe_mode": one_of(PROBE_MODES),
        "audit_depth": one_of(AUDIT_DEPTHS),
        "dtype": one_of(tuple(EXECUTED_TOLERANCE)),
        "budget": text(40),
        "calibration_mismatch": _REASON,
        **dict.fromkeys(("config_json", "versions_json"), _JSON),
        **dict.fromkeys(("tau", "gate_threshold", "tau_layer", "coverage", "top1_agreement"), _SHARE),
        "confidence": number(0.0, 1.0),
        "price": number(*PRICES),
        "sweep": text(64, r"^[0-9A-Za-z-]+$"),
        "seed": whole(-INT64 - 1, INT64),
        "batch": whole(1, 1 << 16),
        "tokens": whole(1, _TOKENS),
        "layers": whole(1, MOST_LAYERS),
        **dict.fromkeys(("heads", "kv_heads"), whole(1, MOST_HEADS)),
        "head_dim": whole(1, 1 << 16),
        "segments": whole(1, 1 << 20),
        **dict.fromkeys(("block_q", "block_k"), whole(1, 1 << 20)),
        "routed": FLAG,
        **dict.fromkeys(_TIMES, _AMOUNT),
        "density": _SHARE,
        **dict.fromkeys(("units", *UNIT_COUNTS), whole()),
        "over_budget_layers": whole(0, MOST_LAYERS),
        "audit_rows": whole(0, _TOKENS),
        **dict.fromkeys(("mean_error", "max_error", "logit_error", "kl_nats", "drift_distance"), _AMOUNT),
        "delta": _SHARE,
        "drift_p": _SHARE,
        "drift_alarm": FLAG,
    },
    "layer_run": {
        "run_id": _ID,
        "layer": _UNIT["layer"],
        **dict.fromkeys(
            ("limit_us", "planned_us", "dense_us", "probe_us", "index_us", "route_us", "kernel_us"), _AMOUNT
        ),
        "density": _SHARE,
        "over_budget": FLAG,
        "forward_error": _AMOUNT,
        "lower_mass": _BOUND,
        "raised": whole(0, _CANDIDATES),
    },
    "head_choice": {
        **_UNIT,
        **_CANDIDATE,
        **dict.fromkeys(("first_token", "body_tokens"), whole(0, _TOKENS)),
        "tokens": whole(1, _TOKENS),
        "tests": whole(0, _CANDIDATES),
        **dict.fromkeys(("gate_statistic", "local_band", "agreement", "gate_threshold"), _SHARE),
        **dict.fromkeys(("lower_mass", "conformal_lower_mass", "row_lower_mass"), _BOUND),
        "entropy": _AMOUNT,
        "fallback": _FALLBACK,
        "unmet": FLAG,
    },
    "candidate_score": {
        **_UNIT,
        **_CANDIDATE,
        "predicted_error": _AMOUNT,
        **dict.fromkeys(("admissible", "chosen"), FLAG),
    },
    "fallback_event": {
        **_UNIT,
        "test": whole(1, _CANDIDATES),
        **dict.fromkeys(("from_candidate", "to_candidate"), _CANDIDATE["candidate"]),
        "lower_mass": _BOUND,
        "tau": _SHARE,
        "kind": _FALLBACK,
        "paid_us": _DIFFERENCE,
        "scope": one_of(("head", "layer")),
    },
    "audit": {
        **_UNIT,
        "rows": whole(1, _TOKENS),
        **dict.fromkeys(("mass", "min_mass", "row_covered"), _SHARE),
        "lower_mass": _BOUND,
        "covered": FLAG,
        **dict.fromkeys(("mean_error", "max_error", "bound_paper", "bound_tight", "forward_error"), _AMOUNT),
        "violations": whole(),
        "executed_error": number(-ROUNDING, _LARGEST, open=True),
    },
    "probe": {
        **_UNIT,
        "rows": whole(1, 1 << 16),
        **dict.fromkeys(("columns", "mask_columns"), whole(1, 1 << 20)),
        **dict.fromkeys(("pool", "mask_pool"), whole(1, _TOKENS)),
        "scale": number(0.0, 1e6),
        "positions": blob(4),
        **dict.fromkeys(("kinds", "masks"), blob(1)),
        "mass": blob(2),
    },
    "worst_row": {
        **_UNIT,
        "rank": whole(0, _TOKENS),
        "position": whole(0, _TOKENS),
        "mass": _SHARE,
        "error": _AMOUNT,
        **dict.fromkeys(("lost_blocks", "lost_mass"), blob(4)),
    },
    "block_reads": {
        **_UNIT,
        "cells": whole(1, 1 << 20),
        "pool": whole(1, _TOKENS),
        "reads": blob(1),
        **dict.fromkeys(("mass", "lost"), blob(2)),
    },
    "answer": {
        "run_id": _ID,
        "batch_index": whole(),
        "token_id": whole(0, _TOKENS),
        "text": text(lines=True),  # shown escaped
        **dict.fromkeys(("dense", "routed"), _SHARE),
        **dict.fromkeys(("dense_rank", "routed_rank"), whole(1, _TOKENS)),
    },
    "continuation": {
        "run_id": _ID,
        "batch_index": whole(),
        "tokens": whole(1, 1 << 16),
        "same_tokens": whole(0, 1 << 16),
        # Shown escaped.
        **dict.fromkeys(("same_text", "dense_text", "routed_text"), text(10_000, lines=True)),
    },
    "prompt": {
        "run_id": _ID,
        "text": text(1 << 26, lines=True),
        **dict.fromkeys(("block_starts", "token_starts"), blob(4)),
    },
}

# Of a certificate.
_ROWS = whole(0, INT64)
# Relative to an output that may be as small as float32 has it; infinite where the output under test is.
_ERROR = number(0.0, 1e39, open=True)
_SAME = (
    *("run_id", "created_at", "model", "model_revision", "tokenizer_hash", "prompt_name", "prompt_sha256"),
    *("batch", "tokens", "layers", "heads", "kv_heads", "head_dim", "device", "versions_json"),
    *("git_commit", "seed", "config_json", "confidence", "owner"),
)

SCHEMA |= {
    "certificate": {
        **{name: SCHEMA["run"][name] for name in _SAME},
        **dict.fromkeys(("function", "plan"), text(lines=True)),  # shown escaped
        "dtype": one_of(tuple(EXECUTED_TOLERANCE)),
        "sampled_rows": whole(1),
        **dict.fromkeys(("mass_level", "most_beyond"), number(0.0, 1.0)),
        "tolerance": number(0.0, 1e39),
        "dense_layers": whole(0, MOST_LAYERS),
        "verdict": one_of(LEVELS),
        "sentence": _REASON,
        "findings_json": text(1 << 14, lines=True),
    },
    "claim": {
        **{name: _UNIT[name] for name in ("run_id", "batch_index", "layer", "head")},
        "scope": one_of(SCOPES),
        "worst_position": SCHEMA["worst_row"]["position"],
        "rows": whole(1, INT64),
        **dict.fromkeys(("mean_error", "mean_error_bound", "share_within"), _SHARE),
        **dict.fromkeys(("largest_error", "plan_error", "disagreement"), _ERROR),
        **dict.fromkeys(("nonfinite_rows", "beyond_rounding", "beyond_tolerance", "low_rows"), _ROWS),
        **dict.fromkeys(("beyond_rounding_bound", "beyond_tolerance_bound", "low_rows_bound"), _SHARE),
        **dict.fromkeys(("mass", "mass_bound", "hit_rate", "hit_rate_bound"), _SHARE),
    },
    "named_row": {
        **{name: _UNIT[name] for name in ("run_id", "batch_index")},
        **{f"worst_{name}": _UNIT[name] for name in ("layer", "head")},
        "label": text(32, pattern=r"^([0-9]+|last):[0-9]+$"),
        "position": SCHEMA["worst_row"]["position"],
        "text": text(MOST_TOKEN_TEXT, lines=True),  # shown escaped
        "rows": whole(1, INT64),
        **dict.fromkeys(("mean_error", "mass", "hit_rate"), _SHARE),
        "largest_error": _ERROR,
        **dict.fromkeys(("nonfinite_rows", "beyond_rounding", "beyond_tolerance"), _ROWS),
    },
}
# Of what people add to runs (labels.py); a comma would part two tags.
LABEL = {"name": text(120), "notes": text(4_000, r"^[^\x00]*$", lines=True), "tag": text(40, "^[^,]+$")}
