"""A home with a worker and a web process on it, to be hurt, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.jobs.signals import GRACE_S
from routesparse.engine.store.bundle import verify_bundle

WEB = Path(__file__).with_name("web.py")
WORKER = Path(__file__).resolve().parents[1] / "engine" / "jobs" / "worker_process.py"
PACE = {"layers": 4, "layer_s": 0.05, "lease_s": 1.0, "grace_s": GRACE_S}
PATIENCE_S = 90.0
PROMPT = "a prompt of a few words: swordfish"


@dataclass
class Tally:
    """What came of one kind of fault."""

    injected: int = 0
    lost: set[str] = field(default_factory=set)  # finished runs that the store lacks
    doubled: set[str] = field(default_factory=set)  # jobs with more than one run
    half: set[str] = field(default_factory=set)  # bundles that a reader saw incomplete
    wrong: list[str] = field(default_factory=list)  # anything else that must not be

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.half or self.wrong)


class Stage:
    """Processes are ended by their own pid."""

    def __init__(self, home: Path, patience_s: float = PATIENCE_S) -> None:
        self.home, self.patience_s = home, patience_s
        home.mkdir(parents=True, exist_ok=True)
        self.queue = JobQueue(home)
        self.spool = home / "spool"
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start "web", "worker" or "worker 2"; one that runs is left alone, one that has ended starts anew."""
        if name in self.running and self.running[name].poll() is not None:
            self.running.pop(name)
        if name not in self.running:
            wishes = json.dumps({"home": str(self.home), **PACE, **options})
            with open(self.home.with_name(f"{self.home.name} {name}.log"), "ab") as sink:
                self.running[name] = subprocess.Popen(
                    [sys.executable, str(WEB if name == "web" else WORKER), wishes],
                    env={
                        **os.environ,
                        "ROUTESPARSE_HOME": str(self.home),
                        "OMP_NUM_THREADS": "1",
                    },
                    stdout=sink,
                    stderr=sink,
                )
        return self.running[name]

    def end(self, *names: str, by: int = signal.SIGKILL) -> list[int]:
        """Signal these processes and wait for their end; their exit codes."""
        ending = [self.running.pop(name) for name in names if name in self.running]
        for process in ending:
            process.send_signal(by)
        return [process.wait(timeout=30) for process in ending]

    def close(self) -> None:
        self.end(*self.running)
        self.queue.close()

    def submit(self, label: str = "prompt.txt") -> str:
        return self.queue.submit(RunRequest(label=label), PROMPT)

    def jobs(self) -> list[Any]:
        return self.queue.jobs(limit=100_000)

    def status(self) -> dict[str, Any]:
        """What a page would read; empty before the first look."""
        try:
            return json.loads((self.home / "status.json").read_text())
        except FileNotFoundError:
            return {"runs": [], "partial": {}, "rejected": {}, "trouble": None}

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for it. Errors: AssertionError that says what was found."""
        deadline = time.monotonic() + self.patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {self.patience_s:.0f} s for {what}; {self.found()}")
            time.sleep(0.03)

    def found(self) -> str:
        """What the queue, the spool and the processes say."""
        jobs, status = self.jobs(), self.status()
        open_jobs = [
            f"{job.id} {job.state}, attempt {job.attempt}, stage {job.stage}"
            for job in jobs
            if not job.ended or (job.state == "done" and job.run_id not in status["runs"])
        ]
        logs = {name: self.home.with_name(f"{self.home.name} {name}.log") for name in self.running}
        return "; ".join(
            [
                f"load average {os.getloadavg()[0]:.1f}",
                f"{len(jobs)} jobs, open or not stored: {open_jobs}, not handed over: {self.queue.unpublished()}",
                f"spool: {sorted(path.name for path in (self.home / 'spool').glob('*'))}",
                f"store: {len(status['runs'])} runs, trouble {status['trouble']!r}, rejected {status['rejected']}",
                *(
                    f"{name}: ended with {self.running[name].poll()}, {log.read_text('utf-8', 'replace')[-2_500:]!r}"
                    for name, log in logs.items()
                ),
            ]
        )

    def until_running(self, job_id: str) -> None:
        self.until(lambda: self.queue.job(job_id).state != "queued", "the claim")

    def until_stored(self) -> None:
        """Every job has ended, and the store has the run of each that is done."""

        self.until(self.all_stored, "the jobs' ends and their runs")

    def all_stored(self) -> bool:
        jobs = self.jobs()
        done = {job.run_id for job in jobs if job.state == "done"}
        return all(job.ended for job in jobs) and done <= set(self.status()["runs"])

    def look(self, tally: Tally) -> None:
        """What readers of the spool see now is whole."""
        for path in self.spool.glob("[!.]*"):
            if path.name == "rejected":
                continue
            try:
                verify_bundle(path)
            except Exception as error:  # noqa: BLE001
                # Taken in by the web process between the listing and the reading.
                if path.exists():
                    tally.half.add(f"{path.name}: {error}")

    def recover(self, tally: Tally, failed: frozenset[str] = frozenset()) -> None:
        """Worker and web run again; every job ends well but those of ``failed``, and so does the next one."""
        self.start("worker")
        self.start("web")
        following = self.submit("next.txt")
        self.until_stored()
        runs = self.status()["runs"]
        for job in self.jobs():
            if job.state == "done" and job.run_id not in runs:
                tally.lost.add(job.run_id)
            if job.state != "done" and job.id not in failed:
                tally.wrong.append(f"job {job.id} is {job.state}: {job.failure and job.failure.message}")
        if self.queue.job(following).state != "done":
            tally.wrong.append("the next job did not work")
        made = [run_id.rpartition("-")[0] for run_id in runs]
        tally.doubled |= {job_id for job_id in made if made.count(job_id) > 1}
        tally.half |= {f"{run_id}: {what}" for run_id, what in self.status()["partial"].items()}
