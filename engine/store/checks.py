"""A bundle held to its records' annotations, value by value, and its tables to each other.

A unit is one of the run's layers and heads and comes once, a heatmap has as many bytes as its shape says, totals are
those of the tables, a certificate's verdict is one that its claims allow.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine import certificate_rows
from routesparse.engine.config import LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.schema import FieldError, Positive, Real, Text, checked, in_file
from routesparse.engine.store.ranges import ROUNDING
from routesparse.engine.store.rules import Object, check_column, check_columns, json_value, whole
from routesparse.engine.store.tables import head_table, rules

_KEYS = {
    "layer_run": ("layer",),
    **dict.fromkeys(
        ("head_choice", "audit", "probe", "block_reads"), ("batch_index", "layer", "head", "segment")
    ),
    "worst_row": ("batch_index", "layer", "head", "segment", "rank"),
    "traced_row": ("batch_index", "layer", "head", "segment", "position"),
    "answer": ("batch_index", "token_id"),
    "continuation": ("batch_index",),
    "loss": ("batch_index", "position"),
    "candidate_score": ("batch_index", "layer", "head", "segment", "candidate"),
    "fallback_event": ("batch_index", "layer", "head", "segment", "test"),
}
MOST_MAP_CELLS = 1 << 16  # layers x heads: the largest map that pages draw
MOST_BLOCKS = 1 << 22  # KV blocks of a prompt, of which pages hold one number each
_UNIT_COUNTS = ("sparse_units", "expanded_units", "dense_fallback_units", "dense_router_units", "unmet_units")
_WITHIN = {"batch_index": "batch", "layer": "layers", "head": "heads", "segment": "segments"}
_MOST_PROBES = 1 << 17  # the largest map twice: they are unpacked row by row
_KINDS = 4  # of probe rows: ProbeRow.kinds
_MOST_NAMED = 1 << 14
_MOST_CLAIMS = 1 << 17  # the largest map twice
_WHERE = ("batch_index", "layer", "head")
_OF_A_PLAN = (
    *("mass", "mass_bound", "low_rows", "low_rows_bound", "hit_rate", "hit_rate_bound"),
    *("plan_error", "disagreement"),
)
_OF_A_TOLERANCE = ("beyond_tolerance", "beyond_tolerance_bound")
_NAMED = {"pass": (), "layer": ("layer",), "head": _WHERE}  # what tells the claims of a scope apart


@dataclass(frozen=True)
class _Served:
    by: Text
    one_in: Positive


@in_file(more=True)
@dataclass(frozen=True)
class _Settings:
    """Settings that pages calculate with; a run's record has others beside them."""

    price: Real | None = None
    segment_tokens: Real | None = None
    break_even_tokens: Real | None = None
    fallback_limit: Real = 0.0
    rope: str | None = None
    served: _Served | None = None


def check(tables: Mapping[str, pa.Table]) -> None:
    """Hold a bundle's tables to their annotations and to each other. Errors: FieldError for the first wrong value."""
    for name, table in tables.items():
        check_table(name, table)
    head = head_table(tables)
    if tables[head].num_rows != 1:
        raise FieldError(f"rows of {head}", tables[head].num_rows, "1")
    row = tables[head].to_pylist()[0]
    config, _ = (json_value(f"{head}.{name}", row[name], Object) for name in ("config_json", "versions_json"))
    try:
        datetime.datetime.fromisoformat(row["created_at"])
    except ValueError:
        raise FieldError(f"{head}.created_at", row["created_at"], "a time in ISO 8601") from None
    if row["layers"] * row["heads"] > MOST_MAP_CELLS:
        wanted = f"at most {MOST_MAP_CELLS // row['heads']}, with {row['heads']} heads"
        raise FieldError(f"{head}.layers", row["layers"], wanted)
    if head == "certificate":
        _certificate(row, tables)
    else:
        checked(_Settings, config, "run.config_json")
        _totals(row, tables["head_choice"].num_rows)
        _run(row, tables)


def check_table(name: str, table: pa.Table) -> None:
    """Hold one table to its record's annotations. Errors: FieldError for the first value out of range."""
    check_columns(name, table, rules(name))


