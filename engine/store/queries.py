"""What the pages read: typed functions over the store, DataFrames for tables and records for single things.

Column names are those of engine/rows.py, units included; NULL (not measured) arrives as NaN or None.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine import probe_masks
from routesparse.engine.errors import InputError
from routesparse.engine.rows import ContinuationRow, Pattern, RunRow
from routesparse.engine.store import tables, thumbnail
from routesparse.engine.store.executed_reads import candidates_of, families_of
from routesparse.engine.store.owner_view import OwnerView

SOURCES = ("analysis", "server request")  # who ran the prompt: somebody here, or a server that recorded it
_SOURCE = f"CASE WHEN served_one_in(config_json) IS NULL THEN '{SOURCES[0]}' ELSE '{SOURCES[1]}' END"
_DAY = "utc_day(created_at)"
_UNIT = "run_key = ? AND layer = ? AND head = ? AND segment = ? AND batch_index = ?"


@dataclass(frozen=True)
class RunFilter:
    """Which runs to list; an empty tuple or text means no limit."""

    # Part of the prompt's or the given name, notes or tags, any case, or the run id's beginning.
    text: str = ""
    domains: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # any of them
    sources: tuple[str, ...] = ()  # of SOURCES
    days: tuple[str, ...] = ()  # "2026-11-23", UTC


@dataclass(frozen=True)
class Unit:
    """One routing unit of one run."""

    run_id: str
    layer: int
    head: int
    segment: int
    batch_index: int = 0


@dataclass(frozen=True)
class Heatmap:
    """A probe heatmap: mass [rows, columns] of key blocks as seen by probe rows, max-pooled."""

    mass: np.ndarray  # float32
    positions: np.ndarray  # int32 [rows]: the (last) key-axis position of each row
    kinds: np.ndarray  # uint8 [rows]: bit k set where the row holds probe rows of kind k
    probe_rows: int
    row_pool: int  # probe rows per heatmap row
    block_pool: int  # key blocks per heatmap column
    # Uint8 [rows, mask columns] per family, see engine/probe_masks.py.
    levels: dict[Pattern, np.ndarray] | None = None
    mask_pool: int = 1  # key blocks per mask column
    first_block: int = 0  # where a part of the picture begins, in key blocks and in probe rows
    first_row: int = 0


@dataclass(frozen=True)
class RoutingPictures:
    """Probe heatmaps of units: layer, head int [units], mass float32 [units, rows, columns] with 0 for rows of another
    kind than routing, positions int32 [units, rows] in tokens, ``pool`` KV blocks a column."""

    layer: np.ndarray
    head: np.ndarray
    mass: np.ndarray
    positions: np.ndarray
    pool: int


def runs(store: OwnerView, limits: RunFilter | None = None) -> pd.DataFrame:
    """All runs that pass, newest first, with ``speedup``, ``fallback_share``, ``uncertified_units``,
    ``stored_units`` and ``stored_layers`` (fewer than ``units`` and ``layers`` where a routed run lost rows), and for
    the policy "priced" ``uncertified_layers`` and ``least_layer_mass`` (NULL: no layer was certified); of all
    layers ``planned_us`` and ``measured_us``, probe to kernel; over the audited units ``violations``,
    ``executed_error`` and ``worst_unit_error`` (the largest mean error of a unit); of the replay ``loss_stretches``,
    ``loss_rows`` and ``loss_true`` (of dense attention at these rows; NULL: no dense prefill ran); of the
    continuation ``same_tokens``, ``continued_tokens`` and ``first_difference`` (from 1; NULL: none, or not continued);
    the run's ``fallback_limit``; its ``day`` (UTC), and ``one_in`` how many routed requests a server recorded it (NULL:
    no server did); and of the owner ``name``, ``notes``, ``tags`` (comma-separated; NULL where none was given) and
    ``pinned``. verdicts.py judges such rows."""
    limits = limits or RunFilter()
    where: list[str] = ["true"]
    values: list[Any] = []
    if limits.text.strip():
        where.append(
            "(contains(lower(concat_ws(chr(10), prompt_name, name, notes, array_to_string(tags, chr(10)))), ?) "
            "OR starts_with(run.run_id, ?) OR ends_with(run.run_id, ?))"
        )
        values += [limits.text.strip().lower(), *[limits.text.strip()] * 2]
    if limits.tags:
        where.append("list_has_any(tags, ?::VARCHAR[])")
        values.append(list(limits.tags))
    named = (
        ("domain", limits.domains),
        ("model", limits.models),
        ("device", limits.devices),
        ("policy", limits.policies),
        ("run.run_id", limits.run_ids),
        (_SOURCE, limits.sources),
        (_DAY, limits.days),
    )
    for column, allowed in named:
        if allowed:
            where.append(f"{column} IN ({', '.join('?' * len(allowed))})")
            values += list(allowed)
    return store.frame(
        f"""
        SELECT run.* EXCLUDE (run_key, bundle_id, config_json, versions_json, owner),
               dense_ms / total_ms AS speedup,
               dense_fallback_units / nullif(units, 0) AS fallback_share,
               (config_json->>'fallback_limit')::DOUBLE AS fallback_limit,
               config_json->>'rope' AS rope,
               coalesce(stored_units, 0) AS stored_units, coalesce(stored_layers, 0) AS stored_layers,
               CASE WHEN units = 0 THEN 0 ELSE uncertified_units END AS uncertified_units,
               uncertified_layers, least_layer_mass, planned_us, measured_us, violations, executed_error,
               worst_unit_error, loss_stretches, loss_rows, loss_true, same_tokens, continued_tokens, first_difference,
               origin = 'sample' AS is_sample,
               {_DAY} AS day, served_one_in(config_json) AS one_in,
               name, notes, nullif(array_to_string(tags, ', '), '') AS tags, coalesce(pinned, false) AS pinned
        FROM run JOIN ingested_bundle USING (bundle_id)
        LEFT JOIN (SELECT * EXCLUDE (owner) FROM run_label) label ON label.run_id = run.run_id
        LEFT JOIN run_summary USING (run_key)
        WHERE {" AND ".join(where)}
        ORDER BY created_at DESC, run_key DESC
        """,
        values,
        of=limits.run_ids,
    )


def filter_values(store: OwnerView) -> dict[str, list[str]]:
    """The values that occur, per filter column: domain, model, device, policy, ``source``, ``day`` (the newest first),
    and the owner's tags as ``tag``."""
    columns = {name: name for name in ("domain", "model", "device", "policy")}
    columns |= {"source": _SOURCE, "day": _DAY}
    lists = ", ".join(
        f"list_sort(list(DISTINCT {c}) FILTER (WHERE {c} IS NOT NULL))" for c in columns.values()
    )
    row = store.rows(f"SELECT {lists} FROM run")[0]
    found = {column: list(values or []) for column, values in zip(columns, row, strict=True)}
    found["day"].reverse()
    tags = store.rows(
        "SELECT DISTINCT unnest(tags) AS tag FROM run_label JOIN run USING (run_id) ORDER BY tag"
    )
    return {**found, "tag": [tag for (tag,) in tags]}


