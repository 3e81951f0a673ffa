"""Compiling what a layer will launch before it does: steps 1 to 6 on blank inputs (kernels/compile_ahead.py).

On a new GPU machine the first routed prompt would compile its kernels one after another. What is compiled depends on
the head size, the heads, the data type, the settings and, roughly, on the prompt's length to the next power of two.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import compute, has_a_graph, without_draws
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.attend import execute, head_density, joined
from routesparse.engine.method.probe import draw_shares
from routesparse.engine.method.segments import Segment
from routesparse.engine.progress import Progress, no_progress
from routesparse.kernels.compile_ahead import Compiler, Wanted, wanted_by

STAGE = "compile"
LEAST_TOKENS = 8_192  # shorter prompts run dense on a GPU
COVERED = LEAST_TOKENS * 3 // 4  # keys from which on the lengths of every kind stand for all
LOOK_S = 0.2  # how often progress is reported
WORTH_SAYING_S = 0.5  # kernels that lie in Triton's cache on the disk are loaded in less


class Layer(NamedTuple):
    """What a layer's kernels follow from; see ``kernels_of``."""

    inputs: AttentionInputs
    segments: Sequence[Segment]
    settings: LayerSettings
    limits_us: Sequence[float | None]


def blank_inputs(
    tokens: int, *, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, rows: int | None = None
) -> AttentionInputs:
    """Inputs of a prompt without padding that have shapes and no memory. rows: of a chunk, the last ones; None: all."""

    def blank(count: int, length: int) -> torch.Tensor:
        # As transformers' models make them: the heads of a token lie side by side. vLLM's rows want the same kernels.
        return torch.empty(1, length, count, head_dim, dtype=dtype, device="meta").transpose(1, 2)

    k = blank(kv_heads, tokens)
    return AttentionInputs(blank(heads, tokens if rows is None else rows), k, k, head_dim**-0.5)


def kernels_of(
    inputs: AttentionInputs,
    segments: Sequence[Segment],
    settings: LayerSettings,
    limits_us: Sequence[float | None],
) -> list[Wanted]:
    """The kernels that a layer with these inputs launches, each once, those that take longest to compile first.

    Only shapes and types of the inputs are read. limits_us: what each segment's attention may cost, None: no limit.
    """
    blank = replace(
        inputs,
        q=_blank(inputs.q),
        k=_blank(inputs.k),
        v=_blank(inputs.v),
        key_start=None if inputs.key_start is None else _blank(inputs.key_start),
        sinks=None if inputs.sinks is None else _blank(inputs.sinks),
    )
    if has_a_graph(inputs, settings.config):
        blank = replace(blank, table=torch.empty(2, dtype=torch.int64, device="meta"))
    if settings.predictor is not None:
        tables: dict[str, Any] = {
            name: _blank(x) for name, x in vars(settings.predictor).items() if torch.is_tensor(x)
        }
        settings = replace(settings, predictor=replace(settings.predictor, **tables))
    batch, heads = inputs.q.shape[:2]
    drawn = draw_shares(batch, heads, settings.config, 0)
    more = int(settings.config.head_floors is not None)
    draws = drawn.new_empty(batch, heads, drawn.shape[2] + more, device="meta")

    def run() -> None:
        computed = [
            compute(blank, segment, draws, settings, limit_us)
            for segment, limit_us in zip(segments, limits_us, strict=True)
        ]
        plans = [replace(each.plan, key_start=blank.key_start) for each in computed]
        plan = joined(plans)
        if len(plans) > 1:
            head_density(plan)
        # The ablations' launches depend on the choices.
        if settings.config.launch == "fused":
            execute(blank, plan, "fused", [each.choice for each in computed])

    # The attention, which comes last, takes longest.
    return list(wanted_by(run))[::-1]


def lengths_of_every_kind(most_tokens: int) -> list[int]:
    """Lengths of prompts that together want all that prompts from LEAST_TOKENS to most_tokens want, but for a few.

    For each power of two, the longest first: itself; three quarters of it, where only the number of KV blocks is a
    multiple of 16, where nothing is, and where the recent rows begin with a KV block.
    """
    lengths = []
    size = 1 << (most_tokens - 1).bit_length()
    while size >= LEAST_TOKENS:
        some = size * 3 // 4
        lengths += [size, some + 5, some - 5, some + 64]
        size //= 2
    return lengths


