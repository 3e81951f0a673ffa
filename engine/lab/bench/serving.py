"""Time to first token and throughput inside one vLLM engine, in this process: routed and stock requests in turn.

    ROUTESPARSE_VLLM=1 python -m routesparse.engine.lab.bench.serving --model FOLDER --prompts FOLDER \\
        --tokens 16384,32768 --at-once 1,8 --out serving.json

A round serves the same prompts once each way, the other way first in the next round, so that drift falls on both. Stock
is a request with ``routesparse_route`` 0; with ROUTESPARSE_VLLM=0 the only way is *plain*, vLLM without the plug-in,
which runs in a process of its own. Prompts are windows of the folder's texts, each from another token on. ``--shared``
makes three quarters of every prompt of a length alike, and vLLM's prefix cache holds them when timing begins.

``--streams`` times a mixed load in place of it: so many requests decode without a break while the prompts of one way
come behind those of the other, each when the last answer of those before has ended. Tokens are those of prompts and
all answers together. The ratio, routed over stock, is the geometric mean over rounds, with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import torch

from routesparse.engine import paths
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import InputError
from routesparse.engine.provenance import git_commit, now, versions
from routesparse.engine.runtime.vllm.settings import SWITCH
from routesparse.engine.stats.paired import Draws, interval
from routesparse.engine.store.bundle import verified_tables

FEWEST_ROUNDS = 5  # below it a bootstrap says nothing
SUFFIXES = (".txt", ".md", ".py")
STREAM_TOKENS = 128  # of a decoding stream's own prompt
STEP = 7919  # tokens between the beginnings of two windows
Prompts = Sequence[Sequence[int]]  # token ids
Row = dict[str, Any]
Ask = tuple[Row, Prompts, Mapping[str, int]]  # whose row it is, what is sent, what it asks for
WAYS: dict[str, dict[str, int]] = {"stock": {"routesparse_route": 0}, "routed": {}}


class Engine:
    """vLLM's engine in this process, one step at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        # Imported here: vLLM stands in an environment of its own.
        from vllm import LLM, SamplingParams, __version__

        longest = max(options.tokens) + options.answer_tokens
        given: dict[str, Any] = {
            "model": str(options.model),
            "max_model_len": longest,
            "max_num_batched_tokens": options.chunk or longest,
            "max_num_seqs": max(options.at_once) + options.streams + 1,
            "enable_prefix_caching": options.shared,
            "disable_log_stats": True,
            **json.loads(options.engine),
        }
        if options.yarn:
            own = json.loads((options.model / "config.json").read_text())
            rope = own.get("rope_parameters") or {"rope_theta": own["rope_theta"]}
            rope |= {"rope_type": "yarn", "factor": options.yarn}
            rope["original_max_position_embeddings"] = own["max_position_embeddings"]
            given["hf_overrides"] = {"rope_parameters": rope}
        self.version, self._params, self._names = __version__, SamplingParams, count()
        self.options, self._llm = given, LLM(**given)
        self._core, self.room = self._llm.llm_engine, given["max_model_len"] - STREAM_TOKENS

    def ids(self, text: str) -> list[int]:
        return list(self._llm.get_tokenizer().encode(text))

    def add(self, ids: Sequence[int], tokens: int, extra: Mapping[str, float]) -> str:
        """A request that answers with so many tokens; its id."""
        params = self._params(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        params.extra_args = dict(extra) or None
        name = f"bench-{next(self._names)}"
        self._core.add_request(name, {"prompt_token_ids": list(ids)}, params)
        return name

    def steps(self) -> Iterator[Any]:
        """Every output of every step, until nothing is asked any more."""
        while self._core.has_unfinished_requests():
            yield from self._core.step()

    def serve(self, prompts: Prompts, extra: Mapping[str, int], tokens: int) -> list[Row]:
        """These prompts, sent at once."""
        begun, first = time.perf_counter(), {}
        names = [self.add(ids, tokens, extra) for ids in prompts]
        for out in self.steps():
            if out.outputs[0].token_ids and out.request_id not in first:
                ms = 1e3 * (time.perf_counter() - begun)
                first[out.request_id] = {"first_ms": ms, "cached_tokens": out.num_cached_tokens or 0}
        return [first[name] for name in names]

    def mixed(self, asks: Iterable[Ask], streams: Prompts, tokens: int) -> Iterator[tuple[Row, Row]]:
        """A row a group of prompts, one group behind the other's last token, beside streams that decode.

        Groups come until none is left, or a stream has no room.
        """
        decoding = {self.add(ids, self.room, {}): 0 for ids in streams}
        watched, coming = next(iter(decoding)), iter(asks)
        served: dict[str, int] = {}  # tokens of each prompt of the group, until its answer ends
        cell: Row = {}
        firsts, gaps, total, sent, last = [], [], 0, 0.0, 0.0
        for out in self.steps():
            at, name = time.perf_counter(), out.request_id
            produced = len(out.outputs[0].token_ids)
            if name in decoding:
                total += produced - decoding[name]
                decoding[name] = produced
                if name == watched:
                    gaps.append(1e3 * (at - last))
                    last = at
                if out.finished:
                    break
            elif name in served:
                firsts += [1e3 * (at - sent)] if produced == 1 else []
                if out.finished:
                    total += served.pop(name) + produced
            if served or not all(decoding.values()):
                continue
            if firsts:
                rate = {"tokens_per_s": total / (at - sent), "first_ms": statistics.fmean(firsts)}
                yield cell, rate | {"longest_gap_ms": max(gaps)}
            cell, prompts, extra = next(coming, ({}, [], {}))
            if not prompts:
                break
            firsts, gaps, total, sent, last = [], [], 0, at, last or at
            served = {self.add(ids, tokens, extra): len(ids) for ids in prompts}
        self._core.abort_request([*decoding, *served])
        for _ in self.steps():
            pass


class Windows:
    """Prompts of so many tokens from one long text, each from another token on."""

    def __init__(self, ids: Sequence[int], longest: int) -> None:
        """Errors: InputError for a text that is shorter than the longest prompt."""
        if len(ids) < longest + 2:
            raise InputError(f"--prompts hold {len(ids):,} tokens; pass texts of {longest + 2:,} or more")
        self._ids, self._places = ids, count()

    def next(self, tokens: int) -> list[int]:
        first = next(self._places) * STEP % (len(self._ids) - tokens)
        return list(self._ids[first : first + tokens])


def text_files(folder: Path) -> list[Path]:
    """A folder's texts, in the order of their names. Errors: InputError where it has none."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    if not files:
        raise InputError(f"{folder} holds no text; pass a folder of {', '.join(SUFFIXES)} files as --prompts")
    return files


def read_text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def load_text(folder: Path) -> str:
    """All texts of a folder, in the order of their names. Errors: InputError."""
    return "\n".join(map(read_text, text_files(folder)))


def asks_of(
    windows: Windows, options: argparse.Namespace, ways: tuple[str, ...], tokens: int, at_once: int
) -> Iterator[Ask]:
    """A cell's prompts in their order, made when they are asked for. No round begins after ``--cell-s``."""
    shared, until = windows.next(tokens * 3 // 4) if options.shared else [], math.inf
    pick, most_left_out = random.Random(tokens), int(options.spread * (tokens - len(shared)))
    # Rounds below 0 warm up: the first compiles, and one more of its shape is captured.
    for number in range(-2 if at_once == 1 else -1, options.repeats):
        if number == 0:
            until = time.monotonic() + options.cell_s
        elif time.monotonic() > until:
            return
        rests = [tokens - len(shared) - pick.randint(0, most_left_out) for _ in range(at_once)]
        prompts = [shared + windows.next(rest) for rest in rests]
        for way in ways if number % 2 == 0 else ways[::-1]:
            cell = {"tokens": tokens, "at_once": at_once, "round": number, "way": way}
            yield cell, prompts, WAYS.get(way, {})


def measure(
    engine: Any, windows: Windows, options: argparse.Namespace, ways: tuple[str, ...]
) -> Iterator[list[Row]]:
    """A cell's rows: one a request, or of a mixed load one a group of them."""
    for tokens, at_once in product(options.tokens, options.at_once):
        asks, answer = asks_of(windows, options, ways, tokens, at_once), options.answer_tokens
        if options.streams:
            streams = [windows.next(STREAM_TOKENS) for _ in range(options.streams)]
            found = engine.mixed(asks, streams, answer)
        else:
            found = ((cell, row) for cell, *ask in asks for row in engine.serve(*ask, answer))
        rows = [cell | row for cell, row in found if cell["round"] >= 0]
        served = Counter(number for number, _ in {(row["round"], row["way"]) for row in rows})
        rows = [row for row in rows if served[row["round"]] == len(ways)]
        if not rows:
            raise InputError(
                "the streams' room ended before a round did; pass fewer --streams or longer --tokens"
            )
        told = f"{tokens:,} tokens x {at_once}: {rows[-1]['round'] + 1} rounds; {rows[-1]}"
        print(told, file=sys.stderr, flush=True)
        yield rows


def summarise(rows: Sequence[Row]) -> list[Row]:
    """One entry a cell: p50 and p95 of each way, and routed over stock of the rounds' means."""
    found = []
    for tokens, at_once in dict.fromkeys((row["tokens"], row["at_once"]) for row in rows):
        mine = [row for row in rows if (row["tokens"], row["at_once"]) == (tokens, at_once)]
        measures = [name for name in mine[0] if name not in ("tokens", "at_once", "round", "way")]
        entry: dict[str, Any] = {"tokens": tokens, "at_once": at_once, "ways": {}, "ratios": {}}
        for way in dict.fromkeys(row["way"] for row in mine):
            of = [row for row in mine if row["way"] == way]
            entry["ways"][way] = {"n": len(of), "rounds": len({row["round"] for row in of})} | {
                name: {"p50": _quantile(values, 0.5), "p95": _quantile(values, 0.95)}
                for name in measures
                for values in [[row[name] for row in of]]
            }
        if {*entry["ways"]} == {*WAYS}:
            entry["ratios"] = {name: _ratio(mine, name) for name in measures if name != "cached_tokens"}
        found.append(entry)
    return found


def _ratio(rows: Sequence[Row], name: str) -> dict[str, float | None]:
    rounds = sorted({row["round"] for row in rows})

    def mean(number: int, way: str) -> float:
        return statistics.fmean(row[name] for row in rows if (row["round"], row["way"]) == (number, way))

    logs = [math.log(mean(number, "routed") / mean(number, "stock")) for number in rounds]
    ratio, sure = interval(Draws({"rounds": rounds}).means({"rounds": logs})), len(rounds) >= FEWEST_ROUNDS
    ends = {"low": math.exp(ratio.low) if sure else None, "high": math.exp(ratio.high) if sure else None}
    return {"value": math.exp(ratio.value)} | ends


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def areas(engine: Any, windows: Windows, tokens: Sequence[int], spool: Path) -> dict[int, float | None]:
    """Share of the causal area that a routed prompt of each length reads, by its record; None where none was routed."""
    found: dict[int, float | None] = {}
    for length in tokens:
        before = {*spool.glob("*")}
        engine.serve([windows.next(length)], {"routesparse_record": 1}, 1)
        new = {*spool.glob("*")} - before
        found[length] = verified_tables(new.pop())[1]["run"].to_pylist()[0]["density"] if new else None
    return found


def circumstances(options: argparse.Namespace, engine: Any) -> dict[str, Any]:
    """What a measurement was made with, for its file."""
    ours = {name: value for name, value in os.environ.items() if name.startswith(("ROUTESPARSE", "VLLM"))}
    return {
        "settings": {name: str(value) for name, value in vars(options).items()},
        "environment": ours,
        "engine": {name: str(value) for name, value in engine.options.items()},
        "created_at": now(),
        "git_commit": git_commit(),
        "versions": versions() | {"vllm": engine.version},
        "device": device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 2 where the input is wrong, in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="the model's folder")
    add("--prompts", type=Path, required=True, help=f"a folder of {', '.join(SUFFIXES)} files")
    add("--tokens", type=_whole_numbers, required=True, help="lengths, with commas between")
    add("--at-once", type=_whole_numbers, default=[1], help="requests at once, with commas between")
    add("--repeats", type=int, default=20, help="rounds a length and number")
    add("--cell-s", type=float, default=3600.0, help="no round of a length and number begins later")
    add("--answer-tokens", type=int, default=4)
    add("--chunk", type=int, default=0, help="max_num_batched_tokens; 0: the longest prompt in one batch")
    add("--shared", action="store_true", help="prefix cache on, and three quarters of the tokens in it")
    add(
        "--spread",
        type=float,
        default=0.0,
        help="leave a random share, up to this one, out of what is not --shared",
    )
    add("--streams", type=int, default=0, help="mixed load: requests that decode beside the prompts")
    add("--yarn", type=float, default=0.0, help="stretch the model's context by this factor")
    add("--engine", default="{}", help="further arguments of vllm.LLM, as JSON")
    add("--out", type=Path, required=True, help="JSON file to write: every request and the summary")
    options = parser.parse_args(argv)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine steps in this process
    ways, begun = tuple(WAYS) if os.environ.get(SWITCH) == "1" else ("plain",), time.monotonic()
    try:
        if not 0 <= options.spread < 1:
            raise InputError(f"--spread {options.spread:g} leaves nothing; pass 0 or more, and less than 1")
        text = load_text(options.prompts)
        engine = Engine(options)
        windows = Windows(engine.ids(text), max(options.tokens))
        found, rows = circumstances(options, engine) | {"seconds": {"start": time.monotonic() - begun}}, []
        for of_cell in measure(engine, windows, options, ways):
            rows += of_cell
            found["seconds"]["all"] = time.monotonic() - begun
            found |= {"summary": summarise(rows), "requests": rows}
            paths.write_json(options.out, found)  # what a run that is ended early has found
    except InputError as error:
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")
    spool = Path(os.environ.get(f"{SWITCH}_SPOOL") or paths.spool())
    found["areas"] = areas(engine, windows, options.tokens, spool) if "routed" in ways else {}
    paths.write_json(options.out, found)
    print(json.dumps(found["summary"], indent=1))
    return 0


def _whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