def run(store: OwnerView, run_id: str) -> RunRow | None:
    """One run by its full id; None if it isn't stored."""
    names = tables.arrow_schema("run").names
    found = store.rows(f"SELECT {', '.join(names)} FROM run WHERE run_id = ?", [run_id], of=[run_id])
    return RunRow(**dict(zip(names, found[0], strict=True))) if found else None


def newest(store: OwnerView) -> str | None:
    """The id of the newest run; None if there is none."""
    found = store.rows("SELECT run_id FROM run ORDER BY created_at DESC, run_key DESC LIMIT 1")
    return found[0][0] if found else None


def resolve(store: OwnerView, text: str) -> str:
    """The run id that a link means: the id, its end or its beginning, of at least 4 characters.

    Errors: InputError when no run or several are meant.
    """
    found = store.rows(
        "SELECT run_id FROM run WHERE starts_with(run_id, $1) OR ends_with(run_id, $1) ORDER BY run_id LIMIT 6",
        [text],
    )
    ids = [row[0] for row in found]
    if text in ids:
        return text
    if len(ids) == 1 and len(text) >= 4:
        return ids[0]
    if not ids and len(text) >= 4 and (subject := _certified(store, text)):
        raise InputError(f"{text!r} is a certificate of {subject}; no routing was recorded")
    if not ids or len(text) < 4:
        raise InputError(
            f"no run {text!r} is stored here; it was deleted, or the link is from another machine"
        )
    raise InputError(f"run {text!r} could be any of {', '.join(ids)}; use more of the id")


