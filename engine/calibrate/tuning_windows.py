"""Windows of a domain at every price, and the rows that measuring them leaves; ``tuning_rows.py`` reads them back.

Windows are drawn independently, as many from each cluster: the document, or a project whose pieces they are. Numbers
are means over all positions of a window but the first token, of a question over the tokens of its gold answer:
    kl         sum_v p_dense(v) (log p_dense(v) - log p(v)), in nats a token
    agreement  the share of positions whose likeliest next token is that of dense attention
    nats, nats_dense   the text's own loss, in nats a token, routed and dense
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate import one_profile
from routesparse.engine.calibrate.beside_dense import BesideDense, Probe, Text
from routesparse.engine.calibrate.origin import origin
from routesparse.engine.calibrate.prompts import Document, Window, draw
from routesparse.engine.calibrate.row_files import Appender, read_lines
from routesparse.engine.calibrate.tuning_rows import MEASURED, SAME, WINDOW
from routesparse.engine.calibration.artifact import stamp_of
from routesparse.engine.config import HeadFloors, Price, RouterConfig, argument
from routesparse.engine.crew.share import Outcome, Team
from routesparse.engine.crew.work import Do, Piece, Work
from routesparse.engine.device.broken import broken_device
from routesparse.engine.errors import CalibrationError, ConfigError, RouteSparseError
from routesparse.engine.method.families import library_hash
from routesparse.engine.models.load import LoadedModel, load_in_turn
from routesparse.engine.models.rope import RopeScaling

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

    def text(self, split: str, seed: int) -> Text:
        """The window as the bench reads it: every token but the first is asked for, or the gold answer's."""
        window = self.window
        kind = "question" if window.answer_ids else "text"
        asked = [] if window.answer_ids else list(range(1, window.tokens))
        return Text(
            f"{kind}:{split}/{window.domain}/{self.cluster}/{window.tokens}/{self.index}/{seed}",
            seed,
            list(window.token_ids),
            asked,
            list(window.answer_ids),
        )


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


def draw_questions(windows: Sequence[Window], count: int) -> list[Drawn]:
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


def check_prices(prices: Sequence[float]) -> list[float]:
    """Ascending, each once. Errors: ConfigError for one that is none."""
    for price in prices:
        argument(Price, price, "price")
    if not prices:
        raise ConfigError("no price is given; pass some, such as 0.25 0.5 1")
    return sorted(set(prices))


@dataclass(frozen=True)
class Asked:
    """What is the same for all windows of a file. rope: rescales the model's positions.

    captured: decide by CUDA graphs; False for questions, most of another length: graphs that no other one uses fill
    the device.
    """

    model: str
    rope: RopeScaling | None
    seed: int
    split: str
    tokens: int
    command: str
    captured: bool = True
    head_floors: HeadFloors | None = None  # of RouterConfig, for all prices

    @property
    def opened(self) -> Callable[[int], Do]:
        """What each process opens."""
        return one_profile.opening(functools.partial(_opened, self))


def _opened(asked: Asked, place: int) -> Measuring:
    loaded = load_in_turn(asked.model, place, rope=asked.rope)
    bench = BesideDense(loaded, captured=asked.captured)
    return Measuring(bench, header_of(asked, loaded), asked.head_floors)


def header_of(asked: Asked, loaded: LoadedModel) -> dict[str, Any]:
    """Where a file's rows come from: what must be the same for all of them, and what is told of each."""
    config = RouterConfig(break_even_tokens=0, segment_tokens=BesideDense.segment_tokens)
    stamp = {name: value for name, value in stamp_of(config).items() if name != "price"}
    if asked.head_floors is not None:
        stamp["head_floors_sha256"] = hashlib.sha256(json.dumps(asked.head_floors).encode()).hexdigest()
    return {
        **origin(loaded, asked.command, asked.seed),
        "revision": loaded.revision,
        "library_hash": library_hash(),
        "stamp": json.loads(json.dumps(stamp)),  # as a file's reader finds it
        "split": asked.split,
        "tokens": asked.tokens,
    }


@dataclass(frozen=True)
class Measuring:
    """One window by one process: a row a price; a row that failed says why, or what failed is raised (raises)."""

    bench: BesideDense
    header: dict[str, Any]
    head_floors: HeadFloors | None = None
    probes: Sequence[Probe] = (RouterConfig.probe,)
    raises: bool = False

    def __call__(self, given: tuple[Drawn, Iterable[float]]) -> list[dict[str, Any]]:
        drawn, prices = given
        window, about = drawn.window, self.header
        text = drawn.text(about["split"], about["seed"])
        told = {name: about[name] for name in ("model", "split", "seed")} | {
            "domain": window.domain,
            "document": window.document,
            "document_sha256": window.document_sha256,
            "cluster": drawn.cluster,
            "index": drawn.index,
            "start": window.start,
            "sha256": window.sha256,
            "device": about["device"],
            "commit": about["git_commit"],
            "tokens": window.tokens,
            "positions": len(text.asked or text.answer),
        }
        if text.answer:
            told["answer_tokens"] = len(text.answer)
        found = [told | {"price": price} | self._numbers(text, price) for price in prices]
        self.bench.forget()
        return found

    def _numbers(self, text: Text, price: float) -> dict[str, Any]:
        """Of one window at one price, or why there are none: the other windows go on."""
        try:
            options = {"policy": "priced", "price": price, "head_floors": self.head_floors}
            found: dict[str, Any] = self.bench.lost(text, options)
        except (RouteSparseError, RuntimeError) as error:  # torch's own, such as out of memory
            if self.raises or broken_device() is not None:
                raise
            return {"failed": f"{type(error).__name__}: {error}"[:500]}
        row = {**found, "agreement": found.pop("agree")}
        odd = [name for name in MEASURED if not math.isfinite(row[name])]
        # One row that is no number would make the file unreadable.
        return {"failed": f"not finite: {', '.join(odd)}"} if odd else row


def append(
    team: Team,
    opened: Callable[[int], Do],
    windows: Sequence[Drawn],
    prices: Sequence[float],
    first: one_profile.First,
    path: Path,
) -> Outcome:
    """Measure what the file does not hold yet, a window a piece, and append it.

    Errors: ConfigError where the file is of another setting.
    """
    header = {**first.header, "profile": one_profile.named(first.profiles)}
    done, lots = _done(path, header), []
    for drawn in windows:
        name = (header["split"], header["seed"], *drawn.key)
        left = tuple(price for price in prices if (*name, price) not in done)
        if left:
            title = f"{drawn.window.domain} {drawn.cluster} {drawn.index}"
            lots.append([Piece(title, (drawn, left))])
    with Appender(path) as out:
        out.write(header)

        def keep(piece: Piece, found: list[dict[str, Any]]) -> None:
            for row in found:
                out.write(row)

        return one_profile.do(team, Work("windows", opened, lots, keep), first)


def _done(path: Path, header: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Names of the rows that are measured. Errors: ConfigError for a file of another model, library or setting."""
    rows = [row for _, row in read_lines(path) if isinstance(row, dict)] if path.exists() else []
    for row in rows:
        different = [name for name in SAME if "stamp" in row and row.get(name) != header[name]]
        if different:
            raise ConfigError(
                f"{path} was measured with another {different[0]}; pass another --out, or remove it"
            )
    return {tuple(row.get(name) for name in KEY) for row in rows if "kl" in row}
