"""What every value of a certificate's bundle may be, as ``ranges.py`` says it of a run's."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from routesparse.engine import certificate_rows
from routesparse.engine.certificate_rows import MOST_TOKEN_TEXT
from routesparse.engine.rows import EXECUTED_TOLERANCE
from routesparse.engine.schema import FieldError
from routesparse.engine.store import ranges
from routesparse.engine.store.columns import Object, check_columns, json_value
from routesparse.engine.store.rules import Number, OneOf, Rule, Text, Whole

_RUN, _UNIT = ranges.SCHEMA["run"], ranges.SCHEMA["audit"]
_SHARE = _UNIT["mass"]
_ROWS = Whole(0, ranges.INT64)
# Relative to an output that may be as small as float32 has it; infinite where the output under test is.
_ERROR = Number(0.0, 1e39, open=True)
_SENTENCE = Text(2_000)
_MOST_NAMED = 1 << 14
_MOST_CLAIMS = 1 << 17  # the largest map twice: they are unpacked row by row
_SAME = (
    *("run_id", "created_at", "model", "model_revision", "tokenizer_hash", "prompt_name", "prompt_sha256"),
    *("batch", "tokens", "layers", "heads", "kv_heads", "head_dim", "device", "versions_json"),
    *("git_commit", "seed", "config_json", "confidence", "owner"),
)

SCHEMA: dict[str, dict[str, Rule]] = {
    "certificate": {
        **{name: _RUN[name] for name in _SAME},
        **dict.fromkeys(("function", "plan"), Text(lines=True)),  # shown escaped
        "dtype": OneOf(tuple(EXECUTED_TOLERANCE)),
        "sampled_rows": Whole(1),
        **dict.fromkeys(("mass_level", "most_beyond"), Number(0.0, 1.0)),
        "tolerance": Number(0.0, 1e39),
        "dense_layers": Whole(0, ranges.MOST_LAYERS),
        "verdict": OneOf(certificate_rows.LEVELS),
        "sentence": _SENTENCE,
        "findings_json": Text(1 << 14, lines=True),
    },
    "claim": {
        **{name: _UNIT[name] for name in ("run_id", "batch_index", "layer", "head")},
        "scope": OneOf(certificate_rows.SCOPES),
        "worst_position": ranges.SCHEMA["worst_row"]["position"],
        "rows": Whole(1, ranges.INT64),
        **dict.fromkeys(("mean_error", "mean_error_bound", "share_within"), _SHARE),
        **dict.fromkeys(("largest_error", "plan_error", "disagreement"), _ERROR),
        **dict.fromkeys(("nonfinite_rows", "beyond_rounding", "beyond_tolerance", "low_rows"), _ROWS),
        **dict.fromkeys(("beyond_rounding_bound", "beyond_tolerance_bound", "low_rows_bound"), _SHARE),
        **dict.fromkeys(("mass", "mass_bound", "hit_rate", "hit_rate_bound"), _SHARE),
    },
    "named_row": {
        **{name: _UNIT[name] for name in ("run_id", "batch_index")},
        **{f"worst_{name}": _UNIT[name] for name in ("layer", "head")},
        "label": Text(32, pattern=r"^([0-9]+|last):[0-9]+$"),
        "position": ranges.SCHEMA["worst_row"]["position"],
        "text": Text(MOST_TOKEN_TEXT, lines=True),  # shown escaped
        "rows": Whole(1, ranges.INT64),
        **dict.fromkeys(("mean_error", "mass", "hit_rate"), _SHARE),
        "largest_error": _ERROR,
        **dict.fromkeys(("nonfinite_rows", "beyond_rounding", "beyond_tolerance"), _ROWS),
    },
}
_WHERE = ("batch_index", "layer", "head")
_OF_A_PLAN = (
    *("mass", "mass_bound", "low_rows", "low_rows_bound", "hit_rate", "hit_rate_bound"),
    *("plan_error", "disagreement"),
)
_OF_A_TOLERANCE = ("beyond_tolerance", "beyond_tolerance_bound")
_NAMED = {"pass": (), "layer": ("layer",), "head": _WHERE}  # what tells the claims of a scope apart


def check(tables: Mapping[str, pa.Table]) -> None:
    """Hold a certificate's tables to SCHEMA and to each other. Errors: FieldError for the first value out of range."""
    for name, table in tables.items():
        check_table(name, table)
    if tables["certificate"].num_rows != 1:
        raise FieldError("rows of certificate", tables["certificate"].num_rows, "1")
    row = tables["certificate"].to_pylist()[0]
    _certificate(row)
    most = min(_MOST_CLAIMS, 1 + row["layers"] * (1 + row["heads"] * row["batch"]))
    if tables["claim"].num_rows > most:
        raise FieldError("rows of claim", tables["claim"].num_rows, f"at most {most}")
    found = tables.get("named_row", tables["claim"].slice(0, 0))
    if found.num_rows > _MOST_NAMED:
        raise FieldError("rows of named_row", found.num_rows, f"at most {_MOST_NAMED}")
    named = found.to_pylist()
    _claims(row, tables["claim"].to_pylist())
    _named(row, named)
    _verdict(row, tables["claim"].to_pylist(), named)


def check_table(name: str, table: pa.Table) -> None:
    """Hold one table to SCHEMA. Errors: FieldError for the first value out of range."""
    check_columns(name, table, SCHEMA[name])


