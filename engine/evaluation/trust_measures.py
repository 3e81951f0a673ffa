"""Measure every unit of many windows once: what calibrations, coverage, controls and drift are computed from.

    python -m routesparse.engine.evaluation.trust_measures --out units.parquet --profile PROFILE.json --processes 14

Calibration windows (both folds of each domain) and test windows are routed by the default policy at one frozen
lambda in float32, with one shipped latency profile, so that the selected candidates are those of the CPU default
wherever this runs. The truth is the mean over the whole body (GPU) or over 1,024 random rows of it (CPU). Writes
<stem>-A.parquet, <stem>-B.parquet and <stem>-test.parquet (one row per unit) and <stem>-windows.parquet (one row per
window); ``trust.py`` reads them.
"""

from __future__ import annotations

import multiprocessing
import queue
import random
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from routesparse.engine.audit import audit_units, measure_rows
from routesparse.engine.calibration_measures import prefill
from routesparse.engine.calibration_prompts import Document, Window, cut, read_documents, split_folds, tile
from routesparse.engine.candidate_audit import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.certificate import bernstein_lower_bound, betting_lower_bound, row_lower_bound
from routesparse.engine.config import RouterConfig
from routesparse.engine.demo_model.tasks import fit_sample
from routesparse.engine.evaluation import study
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.models import LoadedModel, load_model
from routesparse.engine.session import RoutingSession

DOMAINS = ("prose", "code", "dialog")
TEST_DOMAINS = (*DOMAINS, "docs")
NEEDLES = {
    "needles in text": ("niah_single_2", "niah_multikey_1"),
    "needles among needles": ("niah_multikey_2", "niah_multikey_3"),
}
BUCKETS = ((4_096, 8_192), (8_193, 16_384))
FOLDS = {"A": (30, 12), "B": (104, 40)}  # windows per domain and bucket
TEST_LENGTHS = (4_096, 8_192)
LONG = 16_384
SHARE_A = 0.25
NEEDLE_SEED = 77
ERROR_ROWS = 64
AUDIT_ROWS = 128
BODY_ROWS = 1_024  # of the truth on a CPU; a GPU audits the whole body
SAMPLED_ROWS = 8
FALLBACK = {None: 0, "expand": 1, "dense": 2}


@dataclass(frozen=True)
class Task:
    """One window to measure. part: "A", "B" or "test"."""

    number: int
    part: str
    window: Window
    config: RouterConfig
    profile: LatencyProfile


