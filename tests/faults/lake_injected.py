"""The faults of the store of many writers, as injected.py has those of a home. Each needs a LakeStage."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from injected import JOB_S, fill, small_disk, tear
from lake_stage import LakeStage

from routesparse.engine.shared_folder import MARK

TAKE_S = 1.5  # of a dashboard's way from the first bundle that it moves to the commit of three
DOWN_S = 3.0
TELL_S = 20.0  # a folder that something needs meanwhile is told well before, unless nothing needs it
REACHED = "PostgreSQL can't be reached"
DAMAGED = "of the lake is damaged"
ADVICE = "another database"


def writer_killed(stage: LakeStage, tally: Any, moments: random.Random) -> None:
    """A dashboard dies between the first of three bundles that it moves and some time after their commit."""
    if not (stage.spool / MARK).is_file():
        stage.start("web")
        stage.until((stage.spool / MARK).is_file, "the mark that a first dashboard leaves for workers")
    stage.end("web")
    stage.start("worker")
    jobs = [stage.submit() for _ in range(3)]
    stage.until(lambda: all(stage.queue.job(job).ended for job in jobs), "the jobs' ends")
    runs = {stage.queue.job(job).run_id for job in jobs}
    stage.until(lambda: not stage.queue.unpublished(), "the bundles")
    stage.start("web")
    stage.until(lambda: any(not (stage.spool / run).exists() for run in runs), "the first bundle's move")
    time.sleep(moments.uniform(0.0, TAKE_S))
    since = time.monotonic()
    stage.end("web")
    moved = sum((stage.shared / "bundles" / run).is_dir() for run in runs)
    tally.meets(f"{moved} of 3 moved, {'told' if runs <= set(stage.status()['runs']) else 'not told'}")
    stage.look(tally)
    stage.recover(tally, since)


def server_ended(stage: LakeStage, tally: Any, moments: random.Random) -> None:
    """PostgreSQL ends while jobs run and bundles come in, and starts again: the dashboards say so and go on."""
    for name in ("worker", "web"):
        stage.start(name)
    jobs = [stage.submit() for _ in range(3)]
    stage.until_running(jobs[moments.randrange(3)])
    time.sleep(moments.uniform(0.0, JOB_S))
    by = moments.choice([signal.SIGKILL, signal.SIGINT])
    since = time.monotonic()
    stage.end_server(by)
    try:
        stage.until(lambda: stage.status()["trouble"], "the page's word")
        told = stage.status()["trouble"]
        if REACHED not in told:
            tally.wrong.append(f"the page said {told!r}")
        time.sleep(moments.uniform(0.0, DOWN_S))
        stage.look(tally)
    finally:
        stage.start_server()
    tally.meets(by.name)
    process = stage.running["web"]
    stage.recover(tally, since)
    if stage.running["web"] is not process:
        tally.wrong.append("the dashboard ended with PostgreSQL")


def without_room(stage: LakeStage, tally: Any, moments: random.Random, harm: str) -> None:
    """The shared folder fills up or is read-only while jobs run, and then no more: nothing fails, it is late."""
    stage.end(*stage.running)
    name = f"{stage.home.name} {harm} {tally.injected}"
    with small_disk(stage.home.with_name(f"{name} disk")) as disk:
        small = LakeStage(stage.home.with_name(name), stage.patience_s, disk / "shared")
        try:
            for each in ("web", "worker"):
                small.start(each)
            jobs = [small.submit() for _ in range(3)]
            small.until_running(jobs[moments.randrange(3)])
            time.sleep(moments.uniform(0.0, JOB_S))
            since = time.monotonic()
            if harm == "full":
                fill(disk / "filler", moments.choice([0, 4096, 65_536]))
            else:
                _mount_again(disk, "ro")
            until = since + TELL_S
            while not small.status()["trouble"] and time.monotonic() < until:
                time.sleep(0.05)
            small.look(tally)
            tally.meets("told" if small.status()["trouble"] else "not met")
            if harm == "full":
                (disk / "filler").unlink()
            else:
                _mount_again(disk, "rw")
            small.recover(tally, since)
        finally:
            small.close()


def _mount_again(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def damaged_file(stage: LakeStage, tally: Any, moments: random.Random, harm: Callable[..., str]) -> None:
    """A Parquet file of the lake: all is there, or the page says which file and what to do, which brings all back."""
    for name in ("worker", "web"):
        stage.start(name)
    for _ in range(2):
        stage.submit()
    stage.until_stored()
    stage.end("web")
    file = moments.choice(sorted((stage.shared / "lake").rglob("*.parquet")))
    what = harm(file, moments)
    since = time.monotonic()
    (stage.home / "status.json").unlink()
    process = stage.start("web")
    stage.submit("after the damage.txt")
    stage.until(
        lambda: process.poll() is not None or stage.status()["trouble"] or stage.all_stored(), "the lake"
    )
    told = stage.status()["trouble"]
    if process.poll() is None and told is None:
        tally.meets(f"{what}: works")
        stage.recover(tally, since)
        return
    log = stage.home.with_name(f"{stage.home.name} web.log").read_text("utf-8", "replace")
    said = told or log[-2000:]
    tally.meets(f"{what}: {'refused' if told is None else 'told'}")
    if file.name not in said or DAMAGED not in said or ADVICE not in said:
        tally.wrong.append(f"{what} {file.parent.name}: told without what to do: {said}")
    stage.end("web")
    shutil.rmtree(stage.shared / "lake")
    stage.new_lake()
    stage.recover(tally, since)


def one_of_two_killed(stage: LakeStage, tally: Any, moments: random.Random) -> None:
    """Two hosts' dashboards take bundles in at once, and one dies: the other goes on, and both see every run."""
    names = ["web", "web 2"]
    stage.start("worker")
    for name in names:
        stage.start(name)
    jobs = [stage.submit() for _ in range(4)]
    stage.until_running(jobs[moments.randrange(4)])
    time.sleep(moments.uniform(0.0, 2 * JOB_S))
    since = time.monotonic()
    victim = moments.choice(names)
    stage.end(victim)
    tally.meets(f"{victim} killed")
    stage.look(tally)
    other = names[1 - names.index(victim)]
    stage.until(lambda: all(stage.queue.job(job).ended for job in jobs), "the jobs' ends")
    runs = {stage.queue.job(job).run_id for job in jobs}
    # Bundles that the dead one moved and did not list are listed by the other within a minute.
    stage.until(lambda: runs <= set(stage.status(other)["runs"]), f"the runs on {other}")
    stage.start(victim)
    stage.until(lambda: runs <= set(stage.status(victim)["runs"]), f"the runs on {victim}, started again")
    stage.recover(tally, since)
    tally.half |= {f"{run}: {what}" for run, what in stage.status("web 2")["partial"].items()}


FAULTS: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "lake: kill -9 of a writer": writer_killed,
    "lake: PostgreSQL ends": server_ended,
    "lake: shared folder full": partial(without_room, harm="full"),
    "lake: shared folder read-only": partial(without_room, harm="read-only"),
    "lake: torn Parquet file": partial(damaged_file, harm=tear),
    "lake: two dashboards, one killed": one_of_two_killed,
}
MOUNTING = ("lake: shared folder full", "lake: shared folder read-only")
