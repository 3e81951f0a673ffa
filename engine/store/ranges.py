"""What every value of a bundle may be: one schema of ranges, checked before a bundle is moved or stored.

``SCHEMA`` has a rule for every column of every table of ``engine/rows.py``: the least and the most of a number, the
words of a choice, the length of a text. ``check`` holds a bundle's tables to it, and to each other: a unit is one of
the run's layers and heads and comes once, a heatmap has as many bytes as its shape says. What passes can be stored
(whole numbers fit the store's columns) and drawn. Nothing that RouteSparse writes is refused: shares may exceed 1
and fall below 0 by rounding, bounds that were not computed are NaN.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine import fields
from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PRICES, PROBE_MODES, LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.fields import FieldError
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.store.rules import Blob, Flag, Number, OneOf, Rule, Text, Whole

INT64 = 2**63 - 1
MOST_LAYERS = 4_096
MOST_HEADS = 4_096
MOST_MAP_CELLS = 1 << 16  # layers x heads: the largest map that pages draw
_TOKENS = 1 << 28
_CANDIDATES = 1 << 12
_LARGEST = 1e15  # of a time or an error: sums of such numbers stay finite
_ROUNDING = 1e-3  # of masses, which kernels sum in float32
_NAME = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_WORDS = r"^[^<>&\x00-\x1f\x7f]{1,200}$"  # a budget in words, no markup


_SHARE = Number(-_ROUNDING, 1 + _ROUNDING)
_BOUND = Number(-_ROUNDING, 1 + _ROUNDING, bound=True)
_AMOUNT = Number(-_ROUNDING, _LARGEST)
_DIFFERENCE = Number(-_LARGEST, _LARGEST)
_ID = Text(128)
_PATTERN = Text(64, _NAME)
_BUDGET = Text(200, _WORDS)
_REASON = Text(2_000)
_JSON = Text(1 << 20, lines=True)
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
_TIMES = ("probe_ms", "index_ms", "route_ms", "kernel_ms", "total_ms", "dense_ms")
_UNIT_COUNTS = ("sparse_units", "expanded_units", "dense_fallback_units", "dense_router_units", "unmet_units")
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
        **dict.fromkeys(("units", *_UNIT_COUNTS), Whole()),
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
        "executed_error": Number(-_ROUNDING, _LARGEST, open=True),
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
_KEYS = {
    "layer_run": ("layer",),
    **dict.fromkeys(
        ("head_choice", "audit", "probe", "block_reads"), ("batch_index", "layer", "head", "segment")
    ),
    "worst_row": ("batch_index", "layer", "head", "segment", "rank"),
    "answer": ("batch_index", "token_id"),
    "continuation": ("batch_index",),
    "candidate_score": ("batch_index", "layer", "head", "segment", "candidate"),
    "fallback_event": ("batch_index", "layer", "head", "segment", "test"),
}
_WITHIN = {"batch_index": "batch", "layer": "layers", "head": "heads", "segment": "segments"}
_NUMBERS = ("price", "segment_tokens", "break_even_tokens")  # settings that pages calculate with
_SERVED = fields.optional(fields.record({"by": fields.text, "one_in": fields.whole(1)}))
_KINDS = 4  # of probe rows: ProbeRow.kinds


def check(tables: Mapping[str, pa.Table]) -> None:
    """Hold a bundle's tables to SCHEMA and to each other. Errors: FieldError for the first value out of range."""
    for name, table in tables.items():
        check_table(name, table)
    if tables["run"].num_rows != 1:
        raise FieldError("rows of run", tables["run"].num_rows, "1")
    run = tables["run"].to_pylist()[0]
    _run(run, tables)
    for name, keys in _KEYS.items():
        if name not in tables:
            continue
        for column in keys:
            if column in _WITHIN:
                whole = run[_WITHIN[column]]
                _column(f"{name}.{column}", tables[name].column(column), Whole(0, whole - 1))
        _once(name, tables[name], keys)
    _pairs("head_choice", tables["head_choice"], "body_tokens", "tokens")
    _pairs("audit", tables["audit"], "violations", "rows")
    ends = pc.add(tables["head_choice"]["first_token"], tables["head_choice"]["tokens"])
    _column("head_choice.first_token + tokens", ends, Whole(1, run["tokens"]))
    _known_candidates(tables)
    _heatmaps(tables["probe"], tables["candidate_score"], run["tokens"])
    if "worst_row" in tables:
        _worst_rows(tables["worst_row"], run["tokens"], run["block_k"])
    if "block_reads" in tables:
        _sized("block_reads", tables["block_reads"], {"reads": 1, "mass": 2, "lost": 2}, "cells")
    if "continuation" in tables:
        _pairs("continuation", tables["continuation"], "same_tokens", "tokens")
    if "prompt" in tables:
        _prompt(tables["prompt"], run["tokens"])


