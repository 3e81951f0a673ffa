"""From a generated sample to a prompt of a suite, sized to its length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.source import Source
from routesparse.engine.lab.suites.suite import Example, Request
from routesparse.engine.lab.training.samples import Built, Sample
from routesparse.engine.lab.training.tasks import Sizer


def as_sample(task: str, built: Built, units: int) -> Sample:
    """A generator's output as a sample whose metadata names its units."""
    context, turns, spans, counts = built
    return Sample(task, context, turns[0], tuple(spans), (), {"units": units, **counts})


def filled(
    source: Source, request: Request, new_tokens: int, make: Callable[[int], Sample], **sizes: Any
) -> Sample:
    """The fullest sample whose prompt and answer stay within the request's length; sizes: see ``Sizer.fill``.

    A sizer of its own for each sample: a prompt must not depend on which were made before it. Errors: InputError
    where even the smallest sample does not fit.
    """
    sizer = Sizer(source.count, special_tokens=source.special_tokens)
    try:
        return sizer.fill(request.task, request.length - new_tokens, make, **sizes)
    except ValueError as error:
        raise InputError(str(error)) from error


def as_example(sample: Sample, index: int, new_tokens: int, cluster: str, **more: Any) -> Example:
    """A sample as a prompt of a suite whose gold is a list of strings."""
    return Example(
        task=sample.task,
        index=index,
        prompt=sample.prompt,
        answer_prefix=sample.answer_prefix,
        gold=list(sample.gold),
        answer=sample.answer,
        new_tokens=new_tokens,
        cluster=cluster,
        more={"evidence": [list(span) for span in sample.needle_spans], **more},
    )


def ruler_row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in RULER's format, without the input."""
    return {"index": example.index, "pred": prediction, "outputs": example.gold}


def indices(request: Request) -> Iterator[int]:
    """Errors: InputError for no prompts at all."""
    if request.n < 1:
        raise InputError(f"{request.n} prompts are none; pass --n of at least 1")
    yield from range(request.first, request.n)
