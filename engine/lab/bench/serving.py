"""Time to first token of OpenAI-compatible servers, paired: the same prompts, one server after the other.

    python -m routesparse.engine.lab.bench.serving --server stock=http://127.0.0.1:8000 \\
        --server routed=http://127.0.0.1:8001 --tokens 8192,16384 --n 20 --out serving.json

A round sends as many prompts as ``--concurrency`` says to one server, waits for all, and sends the same to the other;
the next round begins with the other server, so that drift of a shared machine falls on both. Each prompt begins with a
line of its own, new in every run: a prefix cache finds nothing, neither of a warm-up, nor of a shorter cut of the same
text, nor of a run before. One warm-up a server and length is not counted. The ratio, second server over first, is the
geometric mean over the pairs that both answered, with a 95 % bootstrap interval over rounds.

Requests are completions (``POST /v1/completions``) at temperature 0, streamed. Texts are cut to about the lengths asked
for with the bundled model's tokenizer unless ``--tokenizer`` names the server's; the server's own count is told.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.errors import InputError, shortened
from routesparse.engine.lab.bench.completions import Server, ask, parse_server, with_model
from routesparse.engine.prompts.text import read_prompt
from routesparse.engine.stats.paired import Draws, interval

MOST_N, MOST_CONCURRENCY, MOST_TOKENS = 10_000, 256, 1 << 20
FEWEST_ROUNDS = 5  # below it a bootstrap says nothing
SAMPLES = paths.DATA / "samples" / "prompts"
TOKENIZER = paths.DATA / "models" / "demo" / "tokenizer.json"


def load_texts(folder: Path) -> list[str]:
    """A text file, or the ``*.txt`` of a folder. Errors: PromptError, InputError for a folder without any."""
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else [folder]
    if not files:
        raise InputError(f"{folder} holds no *.txt; pass a text file or a folder of them as --prompts")
    return [read_prompt(file).text for file in files]


class Cutter:
    """Prompts of about so many tokens: a line that nothing else begins with, then a window of a text."""

    def __init__(self, texts: Sequence[str], tokenizer: Path, nonce: str) -> None:
        # Imported here: nothing else of this file needs it.
        from tokenizers import Tokenizer

        try:
            made = Tokenizer.from_file(str(tokenizer))
        # The library raises its own Exception for a file of any other kind.
        except Exception as error:
            raise InputError(f"--tokenizer {tokenizer} can't be read: {shortened(error)}") from error
        self.texts, self.nonce = texts, nonce
        self.ends = [
            [end for _, end in made.encode(text, add_special_tokens=False).offsets] for text in texts
        ]
        self.line_tokens = len(made.encode(self._line("warm-up"), add_special_tokens=False).ids)

    def _line(self, label: str) -> str:
        return f"{label} {self.nonce}\n"

    def cut(self, place: int, label: str, tokens: int) -> str:
        """Errors: InputError for a text that is shorter."""
        text, ends = self.texts[place % len(self.texts)], self.ends[place % len(self.texts)]
        wanted = max(1, tokens - self.line_tokens)
        if wanted > len(ends):
            raise InputError(
                f"a text has {len(ends):,} tokens, fewer than --tokens {tokens:,}; pass longer --prompts"
            )
        # The windows of one text spread over it.
        start = (place // len(self.texts)) * 997 % (len(ends) - wanted + 1)
        return self._line(label) + text[ends[start - 1] if start else 0 : ends[start + wanted - 1]]


def measure(
    servers: Sequence[Server], cutter: Cutter, options: argparse.Namespace, note: Any = None
) -> list[dict[str, Any]]:
    """One row a request: length, round, prompt, server and what came. It stops after ``--limit-s``."""
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + options.limit_s
    with ThreadPoolExecutor(options.concurrency) as pool:
        for server in servers:
            for tokens in options.tokens:
                warm = ask(server, cutter.cut(0, "warm-up", tokens), options.answer_tokens, options.timeout_s)
                if warm.error:
                    raise InputError(f"{server.name} failed the warm-up of {tokens:,} tokens: {warm.error}")
        for number in range(math.ceil(options.n / options.concurrency)):
            places = range(number * options.concurrency, min(options.n, (number + 1) * options.concurrency))
            for tokens in options.tokens:
                if time.monotonic() > until:
                    return rows
                prompts = [cutter.cut(place, f"{place}-{tokens}", tokens) for place in places]
                for server in servers if number % 2 == 0 else servers[::-1]:
                    asked = [
                        pool.submit(ask, server, prompt, options.answer_tokens, options.timeout_s)
                        for prompt in prompts
                    ]
                    for place, future in zip(places, asked, strict=True):
                        found = asdict(future.result())
                        rows.append(
                            {"tokens": tokens, "round": number, "prompt": place, "server": server.name}
                            | found
                        )
                if note is not None:
                    note(f"{tokens:,} tokens: {places.stop} of {options.n} prompts")
    return rows


def summarise(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One entry a length: medians and errors by server, and of two servers the ratios with their intervals."""
    found = []
    for tokens in sorted({row["tokens"] for row in rows}):
        mine = [row for row in rows if row["tokens"] == tokens]
        entry: dict[str, Any] = {"tokens": tokens, "servers": {}}
        for name in names:
            asked = [row for row in mine if row["server"] == name]
            good = [row for row in asked if row["error"] is None]
            entry["servers"][name] = {
                "asked": len(asked),
                "answered": len(good),
                "errors": dict(Counter(row["error"] for row in asked if row["error"] is not None)),
                **{f"median_{what}": _median(good, what) for what in ("first_ms", "total_ms")},
                "prompt_tokens": _median(good, "prompt_tokens"),
                "cached": sum(bool(row["cached_tokens"]) for row in good),
            }
        if len(names) == 2:
            entry |= _compared(mine, names)
        found.append(entry)
    return found


