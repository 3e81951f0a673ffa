"""``routesparse backup``, ``restore``, ``prune`` and ``metrics``: keeping a home running."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from pathlib import Path
from typing import Annotated

import typer

from routesparse.engine import paths
from routesparse.engine.cli.options import JsonFlag
from routesparse.engine.cli.output import Reporter, out_console, print_json
from routesparse.engine.errors import InputError

_UNITS = {"h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def backup(
    out: Annotated[Path, typer.Argument(help="A new folder for the backup.")], json_output: JsonFlag = False
) -> None:
    """Copy runs, jobs and prompts, while dashboards and workers run; folder models is left out.

    With ROUTESPARSE_STORE the runs of the lake, with ROUTESPARSE_SHARED those that wait in its spool. With
    ROUTESPARSE_QUEUE a backup holds no jobs of that queue and says so.
    """
    from routesparse.engine.operations.backup import back_up

    made = back_up(paths.home(), out)
    if paths.queue():
        Reporter().warn(
            "the jobs of ROUTESPARSE_QUEUE are not in this backup, nor the prompts, calibrations and profiles in "
            f"{paths.workplace()}; keep them with pg_dump and a copy of that folder"
        )
    if json_output:
        print_json({"path": str(out), "runs": made.runs, "jobs": made.jobs, "files": len(made.files)})
        return
    out_console().print(f"{made.runs} runs and {made.jobs} jobs, {len(made.files)} files\n{out}")


def restore(
    backup: Annotated[Path, typer.Argument(help="A folder that `backup` made.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Move an existing home aside first; stop the dashboard before.")
    ] = False,
    json_output: JsonFlag = False,
) -> None:
    """Check every file of a backup and make it the home; an existing home is never written over.

    With ROUTESPARSE_STORE its runs go into that lake, which may hold no others.
    """
    from routesparse.engine.operations.backup import restore as restore_home

    held, before = restore_home(backup, paths.home(), replace=replace)
    moved = None if before is None else str(before)
    shared = paths.shared() if paths.store() else None
    if paths.queue():
        Reporter().warn(
            f"jobs, prompts, calibrations and profiles of the backup are in {paths.home()}, where nothing reads them "
            f"while ROUTESPARSE_QUEUE is set; copy the last two to {paths.workplace()}"
        )
    if json_output:
        print_json(
            {
                "home": str(paths.home()),
                "runs": held.runs,
                "jobs": held.jobs,
                "moved_aside": moved,
                "lake": shared and str(shared),
            }
        )
        return
    place = "" if shared is None else f", the runs in the lake of {shared}"
    aside = "" if moved is None else f"\nwhat was there before is now {moved}"
    out_console().print(
        f"{held.runs} runs and {held.jobs} jobs of {held.made_at}\n{paths.home()}{place}{aside}",
        markup=False,
        soft_wrap=True,
    )


def prune(
    older_than: Annotated[str, typer.Option(help="Age: hours, days or weeks, as in 12h, 30d, 8w.")],
    keep: Annotated[list[str] | None, typer.Option(help="A run that stays, by its id; repeatable.")] = None,
    pinned: Annotated[bool, typer.Option("--pinned", help="Remove pinned runs, too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only name what would be removed.")] = False,
    json_output: JsonFlag = False,
) -> None:
    """Remove old runs, ended jobs and their prompts for good, and give their room back.

    Stop the dashboard of a file before; those of a lake (ROUTESPARSE_STORE) may run.

    Bundled samples stay, and runs that somebody pinned unless --pinned. Without --dry-run nothing is asked again.
    """
    from routesparse.engine.operations.retention import prune as prune_home

    found = prune_home(paths.home(), age(older_than), keep or (), dry_run=dry_run, with_pinned=pinned)
    if json_output:
        print_json({"dry_run": dry_run, **dataclasses.asdict(found)})
        return
    console = out_console()
    for kind, names in (
        ("run", found.runs),
        ("job", found.jobs),
        ("in trash", found.trash),
        ("pinned, stays", found.pinned),
    ):
        for name in names:
            console.print(f"{kind:<14}{name}")
    freed = (
        "would be removed"
        if found.freed_bytes is None
        else f"removed, {found.freed_bytes / 2**20:,.1f} MiB freed"
    )
    console.print(f"{len(found.runs)} runs and {len(found.jobs)} jobs older than {older_than} {freed}")


def store(
    to: Annotated[
        str | None, typer.Option(help="Copy everything there: lake, from the file; file, from the lake.")
    ] = None,
    json_output: JsonFlag = False,
) -> None:
    """Say which store the environment names, or copy one into the other; stop dashboards and workers before.

    The source stays as it is. Runs that wait in its spool, and a run with other contents, other labels or a deletion in
    one store only, end the copy before it begins.
    """
    from routesparse.engine.store.duckdb_store import Store
    from routesparse.engine.store.opening import open_lake, open_store

    if to not in (None, "file", "lake"):
        raise InputError(f"--to {to[:40]!r}: pass file or lake")
    address = paths.store()
    if to is not None and address is None:
        raise InputError(
            "set ROUTESPARSE_STORE and ROUTESPARSE_SHARED to the lake, also for the way back to the file"
        )
    with contextlib.ExitStack() as opened:
        if to is None or address is None:
            used = opened.enter_context(contextlib.closing(open_store()))
            runs = len(used.run_ids())
            told = {
                "store": "file" if address is None else "lake",
                "runs": runs,
                "bundles": str(used.bundles),
            }
            if json_output:
                print_json(told)
            else:
                print(f"{told['store']}: {runs} runs, their bundles in {told['bundles']}")
            return
        from routesparse.engine.scale.moving import check_settled, copy_store

        file = opened.enter_context(contextlib.closing(Store(paths.database())))
        lake = opened.enter_context(contextlib.closing(open_lake(address)))
        source, target = (file, lake) if to == "lake" else (lake, file)
        check_settled(source, (paths.home() if source is file else lake.shared) / "spool")
        copied = copy_store(source, target, Reporter())
    if json_output:
        print_json({"to": to, **dataclasses.asdict(copied)})
        return
    print(
        f"{copied.runs} runs copied and compared, {copied.already_there} were there, {copied.trashed} in the trash"
    )
    for run in copied.without_bundle:
        print(f"{run}: its rows alone; its bundle was deleted before")


def age(text: str) -> float:
    """Seconds of "30d". Errors: InputError."""
    found = re.fullmatch(r"([0-9]{1,5})([hdw])", text.strip())
    if found is None:
        raise InputError(f"age {text[:40]!r}: pass a number and h, d or w, as in 30d")
    return int(found[1]) * _UNITS[found[2]]


def metrics(
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 9464,
    address: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback at your risk.")
    ] = ("127.0.0.1"),
    once: Annotated[bool, typer.Option("--once", help="Print the metrics and stop.")] = False,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Say whether a job submitted now would run, and stop; exit code 1: no."),
    ] = False,
) -> None:
    """Serve /metrics for Prometheus, /live and /ready, until Ctrl-C: numbers only, no names, no prompts."""
    from routesparse.engine.operations import metrics as of_home

    if ready:
        found = of_home.problems(paths.home())
        print("\n".join(found or ["ready"]))
        raise typer.Exit(1 if found else 0)
    if once:
        print(of_home.text(paths.home()), end="")
        return
    of_home.serve(paths.home(), address, port)
