"""Area against loss of every selection rule, on the same prompts and the same kernel.

    python -m routesparse.engine.evaluation.studies.selection --out selection.jsonl --lengths 32768 \\
        --tasks text:prose vt relay --methods routesparse=0.9 flexprefill=0.95 trial:NAME=0.002 --seed 1

--out grows by one line per method, setting and prompt; what it holds already is skipped, so the same command goes on
where it was cut off (a failed line is tried again). Every method's first setting comes before any second one.
--seed 0: development, on documents of the calibration split; any other seed: reported, on those of test.
--no-extras: rules as published, without what every plan of RouteSparse reads. table.py makes tables of the files.
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

import torch

from routesparse.engine.evaluation import pool, study
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.evaluation.studies.selection.measure import Bench


def main(argv: list[str] | None = None) -> None:
    """Measure what the file does not hold yet, until the time is up."""
    parser = study.parser(__doc__)
    parser.set_defaults(seed=prompts.DEVELOPMENT_SEED)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32_768])
    parser.add_argument("--tasks", nargs="+", default=list(prompts.DEFAULT_TASKS))
    parser.add_argument("--methods", nargs="+", default=methods.known(), help="NAME or NAME=VALUE,VALUE")
    parser.add_argument("--prompts", type=int, default=10, help="per task and length")
    parser.add_argument("--windows", type=int, default=4, help="per text domain and length")
    parser.add_argument("--no-extras", action="store_true")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    parser.add_argument(
        "--processes", type=int, default=1, help="each with its share of prompts; GPUs in turn"
    )
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    arguments.methods = ["dense", *arguments.methods]
    methods.rounds(arguments.methods)  # an unknown name ends the run before anything is loaded
    pool.spread(work, arguments.processes, (arguments, deadline, study.command()))


def work(place: int, arguments: argparse.Namespace, deadline: float, command: str) -> None:
    """One process's share of the prompts by every method."""
    loaded = pool.load_in_turn(arguments.model, place)
    done = rows.read_rows(rows.parts(arguments.out))[0]
    items = prompts.items(
        arguments.tasks, arguments.lengths, arguments.prompts, arguments.windows, arguments.seed
    )
    maker = prompts.Prompts(arguments.data, loaded.tokenizer, arguments.seed)
    bench, made = Bench(loaded, extras=not arguments.no_extras), {}
    usable = methods.usable(
        arguments.methods, bench.searched_for(arguments.methods, arguments.lengths, arguments.data)
    )
    path = rows.part(arguments.out, place) if arguments.processes > 1 else arguments.out
    about = {**study.header(loaded, arguments), "command": command, "processes": arguments.processes}
    with rows.Appender(path) as out:
        out.write(about)
        for wanted, item in itertools.product(usable, items[place :: arguments.processes]):
            for method in wanted:
                row = label(method, item, not arguments.no_extras)
                if rows.key_of(row) in done:
                    continue
                if time.time() > deadline:
                    study.note("out of time; the same command goes on from here")
                    return
                if item not in made:
                    made[item] = maker.make(item)
                row |= measured(bench, made[item], method)
                out.write(row)
                shown = {k: f"{row[k]:.4g}" for k in ("area", "kl", "agree", "score") if k in row}
                study.note(f"{method.name}={method.setting:g} {item.name} {row.get('failed', shown)}")


def label(method: methods.Method, item: prompts.Item, extras: bool) -> dict[str, Any]:
    """What names a row. Methods that extras change nothing of are measured once, under true."""
    return {
        "method": method.name,
        "setting": method.setting,
        "task": item.task,
        "length": item.length,
        "index": item.index,
        "seed": item.seed,
        "extras": extras or not methods.takes_extras(method.name),
        "reported": item.seed != prompts.DEVELOPMENT_SEED,
    }


def measured(bench: Bench, prompt: prompts.Prompt, method: methods.Method) -> dict[str, Any]:
    """One row's numbers, or why there are none."""
    about = {**prompt.about, "tokens": len(prompt.ids), "positions": len(prompt.asked) or len(prompt.answer)}
    try:
        return about | bench.measure(prompt, method)
    except Exception as error:  # noqa: BLE001 - a rule of any kind may fail in any way, and the others go on
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return about | {"failed": f"{type(error).__name__}: {error}"[:500]}
