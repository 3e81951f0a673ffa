"""What a price that was tuned on one domain does on another: data/results/tuning*_shift.json, read, and as tables.

The files, of texts and of questions, were written at commit b6dfeee2 (``tuning_table.py``); a price claims nothing
about a domain that it was not tuned on, so this is measurement, not promise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from routesparse.engine.errors import ResultsError
from routesparse.engine.export import numbers
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.results.tables import Table
from routesparse.engine.schema import FILLED, POSITIVE, Number, Positive, Share, Text, checked

KIND: Final = "shift of tuned prices"
MOST_BYTES = 1 << 22
# What becomes of a target, with its sign and words.
FATES = {"yes": "✓ kept", "by its mean": "– kept by the mean only", "no": "✕ missed"}
FRESH = {  # what a price is checked on, by units
    "windows": "windows of documents that no choice has seen",
    "questions": "fresh questions, those with a text around them over books that no choice has seen",
}
AtLeast0 = Annotated[float, Number(0.0)]
Above0 = Annotated[float, Number(POSITIVE)]
RoundedShare = Annotated[float, Number(0.0, 1.001)]
TITLE = "Does a tuned price carry over to other prompts?"


@dataclass(frozen=True)
class Use:
    """One price on one domain's test windows. loss: their capped mean; bound: its upper one; area and saved: shares."""

    domain: Text
    own: bool  # the price was tuned on it
    windows: Positive
    clusters: Positive
    loss: AtLeast0
    bound: AtLeast0
    area: RoundedShare
    saved: Annotated[float, Number(-1000.0, 1.0)]


@dataclass(frozen=True)
class Price:
    """One tuned price and where it was used."""

    name: Text
    price: Above0
    tuned_on: Annotated[tuple[Text, ...], FILLED]
    robust: bool
    uses: Annotated[tuple[Use, ...], FILLED]

    @property
    def told(self) -> str:
        """What it was tuned on, and what it is."""
        several = "each of " if self.robust else "mean of " if len(self.tuned_on) > 1 else ""
        return f"{several}{', '.join(self.tuned_on)}: price {self.price:g}"


@dataclass(frozen=True)
class Goal:
    """One target and its prices. limit: the largest mean loss that keeps it; words: the target as people read it."""

    measure: Text
    limit: Above0
    words: Text
    confidence: Share
    prices: Annotated[tuple[Price, ...], FILLED]

    @property
    def domains(self) -> list[str]:
        """What the prices were used on."""
        return list(dict.fromkeys(use.domain for one in self.prices for use in one.uses))

    def uses(self, own: bool) -> list[Use]:
        """The pairs of a price and a domain that it was, or was not, tuned on; the windows are of other documents."""
        return [use for one in self.prices for use in one.uses if use.own == own]

    @property
    def units(self) -> str:
        """What a loss is measured on: windows of a text, or questions by their gold answers."""
        return "questions" if self.measure == "answer" else "windows"

    @property
    def kind(self) -> str:
        """What a domain is."""
        return "kind of question" if self.measure == "answer" else "kind of text"

    def kept(self, use: Use) -> str:
        """Whether the target is kept there, by the bound, by the mean alone, or not: one of FATES."""
        return "yes" if use.bound <= self.limit else "by its mean" if use.loss <= self.limit else "no"

    def loss(self, value: float) -> str:
        """A loss with its unit: nats a token, or the share of changed tokens."""
        return f"{100 * value:.2f} %" if self.measure == "agreement" else f"{value:.4f}"


@dataclass(frozen=True)
class Shift:
    """The whole file. sources: each measuring command with its device, number format, seed and commit."""

    command: Text
    model: Text
    tokens: Positive  # of a window or question, at most
    sources: Annotated[tuple[Text, ...], FILLED]
    goals: Annotated[tuple[Goal, ...], FILLED]
    kind: Literal["shift of tuned prices"] = KIND

    @property
    def source(self) -> str:
        """Where the numbers come from, in one line."""
        return f"{self.goals[0].units} of up to {self.tokens:,} tokens, model {self.model}, {'; '.join(self.sources)}"


def headline(goal: Goal) -> str:
    """How many pairs keep the target, and what the strictest price does."""
    shifted, own = goal.uses(own=False), goal.uses(own=True)
    text = (
        f"Target: {goal.words}, at {100 * goal.confidence:g} % confidence. Of {len(shifted)} pairs of a price and a "
        f"{goal.kind} that it was not tuned on: {_counts(goal, shifted)}. Of {len(own)} on a kind that it was tuned "
        f"on, other {'documents' if goal.units == 'windows' else 'questions'}: {_counts(goal, own)}."
    )
    strict = next((one for one in goal.prices if one.robust), None)
    if strict is None:
        return text
    missed = [use.domain for use in strict.uses if goal.kept(use) != "yes"]
    of = (
        f"is not shown to keep it on {', '.join(missed)}"
        if missed
        else f"keeps it on all {len(strict.uses)} kinds"
    )
    return f"{text} The strictest price, {strict.price:g}, {of}."


def how(goal: Goal) -> str:
    """How to read a goal's table."""
    beyond = (
        " A kind that no price loses says nothing about sparse attention, and answers say nothing about a text's other "
        "tokens."
        if goal.units == "questions"
        else ""
    )
    return (
        f"A row is a price, what it was tuned on, and the {goal.kind} that it was then used on: {FRESH[goal.units]}. "
        "Kept: an upper bound of the mean loss is at most the target; kept by the mean only: the measured mean is, the "
        "bound is not. Saved: causal area that is not read, against the strictest price for the same target on the "
        f"same {goal.units}. A price promises nothing about another {goal.kind}, nor, where it was tuned on the mean "
        f"of several kinds, about one of them.{beyond}"
    )


def _counts(goal: Goal, uses: list[Use]) -> str:
    found = [goal.kept(use) for use in uses]
    return ", ".join(f"{found.count(one)} {told.partition(' ')[2]}" for one, told in FATES.items())


def table(found: Shift, goal: Goal) -> Table:
    """Every pair of a price and a domain."""
    rows = [
        (
            one.name,
            one.told,
            use.domain + (" (tuned on it)" if use.own else ""),
            f"{use.windows} in {use.clusters}",
            goal.loss(use.loss),
            goal.loss(use.bound),
            FATES[goal.kept(use)],
            numbers.share(use.area),
            numbers.share(use.saved, 0),
        )
        for one in goal.prices
        for use in one.uses
    ]
    heads = ("name", "tuned on", "used on", "n", "mean loss", "upper bound", "target", "area", "saved")
    clusters = "documents" if goal.units == "questions" else "clusters (documents; of code and docs projects)"
    caption = (
        f"Target: {goal.words}; n: {goal.units} in {clusters}; each bound by itself at "
        f"{100 * goal.confidence:g} %. {found.source}"
    )
    return Table(caption, heads, tuple(rows), (0, 1, 2, 6))


def read(path: Path) -> Shift:
    """Errors: ResultsError, which names the file and what is wrong in it."""
    try:
        return checked(Shift, read_json(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ResultsError(
            f"{path.parent.name}/{path.name} can't be read: {said}; bring it back from the repository"
        ) from None