def _certified(store: OwnerView, text: str) -> str | None:
    """What the certificate with this beginning or end of an id certifies; None where there is none."""
    found = store.rows(
        "SELECT coalesce(plan, function) FROM certificate WHERE starts_with(run_id, $1) OR ends_with(run_id, $1)",
        [text],
    )
    return str(found[0][0]) if found else None


def label(run_id: str) -> str:
    """The run id as pages print it: its last 8 characters (ids begin with the date)."""
    return run_id[-8:]


def short_id(store: OwnerView, run_id: str) -> str:
    """What links use: the label, or the whole id where another run has the same label."""
    same = store.rows("SELECT count(*) FROM run WHERE ends_with(run_id, ?)", [label(run_id)])
    return label(run_id) if same[0][0] == 1 else run_id


def measured(found: pd.DataFrame) -> pd.DataFrame:
    """The rows with NaN, "not measured", for what is infinite: only a damaged row holds that, but an executed error."""
    for name, values in found.items():
        if values.dtype.kind == "f" and name != "executed_error" and np.isinf(values.to_numpy()).any():
            found[name] = values.where(np.isfinite(values))
    return found


def layers(store: OwnerView, run_id: str) -> pd.DataFrame:
    """Per layer planned and measured time, units and fallbacks (over all segments), and the layer's own certificate.

    ``body_density``: summed over the units; ``uncertified`` counts them; ``layer_uncertified``: whether the
    layer's certificate is below tau_layer.
    """
    found = store.frame(
        """
        SELECT l.* EXCLUDE (run_key), c.units, c.body_density, c.expanded, c.dense_fallback, c.dense_router,
               c.uncertified,
               coalesce(layer_uncertified(l.lower_mass, r.tau_layer, c.sparse > 0), false) AS layer_uncertified
        FROM layer_run l JOIN run r USING (run_key)
        LEFT JOIN (
            SELECT layer, count(*) AS units, sum(density) AS body_density,
                   count(*) FILTER (WHERE pattern <> 'dense') AS sparse,
                   count(*) FILTER (WHERE outcome = 'expanded') AS expanded,
                   count(*) FILTER (WHERE outcome = 'dense by fallback') AS dense_fallback,
                   count(*) FILTER (WHERE outcome = 'dense by the router') AS dense_router,
                   count(*) FILTER (WHERE uncertified) AS uncertified
            FROM (SELECT layer, density, pattern, uncertified, outcome(pattern, fallback) AS outcome
                  FROM head_choice WHERE run_key = ?)
            GROUP BY layer
        ) c USING (layer)
        WHERE run_key = ? ORDER BY layer
        """,
        [store.key(run_id)] * 2,
        of=[run_id],
    )
    return measured(found)


