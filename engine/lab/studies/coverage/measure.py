"""Measure every unit of the planned windows once: what calibrations, coverage, controls and drift are computed from.

    python -m routesparse.engine.lab.studies.coverage.measure --plan plan.jsonl.gz --profile PROFILE.json \\
        --out units --gpus 4 --gpu-processes 5 --processes 40 --limit-s 530

All windows are routed by one policy, the default one, in float32 (TF32 off), with one shipped latency profile, so that
the selected candidates are those of the CPU default wherever this runs; --twins measures some windows on both kinds of
device to show it. The policy "certified" has one frozen lambda; under "priced" every unit has its own. Each window is
written as it comes (``journal.py``), failed windows with their reason. A window that fails on one kind of device is
tried once on the other.

CPU and GPU processes share the work. The truth of a unit is the whole body, or one row of each of 1,024 strata of it:
independent rows would add their own noise to delta.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
import traceback
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from routesparse.engine.config import RouterConfig, certified_mass
from routesparse.engine.device.names import device_name
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.journal import Journal, columns, encode
from routesparse.engine.lab.studies.coverage.plan import Planned, read_plan
from routesparse.engine.lab.studies.coverage.schedule import Schedule
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel, load_model
from routesparse.engine.provenance import git_commit, versions

NOTE_EVERY = 50


@dataclass
class Worker:
    """A process on one device, and the window that it is measuring."""

    device: str
    process: Any
    connection: Connection
    task: Planned | None = None

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        return self.device.split(":")[0]


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the journal."""
    started = time.monotonic()
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.policy == "priced" and arguments.gate_threshold is not None:
        parser.error("--gate-threshold is of the policy certified; under priced each unit has its own lambda")
    header, planned = read_plan(arguments.plan)
    devices = [f"cuda:{i % arguments.gpus}" for i in range(arguments.gpus * arguments.gpu_processes)]
    devices += ["cpu"] * arguments.processes
    schedule = Schedule(planned, sorted({d.split(":")[0] for d in devices}), arguments.long, arguments.twins)
    config = RouterConfig(
        policy=arguments.policy,
        **certified_mass(arguments.policy, arguments.tau),
        gate_threshold=arguments.gate_threshold,
        seed=arguments.seed,
        break_even_tokens=0,
    )
    journal = Journal(arguments.out)
    journal.append(encode(_study(arguments, header, planned, config)))
    study.note(f"{len(planned)} windows on {len(devices)} processes after {time.monotonic() - started:.0f} s")
    workers = [_start(device, arguments, config) for device in devices]
    try:
        _serve(workers, schedule, journal, started, arguments.limit_s)
    finally:
        for worker in workers:
            worker.process.terminate()
        journal.append(encode({"kind": "left", "windows": schedule.left()}))
        journal.close()
    study.note(
        f"{schedule.measured} measured, {len(schedule.left())} left, {time.monotonic() - started:.0f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = study.parser(__doc__)
    parser.add_argument("--plan", type=Path, required=True, help="what coverage.plan wrote")
    parser.add_argument("--profile", type=Path, required=True, help="latency profile (.json)")
    parser.add_argument("--policy", default="priced", choices=("priced", "certified"))
    parser.add_argument("--tau", type=float, default=None, help="of a layer (priced) or a head (certified)")
    parser.add_argument(
        "--gate-threshold",
        type=float,
        default=None,
        help="lambda of the policy certified; default: the configuration's",
    )
    parser.add_argument("--processes", type=int, default=1, help="on CPU cores, one thread each")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--gpu-processes", type=int, default=1, help="per GPU")
    parser.add_argument(
        "--long", type=int, default=8_192, help="GPUs begin with windows above this, CPUs with the rest"
    )
    parser.add_argument("--twins", type=int, default=0, help="windows that both kinds of device measure")
    parser.add_argument("--limit-s", type=float, default=1e9, help="end after this time, whatever is left")
    parser.add_argument("--commit", default=None, help="of the code, where there is no git to ask")
    return parser


def _study(
    arguments: argparse.Namespace, plan: dict[str, Any], planned: list[Planned], config: RouterConfig
) -> dict[str, Any]:
    """Where the numbers come from, and every window that was planned."""
    gpus = [device_name(torch.device("cuda", i)) for i in range(arguments.gpus)]
    return {
        "kind": "study",
        "command": study.command(),
        "created_at": study.now(),
        "devices": {"cpu": device_name(torch.device("cpu")), "cores": os.cpu_count(), "cuda": gpus},
        "processes": {"cpu": arguments.processes, "cuda": arguments.gpus * arguments.gpu_processes},
        "versions": versions(),
        "git_commit": arguments.commit or git_commit(),
        "config": config.to_dict(),
        "gate_threshold": None if config.policy == "priced" else config.effective_gate_threshold,
        "plan": plan,
        "windows": [window.facts for window in planned],
    }


def _start(device: str, arguments: argparse.Namespace, config: RouterConfig) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=work, args=(arguments.model, device, theirs, config, arguments.profile), daemon=True
    )
    process.start()
    theirs.close()
    return Worker(device, process, ours)


