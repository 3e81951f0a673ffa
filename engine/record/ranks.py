"""One record of a prompt whose heads several processes served (tensor parallelism).

A layer waits for its slowest process, so its times are that one's, and the run's are sums over layers. What a layer's
certificate says, it says of each process's heads by themselves: the least is kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from routesparse.engine.record.block_reads import within_bytes
from routesparse.engine.rows import LayerRow, RunRecord, RunRow

_BY_HEAD = (
    *("choices", "candidates", "fallbacks", "audits", "worst_rows"),
    *("block_reads", "traced_rows", "probes"),
)
_TIMES = ("probe_us", "index_us", "route_us", "kernel_us")
_SUMMED = (
    *("heads", "kv_heads", "units", "sparse_units", "expanded_units"),
    *("dense_fallback_units", "dense_router_units", "unmet_units"),
)


class HeadShare(Protocol):
    """Which heads of a model one process serves."""

    @property
    def first_head(self) -> int:
        """The model's number of the first of them."""

    @property
    def heads(self) -> int:
        """How many the whole model has."""


def shifted(record: RunRecord, first_head: int) -> RunRecord:
    """The record with its heads numbered from first_head on."""
    moved: dict[str, Any] = {
        name: tuple(replace(row, head=row.head + first_head) for row in getattr(record, name))
        for name in _BY_HEAD
    }
    return replace(record, **moved)


def merged(records: Sequence[RunRecord]) -> RunRecord:
    """One record of all heads, from each process's own; their heads are numbered as in the whole model.

    ``config_json`` then holds "ranks", and "rank_load": the layers' times of the slowest process over the mean of all.
    """
    run_id = records[0].run.run_id
    layers = tuple(_layer([r.layers[i] for r in records]) for i in range(len(records[0].layers)))
    rows: dict[str, Any] = {
        name: tuple(
            sorted(
                (replace(row, run_id=run_id) for record in records for row in getattr(record, name)),
                key=lambda row: (row.batch_index, row.layer, row.segment, row.head),
            )
        )
        for name in _BY_HEAD
    }
    rows["block_reads"] = tuple(within_bytes(run_id, rows["block_reads"]))
    merged_record = replace(records[0], layers=layers, **rows)
    return replace(merged_record, run=_run([r.run for r in records], merged_record, _load(records)))


def _layer(rows: Sequence[LayerRow]) -> LayerRow:
    slowest = max(rows, key=_time_us)
    return replace(
        slowest,
        run_id=rows[0].run_id,
        planned_us=max(row.planned_us for row in rows),
        dense_us=max(row.dense_us for row in rows),
        limit_us=_most([row.limit_us for row in rows]),
        density=float(np.mean([row.density for row in rows])),
        over_budget=any(row.over_budget for row in rows),
        forward_error=_most([row.forward_error for row in rows]),
        lower_mass=min((row.lower_mass for row in rows if row.lower_mass is not None), default=None),
        raised=_most([row.raised for row in rows]),
    )


def _run(runs: Sequence[RunRow], record: RunRecord, load: float | None) -> RunRow:
    covered = [audit.covered for audit in record.audits if audit.covered is not None]
    times_ms = {
        name.replace("_us", "_ms"): sum(getattr(layer, name) for layer in record.layers) / 1e3
        for name in _TIMES
    }
    own_ms = [run.probe_ms + run.index_ms + run.route_ms + run.kernel_ms for run in runs]
    measured = [run.total_ms for run, own in zip(runs, own_ms, strict=True) if run.total_ms != own]
    densities = [run.density for run in runs if run.density is not None]
    config = json.loads(runs[0].config_json) | {"ranks": len(runs)}
    return replace(
        runs[0],
        **{name: _sum([getattr(run, name) for run in runs]) for name in _SUMMED},
        **times_ms,
        total_ms=max(measured) if measured else sum(times_ms.values()),
        segments=max(run.segments for run in runs),
        routed=any(run.routed for run in runs),
        density=float(np.mean(densities)) if densities else None,
        over_budget_layers=sum(layer.over_budget for layer in record.layers),
        coverage=float(np.mean(covered)) if covered else None,
        mean_error=float(np.mean([a.mean_error for a in record.audits])) if record.audits else None,
        max_error=_most([run.max_error for run in runs]),
        config_json=json.dumps(config if load is None else config | {"rank_load": load}, sort_keys=True),
    )


def _time_us(layer: LayerRow) -> float:
    return float(sum(getattr(layer, name) for name in _TIMES))


def _load(records: Sequence[RunRecord]) -> float | None:
    """Layer times of the slowest process over the mean of all processes; None where nothing was routed."""
    times = np.array([[_time_us(layer) for layer in record.layers] for record in records])
    return float(times.max(0).sum() / times.mean(0).sum()) if times.size else None


def _most(values: Sequence[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)