def choices(store: OwnerView, run_id: str, segment: int, batch_index: int = 0) -> pd.DataFrame:
    """The decision of every (layer, head) of one segment, with its audit (NULL where not audited)."""
    found = store.frame(
        """
        SELECT c.* EXCLUDE (run_key), a."rows" AS audit_rows, a.mass AS audited_mass,
               a.min_mass AS audited_min_mass,
               gate_statistic(a.mass, c.recent_mass) AS audited_gate, a.covered, a.mean_error AS audited_error,
               a.max_error AS audited_max_error, a.bound_paper, a.bound_tight, a.violations,
               a.row_covered, a.forward_error, a.executed_error
        FROM head_choice c
        LEFT JOIN (SELECT * FROM audit WHERE run_key = ?) a USING (run_key, batch_index, layer, head, segment)
        WHERE run_key = ? AND segment = ? AND batch_index = ? ORDER BY layer, head
        """,
        [*[store.key(run_id)] * 2, segment, batch_index],
        of=[run_id],
    )
    return measured(found)


def candidates(store: OwnerView, unit: Unit) -> pd.DataFrame:
    """Every candidate of one unit; ``lower_mass`` is NULL for the ones whose certificate was never tested, and for
    those that were left because their layer climbed: what is stored of them is the layer's bound."""
    found = store.frame(
        """
        SELECT s.* EXCLUDE (run_key, batch_index, layer, head, segment),
               gate_statistic(s.mass, s.recent_mass) AS gate_statistic,
               coalesce(f.lower_mass, CASE WHEN s.chosen THEN h.lower_mass END) AS lower_mass
        FROM (SELECT * FROM candidate_score WHERE {unit}) s
        LEFT JOIN (SELECT candidate, lower_mass FROM head_choice WHERE {unit}) h USING (candidate)
        LEFT JOIN (SELECT from_candidate, lower_mass FROM fallback_event
                   WHERE {unit} AND scope IS DISTINCT FROM 'layer') f
               ON f.from_candidate = s.candidate
        ORDER BY s.candidate
        """.replace("{unit}", _UNIT),
        _unit_values(store, unit) * 3,
        of=[unit.run_id],
    )
    return measured(found)


def fallbacks(store: OwnerView, unit: Unit) -> pd.DataFrame:
    """The certificates that failed for one unit, in the order they were tested."""
    return store.frame(
        f"SELECT * EXCLUDE (run_key) FROM fallback_event WHERE {_UNIT} ORDER BY test",
        _unit_values(store, unit),
        of=[unit.run_id],
    )


def probe_thumbnail(store: OwnerView, unit: Unit) -> Heatmap | None:
    """The 8-bit thumbnail of one unit's probe; None if the probe was not recorded."""
    found = store.rows(
        f"""
        SELECT thumb, thumb_rows, thumb_columns, thumb_scale, thumb_positions, thumb_kinds, "rows", row_pool,
               column_pool * pool
        FROM probe_meta WHERE {_UNIT}
        """,
        _unit_values(store, unit),
        of=[unit.run_id],
    )
    if not found:
        return None
    values, height, width, scale, positions, kinds, probe_rows, row_pool, block_pool = found[0]
    return Heatmap(
        mass=thumbnail.decode(values, height, width, scale),
        positions=np.frombuffer(positions, "<i4"),
        kinds=np.frombuffer(kinds, np.uint8),
        probe_rows=probe_rows,
        row_pool=row_pool,
        block_pool=block_pool,
    )


def probe_full(store: OwnerView, unit: Unit) -> Heatmap | None:
    """The float16 probe of one unit from the bundle's Parquet; None if the probe or the bundle is gone."""
    place = store.bundle(unit.run_id)
    if place is None:
        return None
    file = place / "probe.parquet"
    try:
        now = file.stat()
        return store.made(
            "probe_full",
            [unit, now.st_mtime_ns, now.st_size],
            lambda: _read_probe(file, unit),
            of=[unit.run_id],
        )
    # ValueError: bytes of another number than the shape says, in a file changed since it was taken in.
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"the probe of run {unit.run_id} can't be read ({type(error).__name__}); copy the bundle again"
        ) from error


