"""Requests that a server recorded, as the page Fleet shows them."""

from __future__ import annotations

import datetime
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace

from synthetic.runs import make_record, rename

from routesparse.engine.rows import RunRecord


def small_record() -> RunRecord:
    """One layer of two heads with neither audit, probe nor text: what a server keeps of a request."""
    return make_record(
        layers=1,
        heads=2,
        segments=1,
        tokens=2048,
        audit=False,
        dense=False,
        probe=False,
        prompt=False,
    )


def served(record: RunRecord, created_at: str, one_in: int = 50, **changes: object) -> RunRecord:
    """The same run as a request that a server recorded, without a drift alarm unless ``changes`` has one."""
    config = json.loads(record.run.config_json) | {"served": {"by": "vllm", "one_in": one_in}}
    drift = {"drift_alarm": False, "drift_distance": 1.0, "drift_p": 0.01}
    named = {"created_at": created_at, "config_json": json.dumps(config)}
    return replace(record, run=replace(record.run, **(named | drift | changes)))


def fleet(
    days: int, per_day: int, last: str = "2026-11-19", model: str = "demo", bad: int = 1
) -> Iterator[RunRecord]:
    """Requests of a model on so many days up to ``last``; ``bad`` days before it, most keep more and raise an alarm."""
    made = small_record()
    for back in range(days):
        day = (datetime.date.fromisoformat(last) - datetime.timedelta(back)).isoformat()
        for place in range(per_day):
            is_odd = back == bad and place % 10 > 0
            yield served(
                rename(made, f"{day.replace('-', '')}-{zlib.crc32(model.encode()):08x}-{place:04d}"),
                f"{day}T{place % 24:02d}:{place // 24:02d}:00+00:00",
                model=model,
                tokens=2048 + 512 * (place % 9),
                density=0.6 if is_odd else 0.2 + 0.01 * (place % 5),
                drift_alarm=is_odd,
            )