def _certificate(row: dict[str, Any]) -> None:
    kinds = {"config_json": Object, "versions_json": Object, "findings_json": list[str]}
    for name, kind in kinds.items():
        json_value(f"certificate.{name}", row[name], kind)
    try:
        datetime.datetime.fromisoformat(row["created_at"])
    except ValueError:
        raise FieldError("certificate.created_at", row["created_at"], "a time in ISO 8601") from None
    if row["layers"] * row["heads"] > ranges.MOST_MAP_CELLS:
        raise FieldError(
            "certificate.layers",
            row["layers"],
            f"at most {ranges.MOST_MAP_CELLS // row['heads']} of so many heads",
        )
    if row["dense_layers"] > row["layers"]:
        raise FieldError(
            "certificate.dense_layers", row["dense_layers"], f"at most the {row['layers']} layers"
        )


def _claims(row: dict[str, Any], claims: list[dict[str, Any]]) -> None:
    """Each claim names what it is about, once, and what the certificate has; a pass has one claim of its own."""
    sizes = {"batch_index": row["batch"], "layer": row["layers"], "head": row["heads"]}
    seen = set()
    for place, claim in enumerate(claims):
        named = _NAMED[claim["scope"]]
        for name in _WHERE:
            found = claim[name]
            if (found is not None) != (name in named) or (found is not None and found >= sizes[name]):
                wanted = f"a whole number below {sizes[name]}" if name in named else "NULL"
                raise FieldError(
                    f"claim.{name} in row {place}", found, f"{wanted} in scope {claim['scope']!r}"
                )
        if claim["scope"] == "head" and claim["worst_position"] is None:
            raise FieldError(f"claim.worst_position in row {place}", None, "a token of the prompt")
        if claim["worst_position"] is not None and claim["worst_position"] >= row["tokens"]:
            raise FieldError(
                f"claim.worst_position in row {place}", claim["worst_position"], f"below {row['tokens']}"
            )
        key = (claim["scope"], *(claim[name] for name in _WHERE))
        if key in seen:
            raise FieldError(f"claim in row {place}", str(key), "the only one of its head, layer or pass")
        seen.add(key)
        for name in ("nonfinite_rows", "beyond_rounding", "beyond_tolerance", "low_rows"):
            if (claim[name] or 0) > claim["rows"]:
                raise FieldError(
                    f"claim.{name} in row {place}", claim[name], f"at most the {claim['rows']} rows"
                )
    if ("pass", None, None, None) not in seen:
        raise FieldError("claims of the pass", 0, "1")
    for place, claim in enumerate(claims):
        _as_asked(f"claim.{{}} in row {place}", claim, row, _OF_A_PLAN, _OF_A_TOLERANCE)


def _named(row: dict[str, Any], named: list[dict[str, Any]]) -> None:
    """Each named token once a label, of the certificate's prompt, with as many rows as it has heads."""
    sizes = {
        "batch_index": row["batch"],
        "worst_layer": row["layers"],
        "worst_head": row["heads"],
        "position": row["tokens"],
    }
    wanted = row["layers"] * row["heads"]
    seen = set()
    for place, one in enumerate(named):
        for name, size in sizes.items():
            if one[name] >= size:
                raise FieldError(f"named_row.{name} in row {place}", one[name], f"below {size}")
        if one["rows"] != wanted:
            raise FieldError(f"named_row.rows in row {place}", one["rows"], f"{wanted}, one of each head")
        for name in ("nonfinite_rows", "beyond_rounding", "beyond_tolerance"):
            if (one[name] or 0) > wanted:
                raise FieldError(f"named_row.{name} in row {place}", one[name], f"at most the {wanted} rows")
        key = (one["label"], one["batch_index"], one["position"])
        if key in seen:
            raise FieldError(f"named_row in row {place}", str(key), "the only one of its label and token")
        seen.add(key)
        _as_asked(f"named_row.{{}} in row {place}", one, row, ("mass", "hit_rate"), ("beyond_tolerance",))


def _as_asked(
    where: str,
    found: dict[str, Any],
    row: dict[str, Any],
    of_plan: tuple[str, ...],
    of_tolerance: tuple[str, ...],
) -> None:
    """Figures of a plan or a tolerance are there where the certificate has one, and only there.

    Pages and verdicts take NULL for "not asked": a claim that lacks what was asked would pass for one without doubts.
    """
    for asked, names in (("plan", of_plan), ("tolerance", of_tolerance)):
        for name in names:
            if row[asked] is None and found[name] is not None:
                raise FieldError(where.format(name), found[name], f"NULL without a {asked}")
            if row[asked] is not None and found[name] is None:
                raise FieldError(where.format(name), None, f"a figure, as the certificate has a {asked}")


def _verdict(row: dict[str, Any], claims: list[dict[str, Any]], named: list[dict[str, Any]]) -> None:
    """Pages show a verdict as it is stored: one that passes must be one that the pass and the named rows allow."""
    whole = next(claim for claim in claims if claim["scope"] == "pass")
    drawn = certificate_rows.level_of(
        whole["nonfinite_rows"],
        whole["beyond_rounding"],
        whole["beyond_tolerance_bound"],
        row["most_beyond"],
    )
    groups = certificate_rows.totals(certificate_rows.NamedRow(**one) for one in named)
    allowed = certificate_rows.worst_of([drawn, *(group.level(row["most_beyond"]) for group in groups)])
    if row["verdict"] in certificate_rows.PASSED and row["verdict"] != allowed:
        raise FieldError(
            "certificate.verdict", row["verdict"], "one that the claim of the pass and the named rows allow"
        )
