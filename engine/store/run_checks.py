"""A run's bundle held to ``ranges.py``, value by value, and its tables to each other.

A unit is one of the run's layers and heads and comes once, a heatmap has as many bytes as its shape says, totals are
those of the tables.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine.config import LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.schema import FieldError, Positive, Real, Text, checked, in_file
from routesparse.engine.store.columns import Object, check_column, check_columns, json_value
from routesparse.engine.store.ranges import MOST_BLOCKS, MOST_MAP_CELLS, ROUNDING, SCHEMA, UNIT_COUNTS
from routesparse.engine.store.rules import Whole

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
_MOST_PROBES = 1 << 17  # the largest map twice: they are unpacked row by row
_KINDS = 4  # of probe rows: ProbeRow.kinds


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
                check_column(f"{name}.{column}", tables[name].column(column), Whole(0, whole - 1))
        _once(name, tables[name], keys)
    _pairs("head_choice", tables["head_choice"], "body_tokens", "tokens")
    _pairs("audit", tables["audit"], "violations", "rows")
    ends = pc.add(tables["head_choice"]["first_token"], tables["head_choice"]["tokens"])
    check_column("head_choice.first_token + tokens", ends, Whole(1, run["tokens"]))
    _known_candidates(tables)
    _heatmaps(tables["probe"], tables["candidate_score"], run["tokens"], run["block_k"])
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


def _run(run: dict[str, Any], tables: Mapping[str, pa.Table]) -> None:
    """What the run's totals say of each other and of the tables."""
    config, _ = (json_value(f"run.{name}", run[name], Object) for name in ("config_json", "versions_json"))
    checked(_Settings, config, "run.config_json")
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
    if run["tokens"] > MOST_BLOCKS * run["block_k"]:
        wanted = f"at least {-(-run['tokens'] // MOST_BLOCKS)}, with {run['tokens']} tokens"
        raise FieldError("run.block_k", run["block_k"], wanted)
    if run["heads"] % run["kv_heads"]:
        raise FieldError("run.kv_heads", run["kv_heads"], f"a divisor of the {run['heads']} heads")
    units = tables["head_choice"].num_rows
    # A run that was not routed has no units, whatever its totals say.
    if units and run["units"] != units:
        raise FieldError("run.units", run["units"], f"{units}, the rows of head_choice")
    for name in UNIT_COUNTS if units else ():
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


def _worst_rows(rows: pa.Table, tokens: int, block_k: int) -> None:
    """Positions in the prompt; as many shares as lost KV blocks, which the prompt has."""
    check_column("worst_row.position", rows["position"], Whole(0, tokens - 1))
    if not pc.all(
        pc.equal(pc.binary_length(rows["lost_blocks"]), pc.binary_length(rows["lost_mass"]))
    ).as_py():
        raise FieldError("the size of worst_row.lost_mass", None, "that of lost_blocks")
    blocks = -(-tokens // block_k)
    for name, kind, low, high in (
        ("lost_blocks", "<i4", 0, blocks - 1),
        ("lost_mass", "<f4", -ROUNDING, 1 + ROUNDING),
    ):
        for some in rows[name].chunks:
            values = np.frombuffer(b"".join(some.to_pylist()), kind)
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
