"""Area against loss of every selection rule, on the same prompts and the same kernel.

    python -m routesparse.engine.lab.studies.selection --out selection.jsonl --lengths 32768 \\
        --tasks text:prose vt --methods routesparse=0.9 flexprefill=0.95 --seed 1

--out grows by one line per method, setting and prompt; what it holds already is skipped, so the same command goes on
where it was cut off (a failed line is tried again). Every method's first setting comes before any second one.
--seed 0: development, on documents of the calibration split; any other seed: reported, on those of test.
--no-extras: rules as published, without what every plan of RouteSparse reads. table.py makes tables of the files.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Container, Sequence
from typing import Any

from routesparse.engine.calibrate import one_profile
from routesparse.engine.calibrate.origin import origin
from routesparse.engine.calibrate.row_files import Appender
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import failures
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection import methods, prompts, rows
from routesparse.engine.lab.studies.selection.measure import Bench, probes_of, why_failed
from routesparse.engine.models.load import load_in_turn


def main(argv: list[str] | None = None) -> int:
    """Measure what the file does not hold yet, until the time is up. Returns how many measurements failed."""
    parser = study.parser(__doc__)
    parser.set_defaults(seed=prompts.DEVELOPMENT_SEED)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32_768])
    parser.add_argument("--tasks", nargs="+", default=list(prompts.DEFAULT_TASKS))
    parser.add_argument("--methods", nargs="+", default=methods.known(), help="NAME or NAME=VALUE,VALUE")
    parser.add_argument("--prompts", type=int, default=10, help="per task and length")
    parser.add_argument("--windows", type=int, default=4, help="per text domain and length")
    parser.add_argument("--no-extras", action="store_true")
    parser.add_argument(
        "--foretold", type=int, default=0, help="stretches whose rows are replayed (foretold.py)"
    )
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    study.add_processes(parser)
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    arguments.methods = ["dense", *arguments.methods]
    turns = methods.rounds(arguments.methods)  # an unknown name ends the run before anything is loaded
    done = rows.read_rows([arguments.out] if arguments.out.exists() else [])[0]
    items = prompts.items(
        arguments.tasks, arguments.lengths, arguments.prompts, arguments.windows, arguments.seed
    )
    lots = [lot_of(turn, item, not arguments.no_extras, done) for turn in turns for item in items]
    processes = Processes(arguments.processes, arguments.ray)
    opened = one_profile.opening(functools.partial(_opened, arguments, study.command()))
    with Appender(arguments.out) as out:

        def keep(piece: Piece, line: dict[str, Any] | None) -> None:
            if line is not None:
                out.write(line)

        work = Work("measure", opened, lots, keep)
        outcome = one_profile.share(
            work, processes, study.note, deadline, lambda header, _: out.write(header)
        )
    if outcome.failed:
        raise SystemExit(f"{failures(outcome, 'pieces')}; the same command tries again")
    return len(out.failed)


def lot_of(
    turn: Sequence[tuple[str, float]], item: prompts.Item, extras: bool, done: Container[rows.Key]
) -> list[Piece]:
    """One prompt by the methods of a turn that ``done`` does not hold."""
    return [
        Piece(f"{name}={setting:g} {item.name}", (item, (name, setting)))
        for name, setting in turn
        if rows.key_of(label(name, setting, item, extras)) not in done
    ]


def _opened(arguments: argparse.Namespace, command: str, place: int) -> Measuring:
    """A process's own model and methods."""
    loaded = load_in_turn(arguments.model, place)
    bench = Bench(loaded, extras=not arguments.no_extras, stretches=arguments.foretold)
    header = origin(loaded, command, arguments.seed)
    maker = prompts.Prompts(arguments.data, loaded.tokenizer, arguments.seed)
    return Measuring(bench, arguments, maker, header)


class Measuring:
    """Makes the row of one prompt by one method; None for a method that can't be made."""

    def __init__(
        self, bench: Bench, arguments: argparse.Namespace, maker: prompts.Prompts, header: dict[str, Any]
    ) -> None:
        usable = bench.usable(arguments.methods, arguments.lengths, arguments.data, arguments.out.parent)
        self._methods = {(one.name, one.setting): one for one in usable}
        self.bench, self.header, self.probes = bench, header, probes_of(self._methods.values())
        self._extras, self._maker = not arguments.no_extras, maker
        self._prompts: dict[prompts.Item, prompts.Prompt] = {}

    def __call__(self, given: tuple[prompts.Item, tuple[str, float]]) -> dict[str, Any] | None:
        item, named = given
        method = self._methods.get(named)
        if method is None:
            return None
        if item not in self._prompts:
            self._prompts[item] = self._maker.make(item)
        return label(*named, item, self._extras) | measured(self.bench, self._prompts[item], method)


def label(name: str, setting: float, item: prompts.Item, extras: bool) -> dict[str, Any]:
    """What names a row. Methods that extras change nothing of are measured once, under true."""
    return {
        "method": name,
        "setting": setting,
        "task": item.task,
        "length": item.length,
        "index": item.index,
        "seed": item.seed,
        "extras": extras or not methods.takes_extras(name),
        "reported": item.seed != prompts.DEVELOPMENT_SEED,
    }


def measured(bench: Bench, prompt: prompts.Prompt, method: methods.Method) -> dict[str, Any]:
    """One row's numbers, or why there are none."""
    about = {**prompt.about, "tokens": len(prompt.ids), "positions": len(prompt.asked) or len(prompt.answer)}
    try:
        return about | bench.measure(prompt, method)
    except Exception as error:  # noqa: BLE001
        return about | {"failed": why_failed(error)}
