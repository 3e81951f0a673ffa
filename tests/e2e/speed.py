"""How fast the dashboard is with many runs: ``python tests/e2e/speed.py [--against FOLDER] [--out FILE]``.

Fills a store with N runs (``--runs``, default 1,000) of 8 x 8 heads, a quarter of them requests of a server in the two
weeks before, two of 32 x 32 heads x 8 segments at 128K tokens, and a certificate of 32 x 32 heads, all written by the
real bundle writer, then lets Chromium visit it in fresh contexts (speed_visits.py). Prints a table against the targets
(median of the visits) and writes it with the command, versions and machine to data/results/dashboard.json.

``--against`` names another checkout, of a version that may lack some pages. Its dashboard runs beside this one, on runs
that its own writer made, is visited in turn with it, and every action gets the median ratio of this version's wall
clock and server CPU to its: what else the machine did weighs on both. Times alone compare two days of a machine.
``--only PAGE`` times the first paint of that page alone and by itself writes no file; it may be given several times.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

from playwright.sync_api import sync_playwright

from routesparse.engine import errors
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.provenance import git_commit
from routesparse.engine.store import spool
from routesparse.engine.store.bundle import write_bundle
from routesparse.engine.store.duckdb_store import Store

# The checkout that ``routesparse`` means here; ``--against`` has the other one's runs written by its own modules.
CHECKOUT = Path(errors.__file__).resolve().parents[1]
# A script, run by its path: its neighbours are found through the search path.
sys.path[:0] = [str(CHECKOUT / "tests" / "engine" / "store"), str(Path(__file__).parent)]
factory = import_module("factory")
serve = import_module("serve")
visits = import_module("speed_visits")

SETTINGS = (0.1, 0.2, 0.3, 0.5, 1.0)  # prices
JOBS = 100
DAYS, LEAST_RUNS = 14, 64  # of requests
KNOWS_FLEETS = hasattr(factory, "served")  # the checkout whose modules these are
RESULT = serve.REPOSITORY / "data" / "results" / "dashboard.json"
PAYLOAD_BYTES = 1_000_000  # of every action
# What is measured -> limit in seconds; the idle page's is a share of a core.
TARGETS_S = {
    "ingest 8 x 8 x 4 x 21": 0.2,
    "ingest 32 x 32 x 8 x 21": 2.0,
    **{f"first paint: {name}": 3.0 for name in visits.PAINTS},
    "switch: runs to map": 1.0,
    "switch: map to head": 1.0,
    "switch: head to runs": 1.0,
    "switch: runs to sweep": 1.0,
    "switch: sweep to models": 1.0,
    "switch: text to map": 1.0,
    "switch: fleet to certificate": 1.0,
    "switch: certificate to results": 1.0,
    "map: click a cell": 0.5,
    "map: arrow key": 0.5,
    "map: colour by another metric": 0.5,
    "map: another segment": 0.5,
    "head: probe picture of the next head": 0.5,
    "text: scroll to the middle": 0.5,
    "text: find a phrase": 0.5,
    "text: click another head": 0.5,
    "text: show the worst row": 0.5,
    "fleet: the days before": 0.5,
    "certificate: colour by another figure": 0.5,
}
IDLE_SHARE = 0.02


def big_record():
    """32 x 32 heads, 8 segments, 21 candidates, 131,072 tokens; a probe of the size that a run may keep."""
    return factory.make_record(
        visits.BIG,
        name="contract-128k.txt",
        domain="prose",
        layers=32,
        heads=32,
        segments=8,
        tokens=131_072,
        seed=8,
        probe_columns=32,
        probe_kinds=(5, 18, 0, 5),
        hardness=0.6,
    )


def ingest_seconds(home: Path, record, times: int):
    """Ingest of one bundle from the spool, each time under another id."""
    store = Store(home / "routesparse.duckdb")
    result = visits.Measured()
    for i in range(times):
        write_bundle(factory.rename(record, f"ingest{i}"), home / "spool")
        start, cpu = time.perf_counter(), time.process_time()
        spool.ingest_spool(store, home / "spool")
        result.wall_s.append(time.perf_counter() - start)
        result.server_cpu_s.append(time.process_time() - cpu)
    store.close()
    return result


def fill(home: Path, runs: int) -> None:
    """Runs of 8 x 8 x 1 x 21 with audit and without probe, some of them of one sweep; the big ones are the newest."""
    big = big_record()
    store = Store(home / "routesparse.duckdb")
    base = factory.make_record(segments=1, probe=False)
    for i in range(runs):
        made = factory.rename(base, f"{i * 7919 % 2**20:08x}{i:08x}")
        if i < len(SETTINGS):
            priced = factory.priced(made)
            made = replace(priced, run=replace(priced.run, sweep=visits.SWEEP, price=SETTINGS[i]))
        elif i % 4 == 0 and KNOWS_FLEETS:
            day = datetime.date(2026, 11, 19) - datetime.timedelta(i // 4 % DAYS)
            made = factory.served(made, f"{day}T{i % 24:02d}:12:31+00:00", drift_alarm=i % 40 == 0)
        _take_in(store, made, home)
    big_ones = [factory.rename(big, visits.OTHER_BIG), big]
    if KNOWS_FLEETS:
        big_ones.append(factory.make_certificate(layers=32, heads=32))
    for record in big_ones:
        _take_in(store, record, home)
    store.close()
    serve.forget_samples(home)
    with closing(JobQueue(home)) as queue:
        for i in range(JOBS):
            queue.submit(RunRequest(label=f"prompt-{i}.txt"), f"A ledger of vessels, page {i}.")
            job = queue.claim("worker-1")
            queue.finish(job, job.run_id)


def _take_in(store: Store, record, home: Path) -> None:
    write_bundle(record, home / "spool")
    report = spool.ingest_spool(store, home / "spool")
    if report.rejected:
        raise SystemExit(report.rejected[0].reason)


def fill_by(checkout: Path, names: Path, home: Path, runs: int) -> subprocess.Popen[bytes]:
    """``fill`` by the modules of another checkout, in a process. names: what serve.named made of it."""
    home.mkdir()
    command = [sys.executable, __file__, "--fill", str(home), "--runs", str(runs)]
    return subprocess.Popen(command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(names)})


def report(here: visits.Side, against: visits.Side | None) -> list[dict[str, object]]:
    """Rows of medians with their targets; ``*_ratio``: median over the visits of this version's over the other's."""
    rows: list[dict[str, object]] = []
    for name, limit in TARGETS_S.items():
        if name not in here.results:  # not asked for
            continue
        measured = here.results[name]
        wall = statistics.median(measured.wall_s)
        heaviest = max(measured.socket_bytes, default=0)
        row = {
            "what": name,
            "n": len(measured.wall_s),
            "wall_s": round(wall, 3),
            "worst_wall_s": round(max(measured.wall_s), 3),
            "target_s": limit,
            "server_cpu_s": round(statistics.median(measured.server_cpu_s), 3),
            "browser_cpu_s": round(statistics.median(measured.browser_cpu_s or [0]), 3),
            "socket_bytes": int(statistics.median(measured.socket_bytes or [0])),
            "met": wall < limit and heaviest < PAYLOAD_BYTES,
        }
        if against is not None and name in against.results:
            other = against.results[name]
            row |= {
                "against_wall_s": round(statistics.median(other.wall_s), 3),
                "against_socket_bytes": int(statistics.median(other.socket_bytes)),
                "wall_ratio": _ratio(measured.wall_s, other.wall_s),
                "server_cpu_ratio": _ratio(measured.server_cpu_s, other.server_cpu_s),
            }
        rows.append(row)
    idle = {
        "what": "idle open page",
        "n": 1,
        "core_share": round(here.idle_share, 4),
        "target_share": IDLE_SHARE,
    }
    if against is not None:
        idle["against_core_share"] = round(against.idle_share, 4)
    rows.append({**idle, "met": here.idle_share < IDLE_SHARE})
    return rows


def _fills_fleets(checkout: Path) -> bool:
    """Whether its factory makes requests of a server: in one file, or in those of its folder ``synthetic``."""
    files = (checkout / "tests/engine/store").rglob("*.py")
    return any("def served(" in file.read_text("utf-8") for file in files)


def _ratio(ours: list[float], others: list[float]) -> float | None:
    """The median of the pairs; None where the other's are too short to be measured."""
    pairs = [one / other for one, other in zip(ours, others, strict=True) if other > 0]
    return round(statistics.median(pairs), 3) if pairs else None


