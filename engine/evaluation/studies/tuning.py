"""The measuring half of ``routesparse tune``: the loss of a domain's windows against dense, over a grid of prices.

    python -m routesparse.engine.evaluation.studies.tuning --out tuning.jsonl --split calibration --seed 0 \\
        --domains prose code dialog --windows 96 --tokens 16384 --prices 2 1 0.5 --processes 4

--out grows by one line per window and price; what it holds already is skipped, so the same command goes on where it was
cut off, and a larger --windows adds to it. Prices are chosen from it by ``routesparse tune DOMAIN --rows FILE``, which
needs no model. Prices are chosen on windows of the calibration split only; --split test is for the check afterwards.

Windows are drawn independently, as many from each cluster: the document, or where documents are pieces of projects
(domains code and docs) the project. Numbers are means over all positions of a window but the first token:
    kl         sum_v p_dense(v) (log p_dense(v) - log p(v)), in nats a token
    agreement  the share of positions whose likeliest next token is that of dense attention
    nats, nats_dense   the text's own loss, in nats a token, routed and dense
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.prompts import Document, Window, draw, read_documents
from routesparse.engine.calibrate.tuning_rows import SAME
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.config import PRICES, RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.evaluation import pool, study
from routesparse.engine.evaluation.studies.coverage.plan import cluster, projects
from routesparse.engine.evaluation.studies.selection import rows
from routesparse.engine.evaluation.studies.selection.measure import SEGMENT_TOKENS, Bench
from routesparse.engine.evaluation.studies.selection.methods import find
from routesparse.engine.evaluation.studies.selection.prompts import TEXT, Item, Prompt
from routesparse.engine.evaluation.studies.selection.run import measured
from routesparse.engine.method.patterns import library_hash
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.progress import Progress, no_progress

GRID = (0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
KEY = ("split", "seed", "domain", "cluster", "index", "price")


@dataclass(frozen=True)
class Drawn:
    """One window to measure; index: its number within its cluster."""

    window: Window
    cluster: str
    index: int

    def prompt(self, split: str, seed: int) -> Prompt:
        """The window as the bench reads it: every token but the first is asked for."""
        window = self.window
        item = Item(f"{TEXT}{split}/{window.domain}/{self.cluster}", window.tokens, self.index, seed)
        return Prompt(item, list(window.token_ids), list(range(1, window.tokens)), [], (), {})


class TuningBench(Bench):
    """A bench that can forget its dense references, so that any number of windows fits on the device."""

    def forget(self) -> None:
        """Drop them; the next measuring of a window runs dense attention again."""
        self._references.clear()


def draw_windows(
    documents: Sequence[Document], of: Mapping[str, str], tokens: int, count: int, tokenizer: Any, seed: int
) -> list[Drawn]:
    """At least ``count`` windows, the same number from every cluster; first those of index 0, then of index 1.

    of: document's name -> cluster. Clusters without a document of half a window are left out.
    Errors: CalibrationError where no document is long enough.
    """
    usable = [d for d in documents if d.tokens >= tokens // 2] or list(documents)
    members: dict[str, list[Document]] = {}
    for document in usable:
        members.setdefault(of[document.name], []).append(document)
    each = -(-count // len(members))
    found = [
        Drawn(window, name, index)
        for name, group in members.items()
        for index, window in enumerate(draw(group, each, tokens, tokenizer, f"{seed}/{name}"))
    ]
    return sorted(found, key=lambda drawn: drawn.index)


def read_split(data: Path, domain: str, split: str, tokenizer: Any) -> tuple[list[Document], dict[str, str]]:
    """The documents of a folder <domain>/<split>, and the cluster of each by its name.

    Errors: InputError, CalibrationError.
    """
    documents = read_documents(data / domain / split, domain, tokenizer)
    of = projects(data)
    return documents, {d.name: cluster(Window(domain, d.name, d.sha256, 0, ()), of) for d in documents}


def check_prices(prices: Sequence[float]) -> list[float]:
    """Ascending, each once. Errors: ConfigError for one that is none."""
    for price in prices:
        if not PRICES[0] <= price <= PRICES[1]:
            raise ConfigError(f"price {price:g} must lie in [{PRICES[0]:g}, {PRICES[1]:g}]")
    if not prices:
        raise ConfigError("no price is given; pass some, such as 0.25 0.5 1")
    return sorted(set(prices))


def header(loaded: LoadedModel, seed: int, split: str, tokens: int, command: str) -> dict[str, Any]:
    """Where a file's rows come from: what must be the same for all of them, and what is told of each."""
    config = RouterConfig(break_even_tokens=0, segment_tokens=SEGMENT_TOKENS)
    stamp = {name: value for name, value in stamp_of(config).items() if name != "price"}
    about = study.header(loaded, argparse.Namespace(seed=seed))
    return {
        **about,
        "command": command,
        "revision": loaded.revision,
        "library_hash": library_hash(),
        "stamp": json.loads(json.dumps(stamp)),  # as a file's reader finds it
        "split": split,
        "tokens": tokens,
    }


