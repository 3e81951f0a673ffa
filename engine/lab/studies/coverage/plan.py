"""Which windows the trust study measures, and in which order: written once, so that the measuring needs no texts.

    python -m routesparse.engine.lab.studies.coverage.plan --out plan.jsonl.gz --seed 0 --test-seed 3

Calibration windows come from the calibration documents by ``--seed``, test windows from the test documents by
``--test-seed``. The order is that of need: a run that is cut short has finished the first lots. The file holds one
JSON object a line: a header, then a window each, with its token ids and its cluster: what an interval
resamples as a whole. Documents of code and of docs are pieces of a few projects (``manifest.jsonl`` of the data says
which), so there it is the project; elsewhere it is the document, a book or a meeting.

The plan is made where the texts are; the measuring runs where the processors are and needs this file alone.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate.origin import origin
from routesparse.engine.calibrate.prompts import Document, Window, cut, read_documents, split_folds, tile
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.generators.tasks import fit_sample
from routesparse.engine.models.load import load_model

DOMAINS = ("prose", "code", "dialog")
TEST_DOMAINS = (*DOMAINS, "docs")
BY_PROJECT = ("code", "docs")  # domains whose documents are pieces of projects
IN_TEXT = "needles in text"
NEEDLES = {
    IN_TEXT: ("niah_single_2", "niah_multikey_1"),
    "needles among needles": ("niah_multikey_2", "niah_multikey_3"),
}
BUCKETS = ((4_096, 8_192), (8_193, 16_384))
FOLDS = {"A": (30, 12), "B": (112, 40)}  # windows per domain and bucket
TEST_LENGTHS = (4_096, 8_192)
TESTS = 64  # windows per domain and length
LONG = 16_384
LONG_NEEDLES = 32
SHARE_A = 0.25
NEEDLE_SEED = 77


@dataclass(frozen=True)
class Planned:
    """One window to measure. part: "A", "B" or "test"."""

    number: int
    part: str
    window: Window
    cluster: str

    @property
    def facts(self) -> dict[str, Any]:
        """What is recorded of a window, whether it was measured or not."""
        window = self.window
        return {
            "window": self.number,
            "part": self.part,
            "domain": window.domain,
            "document": window.document,
            "document_sha256": window.document_sha256,
            "cluster": self.cluster,
            "sha256": window.sha256,
            "start": window.start,
            "tokens": window.tokens,
        }


def plan(tokenizer: Any, data: Path, seed: int, test_seed: int, scale: float = 1.0) -> list[Planned]:
    """All windows in order of need: short calibration, tests at 4K, 8K and 16K, long calibration.

    scale: the share of every count that is taken (at least one window), for a first look.
    """

    def some(count: int) -> int:
        return max(1, round(scale * count))

    calibration, tests = (
        _read(data, "calibration", DOMAINS, tokenizer),
        _read(data, "test", TEST_DOMAINS, tokenizer),
    )
    lots: list[list[tuple[str, Window]]] = [list(_folds(calibration, 0, seed, tokenizer, some))]
    for tokens in TEST_LENGTHS:
        found = [
            w
            for documents in tests.values()
            for w in cut(documents, some(TESTS), tokens, tokens, tokenizer, test_seed)
        ]
        lots.append(
            [("test", w) for w in [*found, *_needles(data, tokens, some(TESTS), tokenizer, test_seed)]]
        )
    tiled = [tile(documents, LONG, tokenizer, test_seed) for documents in tests.values()]
    long = [w for windows in tiled for w in windows[: some(len(windows))]]
    lots.append(
        [("test", w) for w in [*long, *_needles(data, LONG, some(LONG_NEEDLES), tokenizer, test_seed)]]
    )
    lots.append(list(_folds(calibration, 1, seed, tokenizer, some)))
    ordered = [entry for lot in lots for entry in _in_turn(lot)]
    of = projects(data)
    return [Planned(i, part, window, cluster(window, of)) for i, (part, window) in enumerate(ordered)]


def plan_tests(tokenizer: Any, data: Path, seed: int, lengths: Sequence[int], count: int) -> list[Planned]:
    """Test windows alone, ``count`` a domain and length, documents in turn, each a cluster: for a model of others."""
    found = [
        w
        for documents in _read(data, "test", TEST_DOMAINS, tokenizer).values()
        for tokens in lengths
        for w in cut(documents, count, tokens, tokens, tokenizer, seed)
    ]
    ordered = _in_turn([("test", w) for w in found])
    return [Planned(i, part, w, f"{w.domain}/{w.document}") for i, (part, w) in enumerate(ordered)]


def projects(data: Path) -> dict[tuple[str, str], str]:
    """(domain, document) -> the project that it is a piece of, from the data's manifest.

    Errors: InputError without a manifest.
    """
    path = data / "manifest.jsonl"
    if not path.is_file():
        raise InputError(f"{path} is missing; it says which project a document of code or docs belongs to")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    # The name may go on with the part of the project that was taken: "python/cpython (Lib/, ...)".
    return {(d["domain"], Path(d["path"]).stem): d["source_repo"].split(" ")[0] for d in lines}


def cluster(window: Window, of: dict[tuple[str, str], str]) -> str:
    """What a window is resampled with. of: ``projects``. Errors: InputError for a document whose project is unknown."""
    if window.domain in BY_PROJECT:
        found = of.get((window.domain, window.document))
        if found is None:
            raise InputError(
                f"manifest.jsonl names no project for {window.domain} document {window.document!r}"
            )
        return found
    # Needles hidden in a book share it with the book's own windows.
    return f"{'prose' if window.domain == IN_TEXT else window.domain}/{window.document}"


def _read(data: Path, split: str, domains: Sequence[str], tokenizer: Any) -> dict[str, list[Document]]:
    return {domain: read_documents(data / domain / split, domain, tokenizer) for domain in domains}


def _folds(
    documents: dict[str, list[Document]], bucket: int, seed: int, tokenizer: Any, some: Any
) -> Iterator[tuple[str, Window]]:
    least, most = BUCKETS[bucket]
    for members in documents.values():
        for fold, part in zip("AB", split_folds(members, SHARE_A, seed), strict=True):
            for window in cut(part, some(FOLDS[fold][bucket]), least, most, tokenizer, seed):
                yield fold, window


def _in_turn(lot: Sequence[tuple[str, Window]]) -> list[tuple[str, Window]]:
    """Domains and folds in turn, each in its own order: what is cut short is short of every domain alike."""
    groups: dict[tuple[str, str], list[tuple[str, Window]]] = {}
    for part, window in lot:
        groups.setdefault((part, window.domain), []).append((part, window))
    places = [((i + 0.5) / len(group), entry) for group in groups.values() for i, entry in enumerate(group)]
    return [entry for _, entry in sorted(places, key=lambda placed: placed[0])]


def _needles(data: Path, tokens: int, count: int, tokenizer: Any, seed: int) -> Iterator[Window]:
    """Each needle prompt is its own document, except that the document of needles in text is the book around them."""
    haystacks = [(p.stem, p.read_text()) for p in sorted((data / "prose" / "test").glob("*.txt"))]
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    for domain, kinds in NEEDLES.items():
        for index in range(count):
            kind, (book, text) = kinds[index % len(kinds)], haystacks[index % len(haystacks)]
            sample = fit_sample(
                kind,
                tokens - len(bos),
                count_tokens=lambda text: len(ids(text)),
                haystack=text,
                seed=seed + NEEDLE_SEED,
                index=index,
            )
            name = book if domain == IN_TEXT else f"{kind} {tokens} {index}"
            yield Window(domain, name, "", 0, (*bos, *ids(sample.prompt + sample.answer_prefix)))


def write_plan(path: Path, header: dict[str, Any], windows: Sequence[Planned]) -> None:
    """Write the plan."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(header) + "\n")
        for planned in windows:
            file.write(json.dumps({**planned.facts, "token_ids": planned.window.token_ids}) + "\n")