def show(rows: list[dict[str, object]]) -> None:
    """The table for people."""
    paired = any("wall_ratio" in row for row in rows)
    more = f"{'wall ratio':>12}{'CPU ratio':>11}" if paired else ""
    print(
        f"{'':38}{'median':>8}{'worst':>8}{'target':>8}{'server CPU':>12}{'browser CPU':>13}{'socket':>10}{more}"
    )
    for row in rows[:-1]:
        times = f"{row['wall_s']:>7.2f}s{row['worst_wall_s']:>7.2f}s{row['target_s']:>7.1f}s"
        work = f"{row['server_cpu_s']:>11.2f}s{row['browser_cpu_s']:>12.2f}s"
        socket = f"{row['socket_bytes'] / 1000:>7,.0f} KB"
        ratios = [row.get("wall_ratio"), row.get("server_cpu_ratio")] if paired else []
        pair = "".join(f"{'–' if one is None else f'{one:.2f}':>11}" for one in ratios)
        print(f"{row['what']:38}{times}{work}{socket}{pair}{'' if row['met'] else '  MISSED'}")
    last = rows[-1]
    print(
        f"{last['what']:38}{last['core_share']:>8.1%} of a core, target {last['target_share']:.0%}"
        + (f", against {last['against_core_share']:.1%}" if "against_core_share" in last else "")
    )