def check_same(files: Sequence[Path], about: Mapping[str, Any]) -> None:
    """Errors: ConfigError where a file was measured with another model, library or setting."""
    for path in files:
        for line in rows.read_lines(path):
            different = [name for name in SAME if "stamp" in line and line[name] != about[name]]
            if different:
                raise ConfigError(
                    f"{path} was measured with another {different[0]}; pass another --out, or remove it"
                )


def done(files: Sequence[Path]) -> set[tuple[Any, ...]]:
    """Names of the rows that are measured."""
    found = (row for path in files for row in rows.read_lines(path))
    return {tuple(row[name] for name in KEY) for row in found if "kl" in row}


def measure(
    bench: TuningBench,
    drawn: Drawn,
    prices: Sequence[float],
    about: Mapping[str, Any],
    skip: set[tuple[Any, ...]],
) -> Iterator[dict[str, Any]]:
    """One row a price that ``skip`` does not hold, ascending; a row that failed says why. about: ``header``."""
    window = drawn.window
    told = {
        "model": about["model"],
        "split": about["split"],
        "seed": about["seed"],
        "domain": window.domain,
        "document": window.document,
        "document_sha256": window.document_sha256,
        "cluster": drawn.cluster,
        "index": drawn.index,
        "start": window.start,
        "sha256": window.sha256,
        "device": about["device"],
        "commit": about["git_commit"],
    }
    prompt = drawn.prompt(about["split"], about["seed"])
    for price in prices:
        row = {**told, "price": price}
        if tuple(row[name] for name in KEY) not in skip:
            numbers = measured(bench, prompt, find("routesparse", price))
            if "kl" in numbers:
                numbers["agreement"] = numbers.pop("agree")
            yield row | numbers
    bench.forget()


def append(
    loaded: LoadedModel,
    windows: Sequence[Drawn],
    prices: Sequence[float],
    about: Mapping[str, Any],
    path: Path,
    progress: Progress = no_progress,
) -> None:
    """Measure what the file does not hold yet and append it. Progress has the stage "windows".

    Errors: ConfigError where the file is of another setting.
    """
    check_same(rows.parts(path), about)
    skip = done(rows.parts(path))
    bench = TuningBench(loaded)
    with rows.Appender(path) as out:
        out.write(dict(about))
        for place, drawn in enumerate(windows):
            progress("windows", place, len(windows))
            for row in measure(bench, drawn, prices, about, skip):
                out.write(row)
    progress("windows", len(windows), len(windows))


def main(argv: list[str] | None = None) -> None:
    """Measure what the file does not hold yet, until the time is up."""
    parser = study.parser(__doc__)
    parser.add_argument("--split", choices=("calibration", "test"), default="calibration")
    parser.add_argument("--domains", nargs="+", default=["prose", "code", "dialog"])
    parser.add_argument("--windows", type=int, default=96, help="a domain, rounded up to as many a cluster")
    parser.add_argument(
        "--tokens", type=int, default=16_384, help="of a window; half where documents are shorter"
    )
    parser.add_argument("--prices", type=float, nargs="+", default=list(GRID))
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start nothing after it")
    parser.add_argument(
        "--processes", type=int, default=1, help="each with its share of windows; GPUs in turn"
    )
    arguments = parser.parse_args(argv)
    deadline = time.time() + arguments.limit_s
    arguments.prices = check_prices(arguments.prices)
    if arguments.processes == 1:
        work(0, arguments, deadline, study.command())
        return
    codes = pool.run(work, arguments.processes, (arguments, deadline, study.command()))
    if any(codes):
        raise SystemExit(f"processes ended with {codes}")


def work(place: int, arguments: argparse.Namespace, deadline: float, command: str) -> None:
    """One process's share of the windows at every price."""
    loaded = pool.load_in_turn(arguments.model, place)
    about = header(loaded, arguments.seed, arguments.split, arguments.tokens, command)
    files = rows.parts(arguments.out)
    check_same(files, about)
    skip = done(files)
    windows = []
    for domain in arguments.domains:
        documents, of = read_split(arguments.data, domain, arguments.split, loaded.tokenizer)
        shape = (arguments.tokens, arguments.windows)
        windows.append(draw_windows(documents, of, *shape, loaded.tokenizer, arguments.seed))
    # A domain's windows in turn with the others', so that a run that is cut short has some of each.
    ordered = [drawn for lot in _in_turn(windows) for drawn in lot]
    bench = TuningBench(loaded)
    path = rows.part(arguments.out, place) if arguments.processes > 1 else arguments.out
    with rows.Appender(path) as out:
        out.write(about)
        for drawn in ordered[place :: arguments.processes]:
            if time.time() > deadline:
                study.note("out of time; the same command goes on from here")
                return
            for row in measure(bench, drawn, arguments.prices, about, skip):
                out.write(row)
                shown = row.get("failed") or f"kl {row['kl']:.5f}, area {row['area']:.3f}"
                study.note(f"{row['domain']} {row['cluster']} {row['index']} price {row['price']:g}: {shown}")


def _in_turn(lots: Sequence[Sequence[Drawn]]) -> Iterator[list[Drawn]]:
    for place in range(max(map(len, lots))):
        yield [lot[place] for lot in lots if place < len(lot)]


if __name__ == "__main__":
    main()
