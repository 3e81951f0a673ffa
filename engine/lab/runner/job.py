"""The specification of one evaluation, and the files of its folder.

job.json                          what was asked for, last
prompts/<length>/<task>.jsonl     prepared prompts: a header, then one line each
predictions.jsonl                 one line per configuration and prompt, appended by one process alone
times.jsonl                       times of prefills, by one process alone (timing.py)
scores.json                       scores, intervals, and where they come from
evaluate.lock                     held by the one evaluation that writes here (alone.py)
kept.jsonl.gz, kept_times.jsonl.gz   predictions and times that a repository keeps (kept.py)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.lab.studies.selection.methods import rounds
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.schema import Count, Positive, Text, checked

_MOST_BYTES = 1 << 20
CONTROLS = ("window=1024", "random_blocks=0.2")  # that must lose where a task is to tell (steps.py)


@dataclass(frozen=True)
class Job:
    """One evaluation; every process of a pool gets the same. methods: NAME or NAME=VALUE,VALUE, dense first.

    screen: prompts a task that find out which tasks tell (steps.py); 0: all go on. answers: of so many prompts a task
    the answer is decoded, of the others the gold answer's likelihood is all; None: of all. chat: prompts stand in the
    model's chat template.
    """

    suite: Text
    tasks: tuple[Text, ...]
    lengths: tuple[Positive, ...]
    methods: tuple[Text, ...]
    n: Positive
    seed: Count
    model: Text
    data: Path
    out: Path
    extras: bool = True
    screen: Count = 0
    answers: Positive | None = None
    chat: bool = False

    def __post_init__(self) -> None:
        suite = find(self.suite)
        for task in self.tasks:
            suite.check(task)
        rounds(self.methods)
        if self.n < 1 or not self.tasks or not self.lengths or min(self.lengths) < 1:
            raise InputError(
                f"n {self.n}, tasks {list(self.tasks)}, lengths {list(self.lengths)}: pass at least one of each"
            )

    def prompts(self, length: int, task: str) -> Path:
        return self.out / "prompts" / str(length) / f"{task}.jsonl"

    @property
    def predictions(self) -> Path:
        return self.out / "predictions.jsonl"

    @property
    def times(self) -> Path:
        return self.out / "times.jsonl"

    @property
    def kept(self) -> Path:
        return self.out / "kept.jsonl.gz"

    @property
    def kept_times(self) -> Path:
        return self.out / "kept_times.jsonl.gz"

    @property
    def scores(self) -> Path:
        return self.out / "scores.json"

    @property
    def command(self) -> str:
        """What runs this job again, without folders of one machine."""
        parts = ["routesparse evaluate", self.suite, "--tasks", ",".join(self.tasks)]
        parts += ["--lengths", ",".join(map(str, self.lengths)), "--n", str(self.n), "--seed", str(self.seed)]
        parts += [f"--methods {method}" for method in self.methods]
        parts += [] if self.model == "demo" else ["--model", Path(self.model).name]
        parts += ["--screen", str(self.screen)] if self.screen else []
        parts += [] if self.answers is None else ["--answers", str(self.answers)]
        parts += ["--chat"] * self.chat
        return " ".join(parts + ([] if self.extras else ["--no-extras"]))

    def decodes(self, index: int) -> bool:
        """Whether the answer to a task's prompt of this number is decoded."""
        return self.answers is None or index < self.answers

    @classmethod
    def load(cls, folder: Path) -> Job:
        """The job of a folder, wherever it lies now. Errors: InputError where its job.json is missing or broken."""
        try:
            job = checked(cls, read_json(folder / "job.json", _MOST_BYTES))
            return dataclasses.replace(job, out=folder)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"{folder} holds no evaluation (job.json: {said}); pass a folder that `routesparse evaluate` wrote"
            ) from None

    def save(self) -> None:
        self.save_in(self.out)

    def save_in(self, folder: Path) -> None:
        """Write job.json, as it stands, into a folder."""
        values = dataclasses.asdict(self) | {"data": str(self.data), "out": str(self.out)}
        paths.write_json(folder / "job.json", values)