class UnitSession(RoutingSession):
    """Audits every unit's whole body and keeps one row per unit."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.config, profile=task.profile, audit="rows", salt=task.window.sha256)
        self.rows: list[dict[str, Any]] = []
        self._calibrating = task.part != "test"

    def _audit(self, inputs: Any, decision: Any) -> list[Any]:
        whole = inputs.q.is_cuda
        body = draw_body_rows(inputs, decision, None if whole else BODY_ROWS, self._seed())
        body = body.sort(-1).values
        masses = candidate_masses(inputs, decision, body, self.config).flatten(0, 1)
        true = masses.double().mean(1).cpu().numpy()
        errors = None
        if self._calibrating:
            some = draw_body_rows(inputs, decision, ERROR_ROWS, self._seed())
            errors = candidate_errors(inputs, decision, some).flatten(0, 1).numpy()
        audits = {a.head: a for a in audit_units(inputs, decision, AUDIT_ROWS, self._seed())}
        for unit in range(decision.heads):
            offset = (body[0, unit] % decision.segment.block_q).cpu().numpy()
            row = self._row(decision, unit, masses[unit].cpu().numpy().astype(np.float64), true[unit], offset)
            if unit in audits:
                row |= {
                    name: getattr(audits[unit], name)
                    for name in (
                        "mean_error",
                        "max_error",
                        "bound_paper",
                        "bound_tight",
                        "violations",
                        "rows",
                    )
                }
                row |= self._sampled(inputs, decision, unit)
            if errors is not None:
                scores = decision.scores
                row["gate_all"] = scores.gate[unit].astype(np.float32)
                row["target_all"] = np.minimum(true[unit], scores.recent_mass[unit]).astype(np.float32)
                row["disagreement_all"] = scores.disagreement[unit].astype(np.float32)
                row["error_all"] = errors[unit].astype(np.float32)
            self.rows.append(row)
        return []

    def _row(
        self, decision: Any, unit: int, masses: np.ndarray, true: np.ndarray, offset: np.ndarray
    ) -> dict[str, Any]:
        """masses float64 [rows, C] of one unit's audited rows, offset [rows] in their query blocks."""
        scores, certified, config = decision.scores, decision.certified, self.config
        chosen, first, dense = int(certified.choice[unit]), int(decision.routed.choice[unit]), len(true) - 1
        tests = [t for t in certified.tests if t.unit == unit]
        row = {
            "layer": decision.layer,
            "segment": decision.segment.index,
            "head": unit,
            "pattern": decision.candidates[chosen].pattern,
            "chosen": chosen,
            "first": first,
            "dense": dense,
            "fallback": FALLBACK[certified.fallback[unit]],
            "density": scores.density[unit, chosen],
            "gate": scores.gate[unit, chosen],
            "mass": scores.mass[unit, chosen],
            "recent_mass": scores.recent_mass[unit, chosen],
            "disagreement": scores.disagreement[unit, chosen],
            "entropy": decision.entropy[unit],
            "local_band": decision.local_band[unit],
            "agreement": decision.agreement[unit],
            "true_mass": true[chosen],
            "test_lower": [t.lower_mass for t in tests],
            "test_true": [true[t.candidate] for t in tests],
        }
        error = 1.0 - config.confidence
        if first != dense:
            bound = row_lower_bound(decision.certificate_mass[unit, :, first], config.confidence)
            row["first_row_covered"] = (masses[:, first] >= bound).mean()
        if chosen == dense:
            return row
        rows, truth = decision.certificate_mass[unit, :, chosen], masses[:, chosen]
        bounds = {
            "row_q": row_lower_bound(rows, config.confidence),
            "row_s": row_lower_bound(rows, 1.0 - error / config.max_tests),
        }
        row |= bounds | {f"{name}_covered": (truth >= bound).mean() for name, bound in bounds.items()}
        # The control: last rows of query blocks, as a probe that walks the blocks would take them.
        rng = np.random.default_rng([decision.layer, unit, decision.segment.body])
        aligned = truth[offset == config.block_q - 1]
        row |= {
            "lower": certified.lower_mass[unit],
            "bernstein": bernstein_lower_bound(rows, error / config.max_tests),
        }
        if not len(aligned):
            return row
        return row | {
            "aligned_mass": rng.choice(aligned, config.routing_rows).mean(),
            "aligned_lower": betting_lower_bound(
                rng.choice(aligned, config.certificate_rows), error / config.max_tests
            ),
        }

    def _sampled(self, inputs: Any, decision: Any, unit: int) -> dict[str, list[float]]:
        """Error and both bounds of a few random rows, relative to the row's output."""
        rows = draw_body_rows(inputs, decision, SAMPLED_ROWS, self._seed())[0, unit].sort().values
        found = measure_rows(inputs, decision, 0, unit, rows)
        norm = np.maximum(found["norm"], 1e-12)
        return {f"row_{name}": (found[name] / norm).tolist() for name in ("error", "paper", "tight")}


_model: LoadedModel | None = None


def start_worker(model: str, device: str) -> None:
    """One model per process, in float32 whatever the device."""
    global _model
    torch.set_num_threads(1)
    loaded = load_model(model, device=device)
    _model = replace(loaded, model=loaded.model.float(), dtype="float32")


