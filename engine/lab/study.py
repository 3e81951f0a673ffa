"""What every study shares: a model, a header that says where numbers come from, and a JSON file."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from routesparse.engine.errors import RouteSparseError
from routesparse.engine.terminal import printable


def parser(description: str | None) -> argparse.ArgumentParser:
    """Arguments that every study takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--model", default="demo", help="demo, or a model folder")
    made.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder <domain>/<split>/*.txt"
    )
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", type=Path, required=True, help="JSON file to write")
    return made


def add_processes(parser: argparse.ArgumentParser) -> None:
    """Arguments of a study whose pieces processes share."""
    parser.add_argument("--processes", type=int, help="that share the prompts, GPUs in turn; default: one")
    parser.add_argument("--ray", help="local, auto or HOST:PORT: work on a Ray cluster (make ray)")


def run(main: Callable[[], object]) -> NoReturn:
    """For ``python -m``: an error of ours ends in one line and exit code 2, measurements that failed in 1."""
    try:
        failed = main()
    except RouteSparseError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(1 if failed else 0)


def command() -> str:
    """The command that makes this file again."""
    spec = sys.modules["__main__"].__spec__
    module = Path(sys.argv[0]).stem if spec is None else spec.name.removesuffix(".__main__")
    return portable(f"python -m {module} {shlex.join(sys.argv[1:])}")


def portable(text: str) -> str:
    """A command without the folders of one machine: of an absolute path the last name stays."""
    return re.sub(r"(?<![\w.])/[^\s=]*/([^\s/]+)", r"\1", text)


def note(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