def chunks_of_every_kind(most_tokens: int, most_rows: int) -> Iterator[tuple[int, int]]:
    """Keys and rows of chunks that together want all that chunks of up to most_rows want, but for a few.

    Of each of ``lengths_of_every_kind``: all rows, or as many as fit that are a multiple of 16; and a few less.
    """
    for tokens in lengths_of_every_kind(most_tokens):
        rows = min(tokens, most_rows // 256 * 256)
        yield from ((tokens, rows), (tokens, rows - 5))


def cover(compiler: Compiler, layers: Iterable[Layer], longest: int) -> None:
    """Compile together what these layers want; ``ready`` then plans none like them of COVERED to ``longest`` keys.

    A kernel that such a layer launches and none of these does is left to its first launch. Whatever goes wrong is said
    on stderr, and nothing is covered.
    """
    wanted: dict[Hashable, Wanted] = {}
    families = set()
    try:
        for layer in layers:
            wanted.update((each.key, each) for each in kernels_of(*layer))
            families.add(_family(layer))
        compile_together(compiler, [*wanted.values()], no_progress)
    # A server starts without it: each prompt then plans its own.
    except Exception as error:  # noqa: BLE001
        _not_planned(error)
    else:
        compiler.asked.update(product(families, range(_size(COVERED), _size(longest) + 1)))


def ready(compiler: Compiler, layer: Layer, report: Progress) -> None:
    """Compile in parallel what a layer launches, unless that was asked for before, or covered; see
    ``compile_together``. No error is raised but those of ``report``: kernels then compile as they are launched.
    """
    family, rows, keys = _family(layer), layer.inputs.q.shape[2], layer.inputs.k.shape[2]
    if keys >= COVERED and (family, _size(keys)) in compiler.asked:
        return
    asked = (family, rows, keys, *(replace(segment, index=0) for segment in layer.segments))
    if asked in compiler.asked:
        return
    try:
        wanted = kernels_of(*layer)
    # Whatever went wrong, the layer itself says so or does without.
    except Exception as error:  # noqa: BLE001
        _not_planned(error)
        wanted = []
    compile_together(compiler, wanted, report)
    compiler.asked.add(asked)


def _size(keys: int) -> int:
    """Logarithm to base 2, rounded up."""
    return (keys - 1).bit_length()


def _family(layer: Layer) -> Hashable:
    """What kernels depend on beside lengths."""
    inputs, _, settings, limits_us = layer
    q, k = inputs.q, inputs.k
    optional = (inputs.key_start, inputs.sinks, inputs.softcap, settings.predictor, limits_us[0])
    return (
        *(q.shape[0], q.shape[1], k.shape[1], q.shape[3], q.dtype),
        _without_price(settings.config),
        settings.config.head_floors is None,
        *(option is None for option in optional),
    )


@lru_cache
def _without_price(config: RouterConfig) -> RouterConfig:
    """A server that keeps its loss moves the price, a number that kernels are launched with."""
    return replace(without_draws(config), price=RouterConfig.price)


def _not_planned(error: Exception) -> None:
    to_stderr(f"kernels are not compiled ahead ({type(error).__name__}: {error})")


@dataclass(frozen=True)
class Compiled:
    """How many kernels were asked for, how many of them could not be compiled, and how long it took."""

    kernels: int
    failed: int
    seconds: float


def compile_together(compiler: Compiler, wanted: Sequence[Wanted], report: Progress) -> Compiled:
    """Compile in parallel and wait for it.

    report: told ``STAGE``, done and total while there is something to wait for; what it raises ends the waiting, not
    the compiling. Where the waiting was worth a line, stderr gets one. A kernel that can't be compiled ahead is left
    to its first launch.
    """
    started = time.monotonic()
    futures = compiler.start(wanted)
    pending = {future for future in futures if not future.done()}
    waited = bool(pending)
    while pending:
        report(STAGE, len(futures) - len(pending), len(futures))
        wait(pending, LOOK_S, FIRST_COMPLETED)
        # ``wait`` knows nothing of those that were cancelled by a pool that ends.
        pending = {future for future in pending if not future.done()}
    if waited:
        report(STAGE, len(futures), len(futures))
    seconds = time.monotonic() - started
    failed = _failures(futures)
    if failed or seconds >= WORTH_SAYING_S:
        line = f"compiled {len(futures) - len(failed)} kernels for this GPU in {seconds:.1f} s"
        if failed:
            line += f"; {len(failed)} are left to their first launch ({failed[0]})"
        to_stderr(line)
    return Compiled(len(futures), len(failed), seconds)


def to_stderr(line: str) -> None:
    """One line for people."""
    print(f"routesparse: {line}", file=sys.stderr, flush=True)


def _failures(futures: Iterable[Future[Any]]) -> list[str]:
    errors = [future.exception() for future in futures if not future.cancelled()]
    return [f"{type(error).__name__}: {error}".splitlines()[0] for error in errors if error is not None]


def _blank(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
