"""Windows of a domain at every price, and the rows that measuring them leaves: what ``routesparse tune`` and the study
of tuning share. What a row says stands in ``tuning.py``."""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routesparse.engine.calibrate.prompts import Document, Window, draw, read_documents
from routesparse.engine.calibrate.tuning_rows import MEASURED, SAME, WINDOW
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.config import Price, RouterConfig, argument
from routesparse.engine.crew.share import Outcome, Team
from routesparse.engine.crew.work import Do, Piece, Work
from routesparse.engine.device.broken import broken_device
from routesparse.engine.errors import CalibrationError, ConfigError, RouteSparseError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.plan import cluster, projects
from routesparse.engine.lab.studies.one_profile import named
from routesparse.engine.lab.studies.selection import rows
from routesparse.engine.lab.studies.selection.methods import find
from routesparse.engine.lab.studies.selection.prompts import TEXT, Item, Prompt
from routesparse.engine.method.patterns import library_hash
from routesparse.engine.models.load import LoadedModel, load_in_turn
from routesparse.engine.models.rope import RopeScaling

if TYPE_CHECKING:
    from routesparse.engine.lab.studies.selection.measure import Bench, Profiles

GRID = (0.18, 0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
KEY = ("split", "seed", *WINDOW, "price")


@dataclass(frozen=True)
class Drawn:
    """One window to measure; index: its number within its cluster."""

    window: Window
    cluster: str
    index: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The WINDOW of its rows."""
        return self.window.domain, self.cluster, self.index, self.window.sha256

    def prompt(self, split: str, seed: int) -> Prompt:
        """The window as the bench reads it: every token but the first is asked for, or the gold answer's."""
        window = self.window
        kind = "question:" if window.answer_ids else TEXT
        item = Item(f"{kind}{split}/{window.domain}/{self.cluster}", window.tokens, self.index, seed)
        asked = [] if window.answer_ids else list(range(1, window.tokens))
        return Prompt(item, list(window.token_ids), asked, list(window.answer_ids), (), {})


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


def questions(windows: Sequence[Window], count: int) -> list[Drawn]:
    """The first ``count`` questions, numbered within their documents, one of every document first.

    Errors: CalibrationError for a question that comes twice.
    """
    seen: dict[str, int] = {}
    found = []
    for window in windows:
        index = seen[window.document] = seen.get(window.document, -1) + 1
        found.append(Drawn(window, window.document, index))
    if len({one.window.sha256 for one in found}) < len(found):
        raise CalibrationError("a question comes twice and would count as two; remove one")
    return sorted(found, key=lambda drawn: drawn.index)[:count]


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
        argument(Price, price, "price")
    if not prices:
        raise ConfigError("no price is given; pass some, such as 0.25 0.5 1")
    return sorted(set(prices))


def header(
    loaded: LoadedModel, bench: Bench, seed: int, split: str, tokens: int, command: str, profiles: Profiles
) -> dict[str, Any]:
    """Where a file's rows come from: what must be the same for all of them, and what is told of each."""
    config = RouterConfig(break_even_tokens=0, segment_tokens=bench.segment_tokens)
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
        "profile": named(profiles),
    }


def check_same(files: Sequence[Path], about: Mapping[str, Any]) -> None:
    """Errors: ConfigError where a file was measured with another model, library or setting."""
    for path in files:
        for line in rows.read_lines(path):
            different = [name for name in SAME if "stamp" in line and line.get(name) != about[name]]
            if different:
                raise ConfigError(
                    f"{path} was measured with another {different[0]}; pass another --out, or remove it"
                )


def done(files: Sequence[Path]) -> set[tuple[Any, ...]]:
    """Names of the rows that are measured."""
    found = (row for path in files for row in rows.read_lines(path))
    return {tuple(row.get(name) for name in KEY) for row in found if "kl" in row}


