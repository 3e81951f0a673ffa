"""A worker in a process of its own, for tests that kill, stop and restart it.

``python worker_process.py '{"home": ..., "layers": 5, "layer_s": 0.1, ...}'``: the analysis is a synthetic run that
reports layer by layer and notes in ``home/ran.txt`` that it began. ``die_at`` kills the process at one place of
the handover, where a random moment would rarely hit; ``real`` takes the engine in the fake's place. A prompt's label
may ask it to raise ("raise MemoryError 2": in layer 2) or to have no memory left ("raise memory 2"), and ``home/clock``
sets its wall clock.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from routesparse.engine.errors import NumericsError
from routesparse.engine.jobs import staging
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.worker import run_worker
from routesparse.engine.store import bundle

FACTORY = Path(__file__).resolve().parent.parent / "store" / "factory.py"


SPARE_BYTES = 512 << 20  # of addresses: what the next job's threads reserve, too
ERRORS = {
    "RuntimeError": RuntimeError("a message that quotes the prompt: swordfish"),
    "MemoryError": MemoryError(),
    "NumericsError": NumericsError("layer 2: NaN or Inf in the attention scores; nothing was recorded"),
    "OSError": OSError(errno.ENOSPC, "No space left on device"),
    "ZeroDivisionError": ZeroDivisionError("swordfish"),
}


def set_clock(home: Path) -> None:
    """Let ``home/clock``, a number of seconds, say by how much this process's wall clock was set."""
    told, file = time.time, home / "clock"

    def shifted() -> float:
        try:
            return told() + float(file.read_text())
        except FileNotFoundError:
            return told()

    time.time = shifted


def fill_memory() -> None:
    """Take memory until there is none. What was taken is given back when the error is forgotten, the limit stays."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + SPARE_BYTES, resource.RLIM_INFINITY))
    blocks = []
    while True:
        blocks.append(bytearray(1 << 22))


def raise_asked(label: str, layer: int) -> None:
    """What a prompt's label asks for in this layer."""
    _, _, wish = label.partition("raise ")
    if wish and int(wish.split()[1]) == layer:
        if wish.startswith("memory"):
            fill_memory()
        raise ERRORS[wish.split()[0]]


def load_factory():
    """The module of synthetic runs that the store's tests use."""
    spec = importlib.util.spec_from_file_location("store_factory", FACTORY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fake_analysis(home: Path, layers: int = 3, layer_s: float = 0.0):
    """An analysis that takes layers times layer_s seconds."""
    factory = load_factory()

    def analyze(request, prompt, run_id, report):
        with open(home / "ran.txt", "a") as ran:
            ran.write(run_id + "\n")
        for layer in range(layers):
            report("route", layer, layers)
            time.sleep(layer_s)
            raise_asked(request.label, layer)
        return factory.make_record(
            run_id, name=request.label, layers=2, heads=2, segments=1, tokens=2048, probe_columns=16
        )

    return analyze


def visible(home: Path) -> list[str]:
    """What readers of the spool see."""
    return sorted(path.name for path in home.glob("spool/[!.]*"))


def staged(home: Path) -> list[str]:
    """What attempts have finished and not handed over."""
    return sorted(path.name for path in (home / "spool" / staging.STAGED).glob("*"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(place: str) -> None:
    """Kill this process at one place of the handover."""
    if place == "bundle_half_written":
        bundle.publish = lambda *_: die()
    elif place == "bundle_staged":
        JobQueue.finish = lambda *_: die()
    elif place == "job_finished":
        staging.publish = lambda *_: die()
    elif place == "bundle_published":
        JobQueue.mark_published = lambda *_: die()
    else:
        raise ValueError(place)


def arm_stop() -> None:
    """Stop this process (SIGSTOP) when its bundle is staged and before it says so; it goes on after SIGCONT."""
    finish = JobQueue.finish

    def stopped(*arguments) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)
        finish(*arguments)

    JobQueue.finish = stopped


def _real_analysis():
    """What ``routesparse worker`` runs; imported here because it loads torch."""
    from routesparse.engine.analyze import analyze_prompt
    from routesparse.engine.jobs.analysis import WarmAnalysis

    return WarmAnalysis(analyze_prompt)


def main() -> int:
    options = json.loads(sys.argv[1])
    home = Path(options["home"])
    set_clock(home)
    if options.get("die_at"):
        arm(options["die_at"])
    if options.get("stop_when_staged"):
        arm_stop()
    fake = fake_analysis(home, options.get("layers", 3), options.get("layer_s", 0.0))
    return run_worker(
        home,
        _real_analysis() if options.get("real") else fake,
        poll_s=0.05,
        once=options.get("once", False),
        lease_s=options.get("lease_s", 30.0),
        beat_s=options.get("beat_s", 0.1),
        grace_s=options.get("grace_s"),
    )


if __name__ == "__main__":
    sys.exit(main())
