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
import time
from collections.abc import Sequence
from dataclasses import replace

from routesparse.engine.certification.rows import ROWS
from routesparse.engine.errors import InputError
from routesparse.engine.evaluation import pool, study
from routesparse.engine.evaluation.studies.detection.looking import LookingBench
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.evaluation.studies.selection.run import label, measured

SEED = 1_847
TASKS = ("niah_multivalue", "vt", "niah_multiquery", "fwe", "niah_multikey_3", "relay", "list")
# From generous to starved; the last line holds the controls.
METHODS = (
    *("routesparse=0.25,1,4", "flexprefill=0.95,0.8,0.6", "xattention=0.98,0.9,0.7"),
    *("minference=1,0.25,0.0625", "flashprefill=0.05,0.18,0.5"),
    *("dense_kernel", "window=1024"),
)


def main(argv: list[str] | None = None) -> None:
    """Measure what the file does not hold yet, until the time is up."""
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
    parser.add_argument(
        "--processes", type=int, default=1, help="each with its share of prompts; GPUs in turn"
    )
    parser.add_argument("--part", type=_part, help="I/K: only the share of process I of K")
    arguments = parser.parse_args(argv)
    arguments.methods = ["dense", *arguments.methods]
    methods.rounds(arguments.methods)  # an unknown name ends the run before anything is loaded
    shared = (arguments, started + arguments.seconds, study.command())
    if arguments.part is None:
        pool.spread(work, arguments.processes, shared)
        return
    place, arguments.processes = arguments.part
    work(place, *shared)


def _part(text: str) -> tuple[int, int]:
    try:
        place, count = map(int, text.split("/"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no I/K; pass for instance 0/4") from None
    if not 0 <= place < count:
        raise argparse.ArgumentTypeError(f"part {place} of {count} does not exist; pass 0 to {count - 1}")
    return place, count


def work(place: int, arguments: argparse.Namespace, deadline: float, command: str) -> None:
    """One process's share of the prompts, each by every method."""
    loaded = pool.load_in_turn(arguments.model, place)
    bench = LookingBench(loaded, extras=arguments.extras, rows=arguments.rows)
    searched = bench.searched_for(arguments.methods, arguments.lengths, arguments.data)
    usable = [method for one in methods.usable(arguments.methods, searched) for method in one]
    done = rows.read_rows(rows.parts(arguments.out))[0]
    items = prompts.items(arguments.tasks, arguments.lengths, arguments.prompts, 0, arguments.seed)
    labels = {
        item: [label(method, item, arguments.extras) for method in usable]
        for item in items[place :: arguments.processes]
    }
    left = sum(rows.key_of(row) not in done for found in labels.values() for row in found)
    maker = prompts.Prompts(arguments.data, loaded.tokenizer, arguments.seed)
    space = loaded.tokenizer(" ", add_special_tokens=False)["input_ids"]
    path = rows.part(arguments.out, place) if arguments.processes > 1 else arguments.out
    started, count = time.monotonic(), 0
    with rows.Appender(path) as out:
        out.write(
            {**study.header(loaded, arguments), "command": command, "processes": arguments.processes}
            | {"rows": arguments.rows, "prompts": arguments.prompts}
        )
        for item, found in labels.items():
            prompt = None
            for method, row in zip(usable, found, strict=True):
                if rows.key_of(row) in done:
                    continue
                if time.time() > deadline:
                    study.note(f"[{place}] out of time; the same command goes on with the {left} left")
                    return
                prompt = prompt or asked_at_once(maker.make(item), space)
                out.write(row | measured(bench, prompt, method))
                count, left = count + 1, left - 1
            bench.forget()
            if count:
                minutes = (time.monotonic() - started) / count * left / 60
                study.note(f"[{place}] {item.name}: {count} done, {left} left, about {minutes:.1f} min")


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
    main()
