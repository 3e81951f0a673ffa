"""Story tasks in the manner of The Sparse Frontier: generated, natural language, one and several hops.

``engine/lab/training/stories.py`` describes the tasks. Predictions are rows in RULER's format; the score is the share of
gold strings found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from routesparse.engine.lab.suites.generated import as_example, as_sample, filled, indices, ruler_row
from routesparse.engine.lab.suites.ruler_score import score_matches
from routesparse.engine.lab.suites.source import SEED_OFFSET, Source
from routesparse.engine.lab.suites.suite import Example, Request, Row, Suite, TaskScore
from routesparse.engine.lab.training.samples import sample_rng
from routesparse.engine.lab.training.stories import LEAST_CHAPTERS, STORY_TASKS, make_story

NEW_TOKENS = 32


def score(task: str, rows: Sequence[Row]) -> TaskScore:
    """Errors: InputError for an unknown task."""
    SUITE.check(task)
    return score_matches(rows)


def examples(request: Request, source: Source) -> Iterator[Example]:
    """Errors: InputError for an unknown task, no prose, or a length that is too short."""
    SUITE.check(request.task)
    task, length, seed = request.task, request.length, request.seed + SEED_OFFSET
    for index in indices(request):
        document = source.prose(index)

        def make(units: int, index: int = index, haystack: str = document.text):
            rng = sample_rng(seed, task, length, index)
            return as_sample(task, make_story(task, rng, units, haystack, "eval"), units)

        sample = filled(source, request, NEW_TOKENS, make, guess=200.0, least=LEAST_CHAPTERS)
        yield as_example(sample, index, NEW_TOKENS, f"{task}/{index}", source=document.name)


SUITE = Suite("stories", STORY_TASKS, score, examples, ruler_row, stops_at_gold=True)