def read_plan(path: Path) -> tuple[dict[str, Any], list[Planned]]:
    """Header and windows of a plan. Errors: InputError where a window's tokens are not those that were planned."""
    (_, header), *lines = read_lines(path)
    windows = []
    for _, values in lines:
        of = {name: values[name] for name in ("domain", "document", "document_sha256", "start")}
        window = Window(**of, token_ids=tuple(values["token_ids"]))
        if window.sha256 != values["sha256"]:
            raise InputError(f"window {values['window']} of {path} is damaged; plan again")
        windows.append(Planned(values["window"], values["part"], window, values["cluster"]))
    return header, windows


def main(argv: list[str] | None = None) -> None:
    """Write the plan."""
    parser = study.parser(__doc__)
    parser.add_argument(
        "--test-seed", type=int, required=True, help="of the test windows; not one used before"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the windows, for a first look")
    parser.add_argument("--tests", type=int, help="test windows alone, so many a domain and length")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(TEST_LENGTHS), help="of --tests")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, device="cpu")
    tokenizer, data, test_seed = loaded.tokenizer, arguments.data, arguments.test_seed
    if arguments.tests:
        windows = plan_tests(tokenizer, data, test_seed, arguments.lengths, arguments.tests)
    else:
        windows = plan(tokenizer, data, arguments.seed, test_seed, arguments.scale)
    header = {**origin(loaded, study.command(), arguments.seed), "test_seed": arguments.test_seed}
    write_plan(arguments.out, header, windows)
    tokens = sum(w.window.tokens for w in windows)
    study.note(f"{len(windows)} windows, {tokens:,} tokens, {arguments.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    study.run(main)