def measure(
    bench: Bench, drawn: Drawn, prices: Sequence[float], about: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """One row a price; a row that failed says why. about: ``header``."""
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
    sizes = {"tokens": window.tokens, "positions": len(prompt.asked or prompt.answer)}
    if prompt.answer:
        sizes["answer_tokens"] = len(prompt.answer)
    for price in prices:
        yield told | {"price": price} | sizes | _numbers(bench, prompt, price)
    bench.forget()


def _numbers(bench: Bench, prompt: Prompt, price: float) -> dict[str, Any]:
    """Of one window at one price, or why there are none: the other windows go on."""
    try:
        found: dict[str, Any] = bench.compared(prompt, find("routesparse", price))
    except (RouteSparseError, RuntimeError) as error:  # torch's own, such as out of memory, are RuntimeErrors
        if broken_device() is not None:
            raise
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
    row = {**found, "agreement": found.pop("agree")}
    odd = [name for name in MEASURED if not math.isfinite(row[name])]
    # One row that is no number would make the file unreadable.
    return {"failed": f"not finite: {', '.join(odd)}"} if odd else row


@dataclass(frozen=True)
class Asked:
    """What is the same for all windows of a file. rope: rescales the model's positions."""

    model: str
    rope: RopeScaling | None
    seed: int
    split: str
    tokens: int
    command: str

    def opening(self, bench: type[Bench], captured: bool = True) -> Callable[[int], Do]:
        """What each process opens. bench: the class, made by each process for its own model.

        captured: decide by CUDA graphs; False for questions, most of another length: graphs that no other one uses
        fill the device.
        """
        return functools.partial(_opened, self, functools.partial(bench, captured=captured))


@dataclass(frozen=True)
class About:
    """What only a process that has the model knows. header: of the file. profiles: that all processes route by."""

    header: dict[str, Any]
    profiles: Profiles
    max_tokens: int


@dataclass(frozen=True)
class _Measure:
    """For one window's rows."""

    drawn: Drawn
    prices: tuple[float, ...]
    header: dict[str, Any]
    profiles: Profiles


def ask(team: Team, opened: Callable[[int], Do]) -> About | None:
    """Load the model in one process, find or measure its latency profile while no other one works, and say so.

    None where the time was up before. Errors: ModelError, ProfileError.
    """
    found: list[About] = []
    team.do(Work("model", opened, [[Piece("model", None)]], lambda _, about: found.append(about), whole=True))
    return found[0] if found else None


def append(
    team: Team,
    opened: Callable[[int], Do],
    windows: Sequence[Drawn],
    prices: Sequence[float],
    about: About,
    path: Path,
) -> Outcome:
    """Measure what the file does not hold yet, a window a piece, and append it.

    Errors: ConfigError where the file is of another setting.
    """
    files, header = rows.parts(path), about.header
    check_same(files, header)
    skip, lots = done(files), []
    for drawn in windows:
        name = (header["split"], header["seed"], *drawn.key)
        left = tuple(price for price in prices if (*name, price) not in skip)
        if left:
            title = f"{drawn.window.domain} {drawn.cluster} {drawn.index}"
            lots.append([Piece(title, _Measure(drawn, left, dict(header), about.profiles))])
    with rows.Appender(path) as out:
        out.write(dict(header))

        def keep(piece: Piece, found: list[dict[str, Any]]) -> None:
            for row in found:
                out.write(row)

        return team.do(Work("windows", opened, lots, keep))


def _opened(asked: Asked, bench: Callable[[LoadedModel], Bench], place: int) -> Do:
    loaded = load_in_turn(asked.model, place, rope=asked.rope)
    return functools.partial(_done, asked, loaded, bench(loaded))


def _done(asked: Asked, loaded: LoadedModel, bench: Bench, given: _Measure | None) -> Any:
    if given is not None:
        bench.profiles = given.profiles
        return list(measure(bench, given.drawn, given.prices, given.header))
    profiles = bench.prepared([find("routesparse", 1.0)])
    about = header(loaded, bench, asked.seed, asked.split, asked.tokens, asked.command, profiles)
    return About(about, profiles, loaded.max_tokens)