def _serve(
    workers: list[Worker], schedule: Schedule, journal: Journal, started: float, limit_s: float
) -> None:
    """Hand out windows and write what comes back, until nobody has anything to do or the time is up."""
    alive = list(workers)
    while True:
        # Whoever waits may take over what another device failed on.
        for worker in [w for w in alive if w.task is None]:
            _hand_out(worker, schedule)
        left_s = limit_s - (time.monotonic() - started)
        if left_s <= 0 or not any(w.task for w in alive):
            return
        ready = wait([w.connection for w in alive], timeout=min(left_s, 5.0))
        for worker in [w for w in alive if w.connection in ready]:
            if not _answer(worker, schedule, journal):
                alive.remove(worker)


def _answer(worker: Worker, schedule: Schedule, journal: Journal) -> bool:
    """Take what a worker sent; False where its process is gone."""
    try:
        found = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(timeout=5)
        found = f"the process on {worker.device} ended with {worker.process.exitcode}"
    task, worker.task = worker.task, None
    if isinstance(found, bytes):
        journal.append(found)
        if task is not None:
            schedule.done(task)
            if schedule.measured % NOTE_EVERY == 0:
                study.note(f"{schedule.measured} measured")
        return True
    study.note(f"{worker.device}: {found}")
    facts = {} if task is None else task.facts
    journal.append(encode({"kind": "failure", "device": worker.device, "reason": found, **facts}))
    if task is not None:
        schedule.failed(task, worker.kind, found.strip().splitlines()[-1])
    return worker.process.is_alive()


def _hand_out(worker: Worker, schedule: Schedule) -> None:
    task = schedule.take(worker.kind)
    if task is None:
        return
    worker.task = task
    try:
        worker.connection.send(task)
    except (BrokenPipeError, ConnectionResetError):
        return  # ``wait`` tells of the end of the process


def work(model: str, device: str, connection: Connection, config: RouterConfig, profile: Path) -> None:
    """A worker: windows from the parent, encoded records back, or the text of an error. It ends when that is fatal."""
    # Imported by the worker: the parent measures nothing.
    from routesparse.engine.lab.studies.coverage.units import measure

    torch.set_num_threads(1)
    loaded, costs = load_float32(model, device), LatencyProfile.load(profile)
    while True:
        task: Planned = connection.recv()
        try:
            window, units = measure(loaded, task, config, costs)
            record = {"kind": "window", **task.facts, **window, "device": device, "units": columns(units)}
            connection.send(encode(record))
        except Exception:  # noqa: BLE001 - told by the parent, which records the window as failed
            connection.send(f"window {task.number}: {traceback.format_exc()}")
            if device != "cpu":
                torch.cuda.synchronize()  # raises, and so ends this process, where the device is lost to it


def load_float32(model: str, device: str) -> LoadedModel:
    """The model in float32 whatever the device, and no TF32 anywhere."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    loaded = load_model(model, device="cpu")
    if device != "cpu":
        torch.cuda.set_device(device)
    return replace(loaded, model=loaded.model.float().to(device), device=device, dtype="float32")


if __name__ == "__main__":
    study.run(main)