def _run(run: dict[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """Units are of the run's layers and heads and come once; what tables say of each other fits."""
    for name, keys in _KEYS.items():
        if name not in tables:
            continue
        for column in keys:
            if column in _WITHIN:
                within = whole(0, run[_WITHIN[column]] - 1)
                check_column(f"{name}.{column}", tables[name].column(column), within)
        _once(name, tables[name], keys)
    _pairs("head_choice", tables["head_choice"], "body_tokens", "tokens")
    _pairs("audit", tables["audit"], "violations", "rows")
    ends = pc.add(tables["head_choice"]["first_token"], tables["head_choice"]["tokens"])
    check_column("head_choice.first_token + tokens", ends, whole(1, run["tokens"]))
    _known_candidates(tables)
    _heatmaps(tables["probe"], tables["candidate_score"], run["tokens"], run["block_k"])
    if "worst_row" in tables:
        blocks = -(-run["tokens"] // run["block_k"])
        _lists("worst_row", tables["worst_row"], run["tokens"], ("lost_blocks", blocks), "lost_mass")
    if "traced_row" in tables:
        _lists("traced_row", tables["traced_row"], run["tokens"], ("keys", run["tokens"]), "weights", "read")
    if "block_reads" in tables:
        _sized("block_reads", tables["block_reads"], {"reads": 1, "mass": 2, "lost": 2}, "cells")
    if "continuation" in tables:
        _pairs("continuation", tables["continuation"], "same_tokens", "tokens")
    if "loss" in tables:
        ends = pc.add(tables["loss"]["position"], tables["loss"]["tokens"])
        check_column("loss.position + tokens", ends, whole(1, run["tokens"]))
    if "prompt" in tables:
        _prompt(tables["prompt"], run["tokens"])


def _totals(run: dict[str, Any], units: int) -> None:
    """What the run's totals say of each other and of the units."""
    if run["budget"] is not None:
        try:
            LatencyBudget.parse(run["budget"])
        except ConfigError as error:
            raise FieldError("run.budget", run["budget"], f"a latency limit ({error})") from None
    if run["tokens"] > MOST_BLOCKS * run["block_k"]:
        wanted = f"at least {-(-run['tokens'] // MOST_BLOCKS)}, with {run['tokens']} tokens"
        raise FieldError("run.block_k", run["block_k"], wanted)
    if run["heads"] % run["kv_heads"]:
        raise FieldError("run.kv_heads", run["kv_heads"], f"a divisor of the {run['heads']} heads")
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


def _heatmaps(probe: pa.Table, candidates: pa.Table, tokens: int, block_k: int) -> None:
    """Bytes as many as the shapes say; kinds and rows that exist; masks of as many families as were scored."""
    families = len(candidates["pattern"].filter(pc.not_equal(candidates["pattern"], "dense")).unique())
    _sized("probe", probe, {"positions": 4, "kinds": 1}, "rows")
    _sized("probe", probe, {"mass": 2}, "rows", "columns")
    if families:
        _sized("probe", probe, {"masks": -(-families // 2)}, "rows", "mask_columns")
    blocks = -(-tokens // block_k)
    if probe.num_rows > _MOST_PROBES:
        raise FieldError("rows of probe", probe.num_rows, f"at most {_MOST_PROBES}")
    columns = probe.select(["masks", "mask_columns", "mask_pool", "kinds", "positions"])
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in columns.to_batches())
    for place, row in enumerate(rows):
        if row["masks"] is not None and (row["mask_columns"] is None or row["mask_pool"] is None):
            raise FieldError(f"probe.mask_columns in row {place}", row["mask_columns"], "there with masks")
        if row["masks"] is not None and max(1, row["mask_columns"] - 1) * row["mask_pool"] > blocks:
            wanted = f"such that its columns end with the prompt's {blocks} blocks"
            raise FieldError(f"probe.mask_pool in row {place}", row["mask_pool"], wanted)
        if max(row["kinds"]) >= _KINDS:
            raise FieldError(f"probe.kinds in row {place}", max(row["kinds"]), f"below {_KINDS}")
        positions = np.frombuffer(row["positions"], "<i4")
        if positions[0] < 0 or (np.diff(positions) < 0).any() or positions[-1] >= tokens:
            wanted = f"ascending, from 0 to below {tokens}"
            raise FieldError(f"probe.positions in row {place}", positions[:8].tolist(), wanted)


def _lists(name: str, rows: pa.Table, tokens: int, places: tuple[str, int], *values: str) -> None:
    """Positions in the prompt; as many values of each kind, in [0, 1], as places, which are below places[1]."""
    check_column(f"{name}.position", rows["position"], whole(0, tokens - 1))
    count = pc.divide(pc.binary_length(rows[places[0]]), 4)
    for column, kind, low, high in (
        (places[0], "<i4", 0.0, places[1] - 1.0),
        *((value, "u1" if value == "read" else "<f4", -ROUNDING, 1 + ROUNDING) for value in values),
    ):
        fits = pc.equal(pc.binary_length(rows[column]), pc.multiply(count, np.dtype(kind).itemsize))
        if not pc.all(fits, min_count=0).as_py():
            raise FieldError(f"the size of {name}.{column}", None, f"that of {places[0]}")
        for some in rows[column].chunks:
            found = np.frombuffer(b"".join(some.to_pylist()), kind)
            outside = ~((found >= low) & (found <= high))
            if outside.any():
                raise FieldError(f"{name}.{column}", float(found[outside][0]), f"from {low:g} to {high:g}")


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


def _certificate(row: dict[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """Claims and named rows are of the certificate's heads and come once; the verdict is one that they allow."""
    json_value("certificate.findings_json", row["findings_json"], list[str])
    if row["dense_layers"] > row["layers"]:
        raise FieldError(
            "certificate.dense_layers", row["dense_layers"], f"at most the {row['layers']} layers"
        )
    most = min(_MOST_CLAIMS, 1 + row["layers"] * (1 + row["heads"] * row["batch"]))
    for name, limit in (("claim", most), ("named_row", _MOST_NAMED)):
        if name in tables and tables[name].num_rows > limit:
            raise FieldError(f"rows of {name}", tables[name].num_rows, f"at most {limit}")
    claims = _frame(tables["claim"])
    _claims(row, claims)
    named = tables["named_row"].to_pylist() if "named_row" in tables else []
    if named:
        _named(row, _frame(tables["named_row"]))
    _verdict(row, claims[claims["scope"] == "pass"].iloc[0], named)


def _frame(table: pa.Table) -> pd.DataFrame:
    """Whole numbers stay whole beside NULL: all 64 bits of them are compared."""
    return table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)


def _none(name: str, frame: pd.DataFrame, wrong: pd.Series, wanted: str) -> None:
    """Errors: FieldError for the first row of ``name``, TABLE.COLUMN, that is wrong; NULL is not."""
    rows = wrong.fillna(False).to_numpy(bool).nonzero()[0]
    if len(rows):
        found = frame[name.rpartition(".")[2]].astype(object).iloc[rows[0]]
        raise FieldError(f"{name} in row {rows[0]}", None if pd.isna(found) else found, wanted)


def _claims(row: dict[str, Any], claims: pd.DataFrame) -> None:
    """Each claim names what it is about, once, and what the certificate has; a pass has one claim of its own."""
    scope, position = claims["scope"], claims["worst_position"]
    for name, size in {"batch_index": row["batch"], "layer": row["layers"], "head": row["heads"]}.items():
        named = scope.isin([one for one, names in _NAMED.items() if name in names])
        wanted = f"a whole number below {size} in a scope that has one, else NULL"
        _none(
            f"claim.{name}",
            claims,
            (claims[name].notna() != named) | (claims[name] >= size).fillna(False),
            wanted,
        )
    missing = (scope == "head") & position.isna()
    wanted = f"a token of the prompt, below {row['tokens']}"
    _none("claim.worst_position", claims, missing | (position >= row["tokens"]).fillna(False), wanted)
    _none(
        "claim.scope",
        claims,
        claims.duplicated(["scope", *_WHERE]),
        "the only one of its head, layer or pass",
    )
    for name in ("nonfinite_rows", "beyond_rounding", "beyond_tolerance", "low_rows"):
        _none(f"claim.{name}", claims, claims[name] > claims["rows"], "at most the rows")
    if not (scope == "pass").any():
        raise FieldError("claims of the pass", 0, "1")
    _as_asked("claim", claims, row, _OF_A_PLAN, _OF_A_TOLERANCE)


def _named(row: dict[str, Any], named: pd.DataFrame) -> None:
    """Each named token once a label, of the certificate's prompt, with as many rows as it has heads."""
    sizes = {"batch_index": "batch", "worst_layer": "layers", "worst_head": "heads", "position": "tokens"}
    for name, size in sizes.items():
        _none(f"named_row.{name}", named, named[name] >= row[size], f"below {row[size]}")
    heads = row["layers"] * row["heads"]
    _none("named_row.rows", named, named["rows"] != heads, f"{heads}, one of each head")
    for name in ("nonfinite_rows", "beyond_rounding", "beyond_tolerance"):
        _none(f"named_row.{name}", named, named[name] > heads, f"at most the {heads} rows")
    twice = named.duplicated(["label", "batch_index", "position"])
    _none("named_row.label", named, twice, "the only one of its label and token")
    _as_asked("named_row", named, row, ("mass", "hit_rate"), ("beyond_tolerance",))


def _as_asked(
    table: str,
    found: pd.DataFrame,
    row: dict[str, Any],
    of_plan: tuple[str, ...],
    of_tolerance: tuple[str, ...],
) -> None:
    """Figures of a plan or a tolerance are there where the certificate has one, and only there."""
    for asked, names in (("plan", of_plan), ("tolerance", of_tolerance)):
        there = row[asked] is not None
        wanted = f"a figure, as the certificate has a {asked}" if there else f"NULL without a {asked}"
        for name in names:
            _none(f"{table}.{name}", found, found[name].notna() != there, wanted)


def _verdict(row: dict[str, Any], claim: pd.Series, named: list[dict[str, Any]]) -> None:
    """Pages show a verdict as it is stored: one that passes must be one that the pass and the named rows allow."""
    beyond = claim["beyond_tolerance_bound"]
    drawn = certificate_rows.level_of(
        int(claim["nonfinite_rows"]),
        int(claim["beyond_rounding"]),
        None if pd.isna(beyond) else float(beyond),
        row["most_beyond"],
    )
    groups = certificate_rows.totals(certificate_rows.NamedRow(**one) for one in named)
    allowed = certificate_rows.worst_of([drawn, *(group.level(row["most_beyond"]) for group in groups)])
    if row["verdict"] in certificate_rows.PASSED and row["verdict"] != allowed:
        raise FieldError(
            "certificate.verdict", row["verdict"], "one that the claim of the pass and the named rows allow"
        )
