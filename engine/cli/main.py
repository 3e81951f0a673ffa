"""The command line: ``routesparse COMMAND ...``.

Exit codes: 0 done; 2 the user's input is wrong, and one line says what and what to do; 1 anything else. Nothing
heavy is imported here: commands import torch only after their first line of progress.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from routesparse.engine import paths
from routesparse.engine.cli.analyze import analyze
from routesparse.engine.cli.bench import bench
from routesparse.engine.cli.bundles import export, ingest, report, runs
from routesparse.engine.cli.calibrate import calibrate
from routesparse.engine.cli.certify import certify
from routesparse.engine.cli.doctor import doctor
from routesparse.engine.cli.evaluate import evaluate
from routesparse.engine.cli.fit import fit
from routesparse.engine.cli.operations import backup, metrics, prune, restore, store
from routesparse.engine.cli.profile import profile
from routesparse.engine.cli.score import score
from routesparse.engine.cli.tune import tune
from routesparse.engine.cli.worker import worker
from routesparse.engine.errors import InputError, RouteSparseError, is_out_of_memory, shortened
from routesparse.engine.terminal import escaped

app = typer.Typer(
    name="routesparse",
    help="Input-conditional sparse attention for long prompts: analyse, certify, profile, keep the evidence.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _with_local_paths(command: Callable[..., None]) -> Callable[..., None]:
    """The command, every path of which is one of this machine."""

    def here(value: Any) -> Any:
        if isinstance(value, list):
            return [here(one) for one in value]
        return paths.local(value) if isinstance(value, Path) else value

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{name: here(value) for name, value in given.items()})

    return called


# As --help shows them.
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Analyse": (analyze, certify),
    "Measure": (fit, profile, calibrate, tune, evaluate, score, bench),
    "Share": (runs, report, export, ingest),
    "Operate": (doctor, worker, metrics, backup, restore, prune, store),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(rich_help_panel=group)(_with_local_paths(command))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"routesparse {metadata.version('routesparse')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; allowed anywhere.")] = False,
) -> None:
    """Options of every command; ``main`` takes --debug out before they are parsed."""


@escaped()
def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the console script passes it to the shell."""
    # Runs hold prompts: what is written is for this user only.
    os.umask(0o077)
    # Read by torch's OpenMP when it is loaded. Threads that spin at a barrier while another program holds their core
    # made a prefill fifteen times slower on two cores; a short spin costs nothing when the machine is quiet.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        code = typer.main.get_command(app)(given, prog_name="routesparse", standalone_mode=False)
    except InputError as error:
        return _fail(str(error), 2, debug)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`): keep the interpreter from flushing into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        told = _machine(error)
        if told is not None:
            return _fail(told, 2, debug)
        return _unexpected(error, debug)
    # The outermost boundary: every defect ends in one line, a traceback on disk and exit code 1.
    except Exception as error:  # noqa: BLE001
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        if isinstance(error, RouteSparseError) and isinstance(error.__cause__, OSError):
            # A disk that is full or can't be written is the user's to mend.
            return _fail(str(error), 2, debug) if _machine(error.__cause__) else _unexpected(error, debug)
        return _unexpected(error, debug)
    if code == 130:
        return _fail("interrupted", 1, False)
    return code if isinstance(code, int) else 0


def _unexpected(error: Exception, debug: bool) -> int:
    """A defect, or a machine that fails."""
    message = str(error) if isinstance(error, RouteSparseError) else f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        message = "out of memory; pass a shorter prompt or a smaller model or shape, or free memory"
    if not debug:
        message += f" (traceback: {_keep_traceback()}; --debug shows it)"
    return _fail(message, 1, debug)


def _machine(error: OSError) -> str | None:
    """What the user can mend: a full disk, a folder that can't be written, a name that is too long; else None."""
    where = shortened(error.filename or "a file")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {where} was not written; free space and retry"
    if error.errno == errno.ENAMETOOLONG:
        return f"the name {where} is too long; pass a shorter one"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{where} can't be read or written ({error.strerror}); check its permissions, or set ROUTESPARSE_HOME"
    return None


def _usage(error: Exception) -> int:
    """A wrong option, value or argument; typer's own message on one line."""
    message = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "routesparse"
    return _fail(f"{message} (see {command} --help)", 2, False)


def _fail(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print("error:", " ".join(message.split()), file=sys.stderr)
    return code


def _keep_traceback() -> Path:
    """Write the current traceback to disk and return the file."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    folders = [Path(tempfile.gettempdir())]
    with contextlib.suppress(InputError):  # a home that can't be one
        folders.insert(0, paths.home() / "errors")
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(traceback.format_exc(), "utf-8")
        except OSError:
            continue
        return folder / name
    return Path("nowhere, no folder is writable")


if __name__ == "__main__":
    sys.exit(main())
