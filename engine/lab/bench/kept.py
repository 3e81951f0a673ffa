"""A drifting load inside one vLLM engine that keeps a loss target: requests of one part's texts, then of the next's.

    ROUTESPARSE_VLLM=1 ROUTESPARSE_VLLM_LOSS=0.01 ROUTESPARSE_VLLM_KEEP=1 ROUTESPARSE_VLLM_KEEP_DENSE=4 \\
        python -m routesparse.engine.lab.bench.kept --model FOLDER --prompts prose=DIR code=DIR mixed=DIR1,DIR2 \\
        --tokens 16384 --requests 500 --at-once 8 --out kept.json

A prompt is a window of a random text, from a random token on. Two equal ROUTESPARSE_VLLM_KEEP_PRICES are the control.
Behind the load single requests are timed: kept, stock, and with a loss of their own, which moves nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from routesparse.engine import paths
from routesparse.engine.calibration import keeping_log
from routesparse.engine.errors import InputError, ModelError
from routesparse.engine.lab.bench.serving import WAYS, Engine, circumstances, read_text, text_files
from routesparse.engine.models.files import resolve
from routesparse.engine.provenance import now
from routesparse.engine.runtime.vllm.settings import SWITCH, from_environment

LONE = 16  # single requests of each way
Window = tuple[str, str, int, list[int]]  # part, document, first token, token ids
Row = dict[str, Any]


def windows_of(options: argparse.Namespace, ids: Callable[[str], list[int]]) -> list[list[Window]]:
    """Each part's, then those of single requests. Errors: InputError for a folder whose texts are too short."""
    pick, (tokens,), parts, texts = random.Random(options.seed), options.tokens, dict(options.prompts), {}
    for folder in (folder for folders in parts.values() for folder in folders):
        found = [(str(file), ids(read_text(file))) for file in text_files(folder)]
        texts[folder] = [text for text in found if len(text[1]) >= tokens]
        if not texts[folder]:
            raise InputError(
                f"{folder} holds no text of {tokens:,} tokens; pass longer ones or fewer --tokens"
            )

    def window(part: str) -> Window:
        document, text = pick.choice(texts[pick.choice(parts[part])])
        first = pick.randrange(len(text) - tokens + 1)
        return part, document, first, text[first : first + tokens]

    ends = [options.requests * at // len(parts) for at in range(len(parts) + 1)]
    load = [[window(part) for _ in range(ends[at], ends[at + 1])] for at, part in enumerate(parts)]
    return [*load, [window(pick.choice([*parts])) for _ in range(LONE)]]


def serve(engine: Any, windows: list[list[Window]], options: argparse.Namespace, loss: float) -> list[Row]:
    """A row a group of requests, with ms to its first token and its last. loss: of those with one of their own."""
    *load, lone = windows
    ways = {"kept": WAYS["routed"], "own loss": {"routesparse_loss": loss}, "stock": WAYS["stock"]}
    (most,), answer, rows = options.at_once, options.answer_tokens, []
    # Kernels are compiled by what moves nothing.
    asks = [("warm-up", way, lone[:1], 1) for way in ("own loss", "stock")]
    asks += [("load", "kept", p[at : at + most], answer) for p in load for at in range(0, len(p), most)]
    asks += [("lone", way, [one], answer) for one in lone for way in ways]
    for of, way, group, tokens in asks:
        begun = time.perf_counter()
        names = [engine.add(ids, tokens, ways[way]) for *_, ids in group]
        at = [1e3 * (time.perf_counter() - begun) for _ in engine.steps()]
        requests = dict(zip(names, (window[:3] for window in group), strict=True))
        rows.append({"of": of, "way": way, "first_ms": at[0], "ms": at[-1], "requests": requests})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong, in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the model's folder")
    add("--prompts", type=_part, nargs="+", required=True, help="parts, as NAME=FOLDER or NAME=FOLDER,FOLDER")
    add("--tokens", type=int, nargs=1, required=True, help="of each prompt")
    add("--requests", type=int, default=500, help="of all parts together")
    add("--at-once", type=int, nargs=1, default=[8])
    add("--answer-tokens", type=int, default=16)
    add("--seed", type=int, default=7)
    add("--engine", default="{}", help="further arguments of vllm.LLM, as JSON")
    add("--out", type=Path, required=True, help="JSON file to write: every request and its line of the log")
    parser.set_defaults(chunk=0, streams=0, shared=False, yarn=0.0)  # of Engine
    options, begun = parser.parse_args(argv), now()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine steps in this process
    try:
        settings = from_environment(os.environ, torch.cuda.is_available())
        if settings is None or settings.loss is None or not settings.keep:
            raise InputError(f"no target is kept; set {SWITCH}=1, {SWITCH}_LOSS=0.01 and {SWITCH}_KEEP=1")
        path = keeping_log.log_of(resolve(str(options.model))[1], settings.loss)
        engine = Engine(options)
        windows = windows_of(options, engine.ids)
    except (InputError, ModelError) as error:
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")
    rows = serve(engine, windows, options, settings.loss)
    # Of this run, by the name that Engine gave: vLLM puts a suffix behind it.
    lines = {"-".join(one.request.split("-")[:2]): one for one in keeping_log.read(path) if one.time >= begun}
    log = {name: asdict(line) for name, line in lines.items()}
    paths.write_json(options.out, circumstances(options, engine) | {"groups": rows, "log": log})
    load = {name: place[0] for row in rows if row["of"] == "load" for name, place in row["requests"].items()}
    for part in dict(options.prompts):
        mine = [line for name, line in lines.items() if load.get(name) == part]
        true, predicted = ([getattr(line, name) for line in mine] for name in ("measured", "predicted"))
        told = f"true {_mean(true, settings.loss)}, predicted {_mean(predicted, settings.loss)}"
        print(f"{part}, in targets: {told}; price {_mean([line.price for line in mine])}")
    return 0


def _mean(values: Sequence[float | None], unit: float = 1.0) -> str:
    known = [value / unit for value in values if value is not None]
    return f"{fmean(known):.3g} (n {len(known)})" if known else "none"


def _part(text: str) -> tuple[str, list[Path]]:
    name, _, folders = text.partition("=")
    if not folders:
        raise argparse.ArgumentTypeError(f"{text!r} names no folder; write it like prose=FOLDER")
    return name, [Path(folder) for folder in folders.split(",")]


if __name__ == "__main__":
    sys.exit(main())
