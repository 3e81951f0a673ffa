"""What the command line prints: progress on stderr, results on stdout, and the ``analyze --json`` object."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from routesparse.engine.rows import deviates, is_uncertified
from routesparse.engine.terminal import Terminal, printable
from routesparse.engine.verdict import of_record

if TYPE_CHECKING:
    from routesparse.engine.rows import RunRecord

STAGES = {
    "calibrate": "checking the calibration",
    "profile": "looking for this machine's latency profile, or measuring a quick one",
    "compile": "compiling kernels for this GPU",
    "route": "prefilling with routing",
    "dense": "prefilling densely for comparison",
    "write": "collecting the records",
}
_ASKED = ("run_id", "model", "tokens", "layers", "heads", "segments", "policy", "tau", "tau_layer", "price")
_CHOICE = (
    *("batch_index", "layer", "head", "segment", "pattern", "budget", "density", "mass", "lower_mass"),
    *("disagreement", "risk", "kernel_us", "fallback", "reason", "gate_threshold"),
)
_TIMINGS = ("probe_ms", "index_ms", "route_ms", "kernel_ms", "total_ms")


class Reporter:
    """Progress for people, on stderr: a bar on a terminal; elsewhere a line per stage and at most one a second."""

    def __init__(self) -> None:
        self._console = Terminal(stderr=True)
        self._bar: Progress | None = None
        self._stage = ""
        self._printed_at = 0.0

    def line(self, text: str) -> None:
        """One line of progress, printed at once."""
        self._console.print(_one_line(text))

    def warn(self, text: str) -> None:
        """Something the user should act on, though the command succeeded."""
        self._console.print(_one_line(f"warning: {text}"), style="yellow")

    def __call__(self, stage: str, done: int, total: int) -> None:
        """The engine's callback: done of total in a stage (layers, prompts, ...)."""
        label = STAGES.get(stage) or _one_line(stage)
        if self._bar is not None:
            if stage != self._stage:
                for task in self._bar.task_ids:
                    self._bar.remove_task(task)
                self._bar.add_task(label, total=total)
            self._bar.update(self._bar.task_ids[0], completed=done)
        else:
            now = time.monotonic()
            if stage != self._stage or now - self._printed_at >= 1.0 or (done == total and total > 1):
                self.line(f"{label}: {done}/{total}" if total > 1 else label)
                self._printed_at = now
        self._stage = stage

    @contextmanager
    def bars(self) -> Iterator[Reporter]:
        """Draw bars inside the block where stderr is a terminal; they vanish afterwards."""
        if not self._console.is_terminal:
            yield self
            return
        label = TextColumn("{task.description}", markup=False)
        columns = (label, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as self._bar:
            yield self
        self._bar = None


def print_json(value: Any) -> None:
    """One JSON document on stdout; NaN and Inf, which JSON lacks, become null."""
    text = json.dumps(_finite(value), indent=2, allow_nan=False)
    # The one character of no width that JSON lets pass.
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def out_console() -> Terminal:
    """Results for people, on stdout; wide where nobody's terminal would wrap it."""
    console = Terminal()
    return console if console.file.isatty() else Terminal(width=160)


def analysis_object(record: RunRecord, bundle: Path) -> dict[str, Any]:
    """The object that ``analyze --json`` prints; null means not measured."""
    run = record.run
    compared = [row.executed_error for row in record.audits if row.executed_error is not None]
    judged = of_record(record)
    priced = run.tau_layer is not None
    below = record.uncertified_layers
    certificates = [
        {**_named(row, ("layer", "lower_mass", "raised")), "uncertified": row.layer in below}
        for row in record.layers
    ]
    deviating = sum(deviates(row.executed_error, run.dtype) for row in record.audits)
    return _named(run, _ASKED) | {
        "uncertified_units": len(record.uncertified),
        "uncertified_layers": len(below) if priced else None,
        "layer_certificates": certificates if priced else None,
        "choices": [
            {**_named(one, _CHOICE), "uncertified": is_uncertified(one.pattern, one.lower_mass, run.tau)}
            for one in record.choices
        ],
        "timings": _named(run, _TIMINGS),
        "audit": {
            "rows": run.audit_rows,
            "units": sum(row.covered is not None for row in record.audits),
            "coverage": run.coverage,
            "nominal": run.confidence,
            "certificate": "in-prompt",
            **_named(run, ("mean_error", "max_error")),
            "executed_error": max(compared, default=None),
            "deviating_units": deviating if compared else None,
            "top1_agreement": run.top1_agreement,
        },
        "loss": {
            **_named(run, ("loss_nats", "loss_bound", "loss_fit", "loss_alarm", "loss_target", "loss_ms")),
            "stretches": [_without_run(row) for row in record.losses],
        },
        "verdict": {
            **_named(judged, ("level", "sentence")),
            "findings": [vars(finding) for finding in judged.findings],
        },
        "answer": {
            **_named(run, ("top1_agreement", "kl_nats")),
            "tokens": [_without_run(row) for row in record.answers],
            "continuations": [_without_run(row) for row in record.continuations],
        },
        "bundle": str(bundle),
    }


def _named(row: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _without_run(row: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(row).items() if name != "run_id"}


def _one_line(text: str) -> str:
    return printable(" ".join(text.splitlines()))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