def work_off(model: str, device: str, queues: list[Any], results: Any) -> None:
    """A worker: windows from the first queue that has one, results and errors to the parent."""
    start_worker(model, device)
    for tasks_left in queues:
        while (task := tasks_left.get()) is not None:
            try:
                results.put(measure(task))
            except Exception:  # noqa: BLE001 - told by the parent, which counts the window as missing
                results.put(f"window {task.number} on {device}: {traceback.format_exc()}")
        tasks_left.put(None)  # for the next worker


def measure(task: Task) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One window's row and its units' rows."""
    assert _model is not None
    started = time.perf_counter()
    session = UnitSession(task)
    prefill(_model, task.window.token_ids, session)
    run = session.trace.record().run
    window = {
        "window": task.number,
        "part": task.part,
        "domain": task.window.domain,
        "document": task.window.document,
        "document_sha256": task.window.document_sha256,
        "sha256": task.window.sha256,
        "start": task.window.start,
        "tokens": task.window.tokens,
        "density": run.density,
        "gate": task.config.gate_threshold,
        "profile": task.profile.name,
        "seconds": time.perf_counter() - started,
    }
    return window, [{"window": task.number, **row} for row in session.rows]


def tasks(loaded: LoadedModel, arguments: Any) -> Iterator[Task]:
    """All windows: both folds of each domain, then the tests."""
    config = RouterConfig(gate=arguments.gate, seed=arguments.seed, break_even_tokens=0)
    profile = LatencyProfile.load(arguments.profile)
    for number, (part, window) in enumerate(
        _windows(loaded, arguments.data, arguments.seed, arguments.scale)
    ):
        wanted = not arguments.parts or part in arguments.parts
        if wanted and (not arguments.lengths or window.tokens in arguments.lengths):
            yield Task(number, part, window, config, profile)


def _windows(loaded: LoadedModel, data: Path, seed: int, scale: float) -> Iterator[tuple[str, Window]]:
    tokenizer = loaded.tokenizer
    for domain in DOMAINS:
        documents = read_documents(data / domain / "calibration", domain, tokenizer)
        folds = dict(zip("AB", split_folds(documents, SHARE_A, seed), strict=True))
        for fold, members in folds.items():
            for count, (least, most) in zip(FOLDS[fold], BUCKETS, strict=True):
                for window in cut(members, max(1, round(scale * count)), least, most, tokenizer, seed):
                    yield fold, window
    for domain in TEST_DOMAINS:
        documents = read_documents(data / domain / "test", domain, tokenizer)
        for tokens in TEST_LENGTHS:
            for window in cut(documents, max(1, round(scale * 64)), tokens, tokens, tokenizer, seed):
                yield "test", window
        long = tile(documents, LONG, tokenizer)
        for window in long[: max(1, round(scale * len(long)))]:
            yield "test", window
    haystacks = [p.read_text() for p in sorted((data / "prose" / "test").glob("*.txt"))]
    for domain, kinds in NEEDLES.items():
        for tokens, count in ((4_096, 64), (8_192, 64), (LONG, 32)):
            for index in range(max(1, round(scale * count))):
                yield "test", _needle(domain, kinds[index % 2], tokens, index, haystacks, tokenizer, seed)


def _needle(
    domain: str, kind: str, tokens: int, index: int, haystacks: list[str], tokenizer: Any, seed: int
) -> Window:
    """Each needle prompt is its own document, except that needles in text share their haystacks."""

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    place = index % len(haystacks)
    sample = fit_sample(
        kind, tokens - 1, count_tokens=count, haystack=haystacks[place], seed=seed + NEEDLE_SEED, index=index
    )
    ids = tokenizer(sample.prompt + sample.answer_prefix, add_special_tokens=False)["input_ids"]
    name = f"haystack {place}" if domain == "needles in text" else f"{kind} {tokens} {index}"
    document = Document(domain, name, "", np.asarray(ids, dtype=np.int32))
    return Window(domain, document.name, "", 0, (tokenizer.bos_token_id or 0, *ids))


def main(argv: list[str] | None = None) -> None:
    """Measure, and write both files."""
    parser = study.parser(__doc__)
    parser.add_argument("--processes", type=int, default=1, help="on CPU cores, one thread each")
    parser.add_argument("--gpu-processes", type=int, default=0)
    parser.add_argument(
        "--long", type=int, default=8_192, help="longer windows are left to the GPU's processes"
    )
    parser.add_argument("--profile", type=Path, required=True, help="latency profile (.json)")
    parser.add_argument("--gate", type=float, default=None, help="lambda; default: the configuration's")
    parser.add_argument("--parts", nargs="*", default=[], help="A, B, test; default: all")
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="only windows of these lengths")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the windows, for a first look")
    parser.add_argument("--done", type=Path, help="windows file of an earlier run: these are left out")
    parser.add_argument("--limit-s", type=float, default=1e9, help="stop handing out windows after this time")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    work = list(tasks(load_model(arguments.model, device="cpu"), arguments))
    if arguments.done:
        done = set(pq.read_table(arguments.done, columns=["window"]).column(0).to_pylist())
        work = [task for task in work if task.number not in done]
    random.Random(0).shuffle(work)  # a run that is cut short leaves some of everything
    study.note(f"{len(work)} windows after {time.monotonic() - started:.0f} s")
    windows: list[dict[str, Any]] = []
    units: list[dict[str, Any]] = []
    for made in _measured(work, arguments, started):
        windows.append(made[0])
        units += made[1]
        if len(windows) % 50 == 0:
            study.note(f"{len(windows)}/{len(work)} after {time.monotonic() - started:.0f} s")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    parts = {window["window"]: window["part"] for window in windows}
    for part in sorted(set(parts.values())):
        mine = [row for row in units if parts[row["window"]] == part]
        write(arguments.out.with_name(f"{arguments.out.stem}-{part}.parquet"), mine)
    write(arguments.out.with_name(f"{arguments.out.stem}-windows.parquet"), windows)


def _measured(work: list[Task], arguments: Any, started: float) -> Iterator[tuple[Any, Any]]:
    """Results as they come, until all are there or the time is up. Long windows are the GPU's, short ones anybody's."""
    context = multiprocessing.get_context("spawn")
    long, short, results = context.Queue(), context.Queue(), context.Queue()
    for task in work:
        (long if arguments.gpu_processes and task.window.tokens > arguments.long else short).put(task)
    long.put(None)
    short.put(None)
    plans = [("cuda:0", [long, short])] * arguments.gpu_processes + [("cpu", [short])] * arguments.processes
    workers = [
        context.Process(target=work_off, args=(arguments.model, device, queues, results), daemon=True)
        for device, queues in plans
    ]
    for worker in workers:
        worker.start()
    left = len(work)
    while left and time.monotonic() - started < arguments.limit_s:
        try:
            made = results.get(timeout=5)
        except queue.Empty:
            if not any(worker.is_alive() for worker in workers):
                break
            continue
        left -= 1
        if isinstance(made, str):
            study.note(made)
        else:
            yield made
    for worker in workers:
        worker.terminate()
    for unread in (long, short):
        unread.cancel_join_thread()


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as Parquet, floats as float32; a value that a row lacks is NULL."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {}
    for name in names:
        values = (row.get(name) for row in rows)
        column = pa.array(
            [v.item() if isinstance(v, np.ndarray | np.generic) and v.ndim == 0 else v for v in values]
        )
        if pa.types.is_floating(column.type):
            column = column.cast(pa.float32())
        elif pa.types.is_list(column.type):
            column = column.cast(pa.list_(pa.float32()))
        columns[name] = column
    pq.write_table(pa.table(columns), path, compression="zstd", compression_level=9)


if __name__ == "__main__":
    main()
