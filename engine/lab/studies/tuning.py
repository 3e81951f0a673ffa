"""The measuring half of ``routesparse tune``: the loss of a domain's windows against dense, over a grid of prices.

    python -m routesparse.engine.lab.studies.tuning --out tuning.jsonl --split calibration --seed 0 \\
        --domains prose code dialog --windows 96 --tokens 16384 --prices 2 1 0.5 --processes 4

--out grows by one line per window and price, a window at a time; what it holds already is skipped, so the same command
goes on where it was cut off, and a larger --windows adds to it. Prices are chosen from it by ``routesparse tune DOMAIN
--rows FILE``, which needs no model. Prices are chosen on windows of the calibration split only; --split test is for the
check afterwards.

--questions measures gold answers in place of texts, for ``--target answer=``: files of questions, such as
``routesparse evaluate SUITE --stage prepare`` leaves, each whole; a file's name is its domain, in whatever
folder, and questions of one document count together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate import one_profile, tuning_windows
from routesparse.engine.calibrate.prompts import Document, Window, read_documents
from routesparse.engine.calibrate.questions import read_questions
from routesparse.engine.calibrate.tuning_windows import GRID, Drawn
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Team
from routesparse.engine.errors import CalibrationError, shortened
from routesparse.engine.lab import study
from routesparse.engine.lab.studies import shared
from routesparse.engine.lab.studies.coverage.plan import cluster, projects
from routesparse.engine.models.load import load_tokenizer


def main(argv: list[str] | None = None) -> None:
    """Measure what the file does not hold yet, until the time is up."""
    parser = study.parser(__doc__)
    parser.add_argument("--split", choices=("calibration", "test"), default="calibration")
    parser.add_argument("--domains", nargs="+", default=["prose", "code", "dialog"])
    parser.add_argument(
        "--questions", type=Path, nargs="+", default=[], help=".jsonl files, in place of --domains"
    )
    parser.add_argument("--windows", type=int, default=96, help="a domain, rounded up to as many a cluster")
    parser.add_argument(
        "--tokens", type=int, default=16_384, help="of a window; half where documents are shorter"
    )
    parser.add_argument("--prices", type=float, nargs="+", default=list(GRID))
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    study.add_processes(parser)
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    prices = tuning_windows.check_prices(arguments.prices)
    asked = tuning_windows.Asked(
        *(arguments.model, None, arguments.seed, arguments.split, arguments.tokens, study.command()),
        captured=not arguments.questions,
    )
    opened = asked.opened
    crew, count = Processes(arguments.processes, arguments.ray).crew(opened)
    with Team(crew, count, study.note, deadline) as team:
        first = one_profile.ask(team, opened)
        if first is None:
            study.note("out of time before anything was measured; the same command goes on from here")
            return
        # A domain's windows in turn with the others', so that a run that is cut short has some of each.
        windows = [drawn for lot in _in_turn(_drawn(arguments)) for drawn in lot]
        outcome = tuning_windows.append(team, opened, windows, prices, first, arguments.out)
    shared.check(outcome)


def _drawn(arguments: argparse.Namespace) -> list[list[Drawn]]:
    """The windows of each domain. Errors: InputError, CalibrationError."""
    tokenizer = load_tokenizer(arguments.model).tokenizer
    if arguments.questions:
        return _asked(arguments.questions, arguments.tokens, tokenizer)
    found = []
    for domain in arguments.domains:
        documents, of = read_split(arguments.data, domain, arguments.split, tokenizer)
        shape = (arguments.tokens, arguments.windows)
        found.append(tuning_windows.draw_windows(documents, of, *shape, tokenizer, arguments.seed))
    return found


def read_split(data: Path, domain: str, split: str, tokenizer: Any) -> tuple[list[Document], dict[str, str]]:
    """The documents of a folder <domain>/<split>, and the cluster of each by its name: the document, or the project
    whose piece it is. Errors: InputError, CalibrationError.
    """
    documents, of = read_documents(data / domain / split, domain, tokenizer), projects(data)
    return documents, {d.name: cluster(Window(domain, d.name, d.sha256, 0, ()), of) for d in documents}


def _asked(files: Sequence[Path], tokens: int, tokenizer: Any) -> list[list[Drawn]]:
    """All questions of each domain. Errors: CalibrationError, also for one longer than ``tokens`` with its answer."""
    domains: dict[str, list[Window]] = {}
    for path in files:
        for one in read_questions(path, path.stem, tokenizer):
            if one.tokens + len(one.answer_ids) > tokens:
                raise CalibrationError(
                    f"a question of {shortened(path)} has {one.tokens:,} tokens; pass a larger --tokens"
                )
            domains.setdefault(path.stem, []).append(one)
    return [tuning_windows.draw_questions(lot, len(lot)) for lot in domains.values()]


def _in_turn(lots: Sequence[Sequence[Drawn]]) -> Iterator[list[Drawn]]:
    for place in range(max(map(len, lots))):
        yield [lot[place] for lot in lots if place < len(lot)]


if __name__ == "__main__":
    study.run(main)