def _read_probe(file: Path, unit: Unit) -> Heatmap | None:
    wanted = [(name, "=", getattr(unit, name)) for name in ("layer", "head", "segment", "batch_index")]
    found = pq.read_table(file, filters=wanted).to_pylist()
    return _full_heatmap(found[0], file.parent) if found else None


def _full_heatmap(row: dict[str, Any], place: Path) -> Heatmap:
    levels = None
    if row.get("masks") is not None:
        families = families_of(candidates_of(place))
        levels = probe_masks.decode(row["masks"], row["rows"], row["mask_columns"], families)
    return Heatmap(
        mass=thumbnail.full_mass(row["mass"], row["rows"], row["columns"], row["scale"]),
        positions=np.frombuffer(row["positions"], "<i4"),
        kinds=np.uint8(1) << np.frombuffer(row["kinds"], np.uint8),
        probe_rows=row["rows"],
        row_pool=1,
        block_pool=row["pool"],
        levels=levels,
        mask_pool=row.get("mask_pool") or 1,
    )


def routing_pictures(
    store: OwnerView, run_id: str, segment: int, batch_index: int = 0
) -> RoutingPictures | None:
    """The probe of every unit of a segment, those whose bytes are not all there left out; None where none was recorded,
    or the bundle is gone.

    Errors: InputError.
    """
    place = store.bundle(run_id)
    if place is None:
        return None
    names = ["layer", "head", "rows", "columns", "pool", "scale", "positions", "kinds", "mass"]
    wanted = [("segment", "=", segment), ("batch_index", "=", batch_index)]
    try:
        found = pq.read_table(place / "probe.parquet", columns=names, filters=wanted).to_pylist()
        found = [
            one
            for one in found
            if len(one["mass"]) == 2 * one["rows"] * one["columns"] and len(one["kinds"]) == one["rows"]
        ]
        if not found:
            return None
        routing = thumbnail.KINDS.index("routing")
        mass = [thumbnail.full_mass(*(one[n] for n in ("mass", "rows", "columns", "scale"))) for one in found]
        drawn = [np.frombuffer(one["kinds"], np.uint8) == routing for one in found]
        return RoutingPictures(
            np.array([one["layer"] for one in found]),
            np.array([one["head"] for one in found]),
            np.stack([np.where(rows[:, None], one, 0) for rows, one in zip(drawn, mass, strict=True)]),
            np.stack([np.frombuffer(one["positions"], "<i4") for one in found]),
            int(found[0]["pool"]),
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"the probe of run {run_id} can't be read ({type(error).__name__}); copy the bundle again"
        ) from error


def answers(store: OwnerView, run_id: str, batch_index: int = 0) -> pd.DataFrame:
    """The tokens that may come next by dense attention and by the run, dense's order; empty where none was compared."""
    return store.frame(
        "SELECT * EXCLUDE (run_key) FROM answer WHERE run_key = ? AND batch_index = ? ORDER BY dense_rank",
        [store.key(run_id), batch_index],
        of=[run_id],
    )


def continuation(store: OwnerView, run_id: str, batch_index: int = 0) -> ContinuationRow | None:
    """How the prompt goes on by both; None where it was not continued."""
    columns = ", ".join(field.name for field in fields(ContinuationRow)[1:])
    found = store.rows(
        f"SELECT {columns} FROM continuation WHERE run_key = ? AND batch_index = ?",
        [store.key(run_id), batch_index],
        of=[run_id],
    )
    return ContinuationRow(run_id, *found[0]) if found else None


def losses(store: OwnerView, run_id: str, batch_index: int = 0) -> pd.DataFrame:
    """The stretches of rows that were replayed, in the prompt's order; empty where none was."""
    return store.frame(
        "SELECT * EXCLUDE (run_key) FROM loss WHERE run_key = ? AND batch_index = ? ORDER BY position",
        [store.key(run_id), batch_index],
        of=[run_id],
    )


def _unit_values(store: OwnerView, unit: Unit) -> list[Any]:
    return [store.key(unit.run_id), unit.layer, unit.head, unit.segment, unit.batch_index]
