"""Every method on prompts whose answers it may lose, with the certificate of that very prefill.

    python -m routesparse.engine.evaluation.studies.detection.run --out detection.jsonl --lengths 32768 16384 \\
        --prompts 16 --processes 8 --seconds 340

--out grows by one line per method, setting and prompt: score and gold answer's log-likelihood beside dense attention's,
and the claims of ``looking.py``. What it holds already is skipped, so the same command goes on where it was cut off; a
failed line is tried again. Every method runs on a prompt before the next prompt. Rivals run as published unless
--extras gives their plans what every plan of RouteSparse reads. --seed: of prompts and rows, SEED is this study's own.

The space before an answer belongs to the prompt here, as in ``runner/prepare.py``: else the prompt's last row would
foretell that space alone, and decoding, which is dense, would look the answer up whatever was read.
``analyse.py`` reads the file.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Sequence
from dataclasses import replace

from routesparse.engine.certification.rows import ROWS
from routesparse.engine.crew.crews import Processes
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.detection.looking import LookingBench
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.evaluation.studies.selection.run import Measuring, lot_of
from routesparse.engine.evaluation.studies.shared import append_lines
from routesparse.engine.models.load import load_in_turn

SEED = 1_847
TASKS = ("niah_multivalue", "vt", "niah_multiquery", "fwe", "niah_multikey_3", "relay", "list")
# From generous to starved; the last line holds the controls.
METHODS = (
    *("routesparse=0.25,1,4", "flexprefill=0.95,0.8,0.6", "xattention=0.98,0.9,0.7"),
    *("minference=1,0.25,0.0625", "flashprefill=0.05,0.18,0.5"),
    *("dense_kernel", "window=1024"),
)


def main(argv: list[str] | None = None) -> int:
    """Measure what the file does not hold yet, until the time is up. Returns how many measurements failed."""
    started = time.time()
    parser = study.parser(__doc__)
    parser.set_defaults(seed=SEED)
    parser.add_argument("--lengths", type=int, nargs="+", default=[32_768])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), help="NAME or NAME=VALUE,VALUE")
    parser.add_argument("--prompts", type=int, default=16, help="per task and length")
    parser.add_argument("--rows", type=int, default=ROWS, help="random rows of each head")
    parser.add_argument("--extras", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing after it")
    study.add_processes(parser)
    parser.add_argument("--part", type=_part, help="I/K: only each K-th prompt from I on, into FILE.I.jsonl")
    arguments = parser.parse_args(argv)
    arguments.methods = ["dense", *arguments.methods]
    turns = methods.rounds(arguments.methods)  # an unknown name ends the run before anything is loaded
    done = rows.read_rows(rows.parts(arguments.out))[0]
    items = prompts.items(arguments.tasks, arguments.lengths, arguments.prompts, 0, arguments.seed)
    place, count = arguments.part or (0, 1)
    path = arguments.out if arguments.part is None else rows.part(arguments.out, place)
    named = [one for turn in turns for one in turn]
    lots = [lot_of(named, item, arguments.extras, done) for item in items[place::count]]
    processes = Processes(arguments.processes, arguments.ray)
    opened = functools.partial(_opened, arguments, study.command())
    return append_lines(path, opened, lots, processes, started + arguments.seconds)


def _part(text: str) -> tuple[int, int]:
    try:
        place, count = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no I/K; pass for instance 0/4") from None
    if not 0 <= place < count:
        raise argparse.ArgumentTypeError(f"part {place} of {count} does not exist; pass 0 to {count - 1}")
    return place, count


def _opened(arguments: argparse.Namespace, command: str, place: int) -> Measuring:
    """A process's own model and methods."""
    loaded = load_in_turn(arguments.model, place)
    about = {**study.header(loaded, arguments), "command": command}
    about |= {"rows": arguments.rows, "prompts": arguments.prompts}
    bench = LookingBench(loaded, extras=arguments.extras, rows=arguments.rows)
    maker = prompts.Prompts(arguments.data, loaded.tokenizer, arguments.seed)
    space = loaded.tokenizer(" ", add_special_tokens=False)["input_ids"]
    return _Looking(
        bench, arguments, arguments.extras, lambda item: asked_at_once(maker.make(item), space), about
    )


class _Looking(Measuring):
    """Keeps one prompt's references: all its methods come in a row."""

    def _forget(self) -> None:
        self.bench.forget()
        self._prompts.clear()


def asked_at_once(prompt: prompts.Prompt, space: Sequence[int]) -> prompts.Prompt:
    """The space before the answer moved to the end of the prompt, where the tokenizer keeps it apart.

    Errors: InputError for an answer of a space alone.
    """
    if not prompt.answer or prompt.answer[: len(space)] != list(space):
        return prompt
    if len(prompt.answer) == len(space):
        raise InputError(f"{prompt.item.name} has an empty answer; use another task")
    ids = [*prompt.ids, *space]
    question = (*prompt.question, *range(len(prompt.ids), len(ids)))
    return replace(prompt, ids=ids, answer=prompt.answer[len(space) :], question=question)


if __name__ == "__main__":
    study.run(main)