def _median(rows: Sequence[dict[str, Any]], what: str) -> float | None:
    values = [row[what] for row in rows if row[what] is not None]
    return statistics.median(values) if values else None


def _compared(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    by_server = [
        {row["prompt"]: row for row in rows if row["server"] == name and row["error"] is None}
        for name in names
    ]
    base, other = by_server
    both = [prompt for prompt in base if prompt in other]
    told: dict[str, Any] = {
        "pairs": len(both),
        "same_text": sum(base[prompt]["text"] == other[prompt]["text"] for prompt in both),
    }
    rounds = [base[prompt]["round"] for prompt in both]
    for what in ("first_ms", "total_ms"):
        told[f"ratio_{what}"] = None
        if both:
            logs = [math.log(other[prompt][what] / base[prompt][what]) for prompt in both]
            ratio = interval(Draws({"pairs": rounds}).means({"pairs": logs}))
            sure = len(set(rounds)) >= FEWEST_ROUNDS
            told[f"ratio_{what}"] = {
                "value": math.exp(ratio.value),
                "low": math.exp(ratio.low) if sure else None,
                "high": math.exp(ratio.high) if sure else None,
            }
    return told


def lines(summary: Sequence[dict[str, Any]]) -> list[str]:
    """The summary for people."""
    told = []
    for entry in summary:
        for name, of in entry["servers"].items():
            times = "no answer"
            if of["answered"]:
                times = f"first token {of['median_first_ms']:,.0f} ms, whole {of['median_total_ms']:,.0f} ms"
            told.append(f"{entry['tokens']:,} tokens, {name}: {of['answered']} of {of['asked']}: {times}")
            told += [f"  {count} x {error}" for error, count in of["errors"].items()]
            if of["prompt_tokens"] is not None:
                told.append(f"  {of['prompt_tokens']:,.0f} prompt tokens by the server's count")
            if of["cached"]:
                told.append(f"  warning: {of['cached']} were partly in a prefix cache; switch it off")
        ratio = entry.get("ratio_first_ms")
        if ratio:
            between = "no interval: too few rounds"
            if ratio["low"] is not None:
                between = f"{ratio['low']:.3f} to {ratio['high']:.3f}"
            told.append(
                f"{entry['tokens']:,} tokens, {' / '.join(reversed(entry['servers']))}: first token "
                f"{ratio['value']:.3f} ({between}), {entry['pairs']} pairs, {entry['same_text']} with the same text"
            )
    return told


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 where a request failed or time ran out; 2 where the input is wrong, in one line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--server", action="append", required=True, help="NAME=URL, once or twice: the base, then the other")
    add("--model", help="as the servers name it; needed where they have several")
    add("--prompts", type=Path, default=SAMPLES, help="a text file, or a folder of *.txt")
    add("--tokenizer", type=Path, default=TOKENIZER, help="tokenizer.json that counts the tokens")
    add("--tokens", default="8192", help="lengths, with commas between")
    add("--n", type=int, default=10, help="prompts a length")
    add("--concurrency", type=int, default=1, help="requests at once")
    add("--answer-tokens", type=int, default=8)
    add("--timeout-s", type=float, default=600.0, help="of one request")
    add("--limit-s", type=float, default=3600.0, help="no round begins later")
    add("--out", type=Path, help="JSON file to write: every request and the summary")
    options = parser.parse_args(argv)
    load_before = os.getloadavg()
    try:
        servers, nonce = _checked(options), secrets.token_hex(8)
        cutter = Cutter(load_texts(options.prompts), options.tokenizer, nonce)
        rows = measure(servers, cutter, options, lambda text: print(text, file=sys.stderr, flush=True))
    except InputError as error:
        parser.exit(2, f"error: {' '.join(str(error).split())}\n")
    summary = summarise(rows, [server.name for server in servers])
    print("\n".join(lines(summary)))
    if options.out is not None:
        paths.write_json(
            options.out,
            {
                "settings": {name: str(value) for name, value in vars(options).items() if name != "out"},
                "servers": [asdict(server) for server in servers],
                "nonce": nonce,
                "load_average": [load_before, os.getloadavg()],
                "summary": summary,
                "requests": rows,
            },
        )
    whole = len(rows) == len(servers) * len(options.tokens) * options.n
    return 0 if whole and all(row["error"] is None for row in rows) else 1


def _checked(options: argparse.Namespace) -> list[Server]:
    """The servers, each with its model; ``tokens`` becomes a list. Errors: InputError."""
    try:
        options.tokens = sorted({int(part) for part in options.tokens.split(",")})
    except ValueError:
        raise InputError(f"--tokens {shortened(options.tokens)!r} is no list; pass 8192,16384") from None
    for name, least, most in (
        ("n", 1, MOST_N),
        ("concurrency", 1, MOST_CONCURRENCY),
        ("answer_tokens", 1, 4096),
        ("timeout_s", 0.01, 86_400),
        ("limit_s", 0.01, 86_400),
    ):
        if not least <= getattr(options, name) <= most:
            option = f"--{name.replace('_', '-')}"
            raise InputError(f"{option} {getattr(options, name)} is out of range; pass {least:,} to {most:,}")
    if not 64 <= options.tokens[0] <= options.tokens[-1] <= MOST_TOKENS:
        raise InputError(f"--tokens {options.tokens} is out of range; pass 64 to {MOST_TOKENS:,}")
    if options.out is not None and not os.access(options.out.absolute().parent, os.W_OK):
        raise InputError(f"--out {options.out} can't be written; name a file in a folder that is there")
    servers = [parse_server(text) for text in options.server]
    if len(servers) > 2 or len({server.name for server in servers}) < len(servers):
        raise InputError(f"{len(servers)} servers were named; pass one, or two of different names")
    return [with_model(server, options.model, min(options.timeout_s, 30.0)) for server in servers]


if __name__ == "__main__":
    sys.exit(main())