def main(arguments: argparse.Namespace) -> None:
    """Fill, start, measure, print, write."""
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (place / "here").mkdir()
        if arguments.against:
            names = serve.named(arguments.against, place / "names")
            filling = fill_by(arguments.against, names, place / "against", arguments.runs)
            stack.callback(filling.kill)
        fill(place / "here", arguments.runs)
        if arguments.against and filling.wait():
            raise SystemExit(f"{arguments.against} could not fill a store")
        # After the other one's filling, which would weigh on it.
        ingested = {
            "ingest 8 x 8 x 4 x 21": ingest_seconds(place / "small", factory.make_record(segments=4), 5),
            "ingest 32 x 32 x 8 x 21": ingest_seconds(place / "big", big_record(), 3),
        }
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=str(serve.CHROMIUM), args=serve.FLAGS)
        sides = [visits.Side(stack.enter_context(serve.dashboard(place / "here")))]
        if arguments.against:
            other = serve.dashboard(place / "against", checkout=arguments.against, names=names)
            sides.append(visits.Side(stack.enter_context(other)))
        for side in sides:
            visits.find_pages(browser, side)
        if arguments.against and not _fills_fleets(arguments.against):
            sides[1].pages -= {"fleet", "certificate"}  # they would be timed empty
        for number in range(1 + arguments.visits):
            for side in sides:
                visits.visit(browser, side, arguments.only)
                if number == 0:  # the first visitor warms the server and is not counted
                    side.results.clear()
        for side in sides:
            side.idle_share = visits.idle_share(browser, side)
        browser.close()
    sides[0].results.update(ingested)
    rows = report(sides[0], sides[1] if arguments.against else None)
    show(rows)
    out = arguments.out
    if out is None and not arguments.only:
        out = RESULT
    if out:
        _write(Path(out), arguments, load, rows)


def _write(file: Path, arguments: argparse.Namespace, load: float, rows: list[dict[str, object]]) -> None:
    versions = {name: metadata.version(name) for name in ("streamlit", "plotly", "duckdb", "playwright")}
    header = {
        "command": shlex.join(["python", "tests/e2e/speed.py", *sys.argv[1:]]),
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git_commit": git_commit(),
        "machine": f"{os.cpu_count()} CPU cores, Chromium on the same machine",
        "load_before": round(load, 2),
        "versions": versions,
        "runs": arguments.runs + 2,
        "socket_target_bytes": PAYLOAD_BYTES,
    }
    file.write_text(json.dumps({**header, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout to visit in turn with this one")
    parser.add_argument("--only", action="append", default=[], choices=visits.PAINTS, help="a page")
    parser.add_argument("--out", help="empty: write no file; with --only the default writes none")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.runs < LEAST_RUNS:
        parser.error(
            f"--runs {chosen.runs}: pass at least {LEAST_RUNS}, so that requests fall on all {DAYS} days"
        )
    if chosen.fill:
        fill(chosen.fill, chosen.runs)
    else:
        main(chosen)
