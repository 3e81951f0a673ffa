"""Rows that the caller names: ``16000:16384``, ``last:64``, or the tokens of a phrase.

They are scored as the random rows are (``rows.py``), in every head of every layer. But nobody drew them: what they show
is a measurement of these rows and no bound for any other. So no claim counts them, and a verdict can only get worse by
them (``certificate_rows.worst_of``). The reason to name some: the error of random rows does not foretell which prompt's
answer is lost (data/results/DETECTION.md), that of the rows which look the answer up tells more, and only the caller
knows which those are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from routesparse.engine.certificate_rows import NamedRow, NamedTotal
from routesparse.engine.errors import ConfigError, PromptError
from routesparse.engine.prompts.text import Prompt
from routesparse.engine.rounding import all_digits
from routesparse.engine.rows import EXECUTED_TOLERANCE

MOST_NAMED = 4_096  # tokens; each is scored in every head
_FORM = re.compile(r"(last|[0-9]{1,9}):([0-9]{1,9})")
_SHOWN = 5  # occurrences of a phrase that an error lists


@dataclass(frozen=True)
class NamedRows:
    """Tokens ``start`` to ``stop``, the last not included; start None: the last ``stop`` tokens."""

    label: str
    start: int | None
    stop: int

    def within(self, first: int, tokens: int) -> range:
        """Those among the tokens ``first`` to ``tokens`` that one forward pass has queries of."""
        start, stop = (tokens - self.stop, tokens) if self.start is None else (self.start, self.stop)
        return range(max(start, first), max(first, min(stop, tokens)))


def read_names(labels: str | Sequence[str]) -> tuple[NamedRows, ...]:
    """What the labels name, each once. Errors: ConfigError."""
    if isinstance(labels, str):
        labels = (labels,)
    named = []
    for label in dict.fromkeys(labels):
        found = _FORM.fullmatch(label) if isinstance(label, str) else None
        start, stop = (found[1], int(found[2])) if found else ("", 0)
        first = None if start in ("last", "") else int(start)
        if not stop or (first is not None and first >= stop):
            raise ConfigError(
                f"{label!r} names no rows; write START:STOP in tokens, such as 16000:16384, or last:64"
            )
        named.append(NamedRows(label, first, stop))
    count = sum(one.stop - (one.start or 0) for one in named)
    if count > MOST_NAMED:
        raise ConfigError(
            f"{count:,} tokens are named, each to be scored in every head; name at most {MOST_NAMED:,}"
        )
    return tuple(named)


def check_within(named: Sequence[NamedRows], tokens: int) -> None:
    """Errors: ConfigError for rows that a prompt of so many tokens does not have."""
    for one in named:
        if one.start is not None and one.stop > tokens:
            raise ConfigError(
                f"rows {one.label} end behind the prompt, which has {tokens:,} tokens; name rows of it, or last:64"
            )


def rows_of_phrase(prompt: Prompt, phrase: str) -> str:
    """The label of the tokens that a phrase of the prompt touches. Errors: PromptError where it is not there once."""
    if not phrase:
        raise PromptError("an empty phrase names no rows; pass words of the prompt")
    places = [found.start() for found in re.finditer(f"(?={re.escape(phrase)})", prompt.text)]
    starts = np.asarray(prompt.token_starts)
    labels = []
    for place in places[:_SHOWN]:
        # The token that begins at or last before the phrase, and of several that share a character the first.
        first = starts.searchsorted(starts[starts.searchsorted(place, "right") - 1], "left")
        labels.append(f"{first}:{starts.searchsorted(place + len(phrase), 'left')}")
    if not places:
        raise PromptError(
            f"phrase {phrase!r} is not in prompt {prompt.name!r}; copy it letter by letter, with its line breaks, or "
            "name its tokens with --rows-at"
        )
    if len(places) > 1:
        more = ", ..." if len(places) > len(labels) else ""
        raise PromptError(
            f"phrase {phrase!r} is in prompt {prompt.name!r} {len(places):,} times, at tokens {', '.join(labels)}{more}"
            "; pass more of its sentence, or one of these with --rows-at"
        )
    return labels[0]


def named_tokens(
    places: Sequence[tuple[str, range]],
    scores: Sequence[dict[str, np.ndarray]],
    layers: Sequence[int],
    dtype: str,
    tolerance: float | None,
) -> tuple[NamedRow, ...]:
    """One row a label, prompt and token, without run and text. scores: of each layer, RowScores.numpy()."""
    stacked = {name: np.stack([layer[name] for layer in scores]) for name in scores[0]}  # [L, B, H, C]
    error = stacked["error"].astype(np.float64)
    heads = error.shape[2]
    rounded = stacked["deviation"] > EXECUTED_TOLERANCE[dtype]
    planned = "mass" in stacked
    found, place = [], 0
    for label, tokens in places:
        for c, token in enumerate(tokens, start=place):
            for b in range(error.shape[1]):
                mine = error[:, b, :, c]
                layer, head = divmod(int(mine.argmax()), heads)
                found.append(
                    NamedRow(
                        run_id="",
                        label=label,
                        batch_index=b,
                        position=token,
                        text=None,
                        rows=mine.size,
                        mean_error=float(np.minimum(mine, 1.0).mean()),
                        largest_error=float(mine.max()),
                        worst_layer=layers[layer],
                        worst_head=head,
                        nonfinite_rows=int((~stacked["finite"][:, b, :, c]).sum()),
                        beyond_rounding=int(rounded[:, b, :, c].sum()),
                        beyond_tolerance=None if tolerance is None else int((mine > tolerance).sum()),
                        mass=_mean(stacked["mass"], b, c) if planned else None,
                        hit_rate=_mean(stacked["hit"], b, c) if planned else None,
                    )
                )
        place += len(tokens)
    return tuple(found)


def _mean(values: np.ndarray, b: int, c: int) -> float:
    return float(np.clip(values[:, b, :, c].astype(np.float64), 0.0, 1.0).mean())


def sentence(total: NamedTotal, dtype: str, tolerance: float | None, most_beyond: float) -> str:
    """What the rows of one label are, as a verdict says it."""
    of = f"of the {total.rows:,} rows named {total.label}"
    if total.nonfinite_rows:
        return f"{total.nonfinite_rows:,} {of} hold NaN or Inf: this attention is broken"
    told = f"{total.beyond_rounding:,} {of} differ from exact attention by more than {dtype} rounding"
    if tolerance is not None:
        may = all_digits(most_beyond, percent=True)
        told += f", {total.beyond_tolerance:,} by more than {tolerance:g}, and {may} may"
    return told


def finding(total: NamedTotal) -> str:
    """The figures of one label beside the verdict."""
    worst = total.worst
    told = (
        f"rows named {total.label}, not drawn: {total.tokens:,} tokens in every head, {total.rows:,} rows: mean "
        f"min(relative output error, 1) {total.mean_error:.2g}, largest {worst.largest_error:.2g} at token "
        f"{worst.position:,} in layer {worst.worst_layer} head {worst.worst_head}"
    )
    if total.mass is not None and total.hit_rate is not None:
        told += f"; mass lost {1.0 - total.mass:.3f}, largest key kept in {total.hit_rate:.1%}"
    return f"{told}; a measurement of these rows, no bound for others"
