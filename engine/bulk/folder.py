"""Every text file of a folder as one run each, by processes that share them.

A run's id ends in a digest of its prompt and of all settings. So the same command finds what an earlier
one has done by its bundle alone, in the folder that it writes to, or where the dashboard has taken it in; nothing else
is kept of a folder. A run that was deleted in the dashboard is made again.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.bulk.asked import Analyst, AnalyzePrompt, Asked
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Say, share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.errors import BundleError, InputError, PromptError, is_out_of_memory
from routesparse.engine.prompts.text import TEXT_SUFFIXES, read_prompt
from routesparse.engine.rows import RunRecord
from routesparse.engine.store.bundle import MANIFEST, read_bundle, write_bundle
from routesparse.engine.verdict import LEVELS, Level, of_record

MOST_FILES = 100_000
Warned = Callable[[RunRecord], Sequence[str]]


@dataclass(frozen=True)
class Run:
    """One prompt's run, as the summary shows it."""

    prompt: str  # its file, relative to the folder
    run_id: str
    tokens: int
    density: float | None  # None: below break-even, dense ran untouched
    total_ms: float
    verdict: Level
    sentence: str
    bundle: str
    earlier: bool  # made by an earlier command
    warnings: tuple[str, ...] = ()  # what the user should act on

    @classmethod
    def of(cls, prompt: str, record: RunRecord, bundle: Path, warned: Warned, *, earlier: bool) -> Run:
        """Of a run's record."""
        run, judged = record.run, of_record(record)
        return cls(
            prompt,
            run.run_id,
            run.tokens,
            run.density,
            run.total_ms,
            judged.level,
            judged.sentence,
            str(bundle),
            earlier,
            tuple(warned(record)),
        )


@dataclass
class FolderRuns:
    """What became of a folder's files, in order of name. failed: why, by file; same: file -> the one it repeats."""

    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)

    @property
    def verdicts(self) -> dict[Level, int]:
        """How many runs of each verdict, the worst first."""
        counted = Counter(run.verdict for run in self.runs)
        return {level: counted[level] for level in LEVELS}


@dataclass(frozen=True)
class _Given:
    """One prompt, for another process. It reads the file itself, which on a cluster has to be there on every node."""

    path: str
    sha256: str
    run_id: str


def files_of(folder: Path) -> list[Path]:
    """The text files of a folder and of those in it, in order of name. Errors: InputError for none, or too many."""
    found = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in TEXT_SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    if not found:
        raise InputError(
            f"folder {str(folder)!r} holds no {' or '.join(TEXT_SUFFIXES)} file; pass one that does"
        )
    if len(found) > MOST_FILES:
        raise InputError(
            f"folder {str(folder)!r} holds {len(found):,} files; pass at most {MOST_FILES:,} at once"
        )
    return found


def analyze_folder(
    folder: Path,
    asked: Asked,
    out: Path,
    analyze_prompt: AnalyzePrompt,
    processes: Processes,
    say: Say,
    warned: Warned = lambda record: (),
) -> FolderRuns:
    """Make the runs that ``out`` has not, each a bundle there.

    say: told what fails, and how long the rest will take. warned: a run's warnings. What had been done
    when Ctrl-C came is kept.
    Errors: InputError for settings or a model that fit no prompt; RouteSparseError where no process could begin.
    """
    made = FolderRuns()
    earlier, settings = _earlier(out), asked.digest()
    lots: list[list[Piece]] = []
    seen: dict[str, str] = {}
    for path in files_of(folder):
        name = str(path.relative_to(folder))
        try:
            sha256 = read_prompt(path).sha256
        except PromptError as error:
            made.failed[name] = str(error)
            say(f"{name} failed: {error}")
            continue
        digest = hashlib.sha256(f"{settings} {sha256}".encode()).hexdigest()[:16]
        if digest in seen:
            made.same[name] = seen[digest]
            continue
        seen[digest] = name
        found = _read(earlier.get(digest))
        if found is not None:
            made.runs.append(Run.of(name, found[1], found[0], warned, earlier=True))
        else:
            run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}-{digest}"
            lots.append([Piece(name, _Given(str(path.resolve()), sha256, run_id))])
    if made.runs:
        say(f"{len(made.runs)} of {len(seen)} prompts were done before")
    if lots:
        _share(made, lots, asked, out, analyze_prompt, processes, say, warned)
    made.runs.sort(key=lambda run: run.prompt)
    made.failed = dict(sorted(made.failed.items()))
    return made


def _share(
    made: FolderRuns,
    lots: Sequence[Sequence[Piece]],
    asked: Asked,
    out: Path,
    analyze_prompt: AnalyzePrompt,
    processes: Processes,
    say: Say,
    warned: Warned,
) -> None:
    opened = functools.partial(_opened, asked, analyze_prompt)

    def keep(piece: Piece, record: RunRecord) -> None:
        made.runs.append(Run.of(piece.name, record, write_bundle(record, out), warned, earlier=False))

    crew, count = processes.crew(opened)
    try:
        made.failed |= share(Work("analyze", opened, lots, keep), crew, count, say).failed
    except KeyboardInterrupt:
        say(f"{len(made.runs)} runs are kept; the same command goes on from here")
        raise


def _opened(asked: Asked, analyze_prompt: AnalyzePrompt, place: int) -> Callable[[_Given], RunRecord]:
    """A process's own model. Errors: ModelError, CalibrationError, ProfileError."""
    from routesparse.engine.models.load import load_in_turn

    loaded = load_in_turn(asked.model, place, rope=asked.rope)
    return _Analysing(Analyst(asked, loaded, analyze_prompt), loaded, asked.profile)


class _Analysing:
    """Does one prompt."""

    def __init__(self, analyst: Analyst, loaded: Any, profile: str) -> None:
        from routesparse.engine.device.graphs import Graphs
        from routesparse.engine.profiles.measure import prepare_profile

        self._analyst, self._loaded = analyst, loaded
        self._graphs: Any = Graphs()
        # The first process measures a profile where none fits; the others wait, so as not to disturb it, and find it.
        with _one_at_a_time():
            self._profile = prepare_profile(profile, loaded, analyst.config)

    def __call__(self, given: _Given) -> RunRecord:
        text = read_prompt(given.path)
        if text.sha256 != given.sha256:
            raise PromptError(f"prompt {text.name!r} was changed meanwhile; pass the same command again")
        prompt = self._loaded.tokenize(text)
        try:
            return self._analyst(prompt, profile=self._profile, run_id=given.run_id, graphs=self._graphs)
        except Exception as error:
            if is_out_of_memory(error):
                self._forget()
            raise

    def _forget(self) -> None:
        """Give back what was kept of earlier prompts, for the next one."""
        import torch

        from routesparse.engine.device.graphs import Graphs

        self._graphs = Graphs()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """No other process of this home is inside such a block."""
    paths.profiles().mkdir(parents=True, exist_ok=True)
    with (paths.profiles() / ".measuring").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _earlier(out: Path) -> dict[str, Path]:
    """The bundles that a folder's runs may be among, by what their names end in."""
    places = [out]
    if out.resolve() == paths.spool().resolve():
        places.append(paths.bundles())
    return {
        path.name.rpartition("-")[2]: path
        for place in places
        if place.is_dir()
        for path in place.iterdir()
        if (path / MANIFEST).is_file()
    }


def _read(bundle: Path | None) -> tuple[Path, RunRecord] | None:
    """An earlier run; None where there is none, or it is damaged and has to be made again."""
    for path in () if bundle is None else (bundle, paths.bundles() / bundle.name):
        try:
            return path, read_bundle(path)
        except BundleError:
            continue
    return None