def check_table(name: str, table: pa.Table) -> None:
    """Hold one table to SCHEMA. Errors: FieldError for the first value out of range."""
    check_columns(name, table, SCHEMA[name])


def check_columns(name: str, table: pa.Table, rules: Mapping[str, Rule]) -> None:
    """Hold the columns of a table to their rules. Errors: FieldError for the first value out of range."""
    for column, rule in rules.items():
        _column(f"{name}.{column}", table.column(column), rule)


def _column(name: str, column: pa.ChunkedArray, rule: Rule) -> None:
    values = column.drop_null().combine_chunks()
    if len(values) and not pc.all(rule.holds(values)).as_py():
        row = pc.index(pc.fill_null(rule.holds(column.combine_chunks()), True), False).as_py()
        found = column[row].as_py()
        if isinstance(found, bytes):
            raise FieldError(f"the size of {name} in row {row}", len(found), rule.wanted)
        raise FieldError(f"{name} in row {row}", found, rule.wanted)


def _run(run: dict[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """What the run's totals say of each other and of the tables."""
    for name in ("config_json", "versions_json"):
        try:
            values = json.loads(run[name])
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise FieldError(f"run.{name}", run[name], "a JSON object")
        for setting in _NUMBERS if name == "config_json" else ():
            fields.optional(fields.number())(values.get(setting), f"run.config_json.{setting}")
        if name == "config_json":
            _SERVED(values.get("served"), "run.config_json.served")
    if run["budget"] is not None:
        try:
            LatencyBudget.parse(run["budget"])
        except ConfigError as error:
            raise FieldError("run.budget", run["budget"], f"a latency limit ({error})") from None
    try:
        datetime.datetime.fromisoformat(run["created_at"])
    except ValueError:
        raise FieldError("run.created_at", run["created_at"], "a time in ISO 8601") from None
    if run["layers"] * run["heads"] > MOST_MAP_CELLS:
        wanted = f"at most {MOST_MAP_CELLS // run['heads']}, with {run['heads']} heads"
        raise FieldError("run.layers", run["layers"], wanted)
    if run["heads"] % run["kv_heads"]:
        raise FieldError("run.kv_heads", run["kv_heads"], f"a divisor of the {run['heads']} heads")
    units = tables["head_choice"].num_rows
    # A run that was not routed has no units, whatever its totals say.
    if units and run["units"] != units:
        raise FieldError("run.units", run["units"], f"{units}, the rows of head_choice")
    for name in _UNIT_COUNTS if units else ():
        if (run[name] or 0) > units:
            raise FieldError(f"run.{name}", run[name], f"at most the {units} units")
    if run["over_budget_layers"] > run["layers"]:
        raise FieldError(
            "run.over_budget_layers", run["over_budget_layers"], f"at most {run['layers']}, the layers"
        )
    if run["policy"] == "priced" and run["tau_layer"] is None:
        raise FieldError("run.tau_layer", None, "a number under the policy 'priced'")


def _once(name: str, table: pa.Table, keys: tuple[str, ...]) -> None:
    found = table.group_by(keys).aggregate([([], "count_all")])
    twice = found.filter(pc.greater(found["count_all"], 1))
    if twice.num_rows:
        row = twice.select(keys).to_pylist()[0]
        raise FieldError(f"rows of {name} for {_words(row)}", twice["count_all"][0].as_py(), "1")


def _known_candidates(tables: Mapping[str, pa.Table]) -> None:
    """Candidates are named that were scored, in a run that has scores."""
    scored = tables["candidate_score"]["candidate"].unique()
    columns = (
        ("head_choice", "candidate"),
        ("fallback_event", "from_candidate"),
        ("fallback_event", "to_candidate"),
    )
    for name, column in columns if len(scored) else ():
        row = pc.index(pc.is_in(tables[name][column], scored), False).as_py()
        if row >= 0:
            found = tables[name][column][row].as_py()
            raise FieldError(f"{name}.{column} in row {row}", found, "one of the scored candidates")


def _pairs(name: str, table: pa.Table, part: str, whole: str) -> None:
    more = pc.index(pc.greater(table[part], table[whole]), True).as_py()
    if more >= 0:
        wanted = f"at most {whole}, {table[whole][more].as_py()}"
        raise FieldError(f"{name}.{part} in row {more}", table[part][more].as_py(), wanted)


def _heatmaps(probe: pa.Table, candidates: pa.Table, tokens: int) -> None:
    """Bytes as many as the shapes say; kinds and rows that exist; masks of as many families as were scored."""
    families = len(set(candidates["pattern"].unique().to_pylist()) - {"dense"})
    _sized("probe", probe, {"positions": 4, "kinds": 1}, "rows")
    _sized("probe", probe, {"mass": 2}, "rows", "columns")
    if families:
        _sized("probe", probe, {"masks": -(-families // 2)}, "rows", "mask_columns")
    for place, row in enumerate(probe.to_pylist()):
        if row["masks"] is not None and (row["mask_columns"] is None or row["mask_pool"] is None):
            raise FieldError(f"probe.mask_columns in row {place}", row["mask_columns"], "there with masks")
        if max(row["kinds"]) >= _KINDS:
            raise FieldError(f"probe.kinds in row {place}", max(row["kinds"]), f"below {_KINDS}")
        positions = np.frombuffer(row["positions"], "<i4")
        if positions[0] < 0 or (np.diff(positions) < 0).any() or positions[-1] >= tokens:
            wanted = f"ascending, from 0 to below {tokens}"
            raise FieldError(f"probe.positions in row {place}", positions[:8].tolist(), wanted)


def _worst_rows(rows: pa.Table, tokens: int, block_k: int) -> None:
    """Positions in the prompt; as many shares as lost KV blocks, which the prompt has."""
    _column("worst_row.position", rows["position"], Whole(0, tokens - 1))
    if not pc.all(
        pc.equal(pc.binary_length(rows["lost_blocks"]), pc.binary_length(rows["lost_mass"]))
    ).as_py():
        raise FieldError("the size of worst_row.lost_mass", None, "that of lost_blocks")
    blocks = -(-tokens // block_k)
    for name, kind, low, high in (
        ("lost_blocks", "<i4", 0, blocks - 1),
        ("lost_mass", "<f4", -_ROUNDING, 1 + _ROUNDING),
    ):
        values = np.frombuffer(b"".join(rows[name].to_pylist()), kind)
        outside = ~((values >= low) & (values <= high))
        if outside.any():
            raise FieldError(f"worst_row.{name}", float(values[outside][0]), f"from {low} to {high}")


def _sized(name: str, table: pa.Table, widths: Mapping[str, int], *counts: str) -> None:
    """Columns of so many bytes a value have as many values as the product of these columns says; NULL fits."""
    values = table[counts[0]]
    for other in counts[1:]:
        values = pc.multiply(values, table[other])
    for column, width in widths.items():
        sizes = pc.multiply(values, width)
        place = pc.index(pc.equal(pc.binary_length(table[column]), sizes), False).as_py()
        if place >= 0:
            found, wanted = len(table[column][place].as_py()), f"{sizes[place].as_py()} bytes"
            raise FieldError(f"the size of {name}.{column} in row {place}", found, wanted)


def _prompt(prompt: pa.Table, tokens: int) -> None:
    """Starts of blocks and tokens ascend from 0 to the text's end."""
    if prompt.num_rows != 1:
        raise FieldError("rows of prompt", prompt.num_rows, "1")
    text, found = prompt["text"][0].as_py(), prompt["token_starts"][0].as_py()
    if found is not None and len(found) != 4 * (tokens + 1):
        raise FieldError("the size of prompt.token_starts", len(found), f"{4 * (tokens + 1)} bytes")
    for name in ("block_starts", "token_starts") if found is not None else ("block_starts",):
        starts = np.frombuffer(prompt[name][0].as_py(), "<i4")
        if not len(starts) or starts[0] < 0 or (np.diff(starts) < 0).any() or starts[-1] > len(text):
            wanted = f"ascending offsets of the text's {len(text):,} characters"
            raise FieldError(f"prompt.{name}", starts[:8].tolist(), wanted)


def _words(key: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in key.items())
