"""Story tasks in the manner of The Sparse Frontier: generated, natural language, one and several hops.

``engine/lab/generators/stories.py`` describes the tasks. Predictions are rows in RULER's format; the score is the share
of gold strings found.
"""

from __future__ import annotations

from routesparse.engine.lab.generators.samples import Sample, sample_rng
from routesparse.engine.lab.generators.stories import LEAST_CHAPTERS, STORY_TASKS, make_story
from routesparse.engine.lab.suites.measures import ruler_row, score_matches
from routesparse.engine.lab.suites.source import SEED_OFFSET, Example, Request, Source, as_example, filled
from routesparse.engine.lab.suites.suite import Suite, generated

NEW_TOKENS = 32


def _example(request: Request, source: Source, index: int) -> Example:
    task, document = request.task, source.prose(index)

    def make(units: int) -> Sample:
        rng = sample_rng(request.seed + SEED_OFFSET, task, request.length, index)
        return make_story(task, rng, units, document.text)

    sample = filled(source, request, NEW_TOKENS, make, guess=200.0, least=LEAST_CHAPTERS)
    return as_example(task, sample, index, NEW_TOKENS, source=document.name)


SUITE = Suite("stories", STORY_TASKS, score_matches, generated(_example), ruler_row, stops_at_gold=True)
