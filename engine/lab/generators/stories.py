"""Questions about a generated story, in the manner of The Sparse Frontier (Nawrot et al. 2025, arXiv:2504.17768).

A traveller goes from town to town, a chapter each, and buys things; between that the chapters are prose. Unlike
RULER's needles, what is asked is said in the story's own words, in another phrase than the question.

    story_retrieval   one hop: what was bought in a town
    story_before      two hops: what was bought immediately before another thing; not every chapter has a purchase
    story_chain       three hops: a thing lies in a chest, the chest stands in a house, the house belongs to somebody
    story_filtering   the three towns in which nothing was bought

What is asked lies between 5 and 75 % of the chapters, so that the end of the prompt never holds it (story_filtering
asks about all of them).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.samples import Sample, distinct
from routesparse.engine.lab.generators.words import PEOPLE, invented, key_words

EARLIEST, LATEST = 0.05, 0.75
LEAST_CHAPTERS = 10
FILLER = 500  # characters of prose in a chapter
_INTRO = "Read the following story. You will be asked about it afterwards.\n\n"
_ARRIVALS = (
    "On the following morning {who} came to {town}.",
    "The road led {who} to {town}, where the market was open.",
    "After a day's walk {who} reached {town}.",
    "It was raining when {who} arrived in {town}.",
)
_PURCHASES = (
    "There {who} paid a dealer for the {item}.",
    "In the square {who} bargained long over the {item} and took it away.",
    "{who} saw the {item} in a window and could not leave without it.",
    "An old woman parted with the {item} for a fair price, and {who} packed it carefully.",
)
_NOTHING = (
    "{who} kept the purse closed that day.",
    "Nothing on the stalls was to {who}'s liking.",
    "{who} had no wish to spend money there.",
)
_CHAIN = (
    "The {item} had been put into the {chest} chest.",
    "The {chest} chest was carried up to the {house} house.",
    "The {house} house belonged to {owner}.",
)


class _Story:
    """Chapters in the making: what was bought where, and the sentences of each."""

    def __init__(
        self, rng: random.Random, chapters: int, haystack: str, closed: set[int] | None = None
    ) -> None:
        self.rng = rng
        self.who = rng.choice(PEOPLE)
        self.towns = _distinct(chapters, lambda: invented(rng).capitalize())
        self.items = _distinct(chapters + 8, lambda: key_words(rng).replace("-", " "))
        closed = {k for k in range(chapters) if rng.random() < 0.3} if closed is None else closed
        self.bought = {k: self.items[k] for k in range(chapters) if k not in closed}
        self.sentences: list[list[str]] = []
        for k, town in enumerate(self.towns):
            deal = rng.choice(_PURCHASES if k in self.bought else _NOTHING)
            self.sentences.append(
                [
                    rng.choice(_ARRIVALS).format(who=self.who, town=town),
                    _filler(rng, haystack),
                    deal.format(who=self.who, item=self.items[k]),
                ]
            )
        self.marked: list[tuple[int, str]] = []  # (chapter, sentence) of what the question needs

    def place(self, count: int) -> list[int]:
        """Distinct chapters in the part that questions may ask about, ascending."""
        chapters = len(self.towns)
        allowed = range(int(EARLIEST * chapters), max(int(LATEST * chapters), count + 1))
        return sorted(self.rng.sample(allowed, count))

    def buy(self, chapter: int) -> None:
        """Have something bought in a chapter, whatever was drawn."""
        self.bought[chapter] = self.items[chapter]
        deal = self.rng.choice(_PURCHASES)
        self.sentences[chapter][-1] = deal.format(who=self.who, item=self.items[chapter])

    def mark(self, chapter: int, *sentences: int) -> None:
        self.marked += [(chapter, self.sentences[chapter][one]) for one in sentences]

    def asked(self, question: str, prefix: str, answer: str, gold: tuple[str, ...]) -> Sample:
        """The story's text and a question about it."""
        text, spans = _INTRO, []
        for k, sentences in enumerate(self.sentences):
            text += f"Chapter {k + 1}\n"
            for sentence in sentences:
                if (k, sentence) in self.marked:
                    spans.append((len(text), len(text) + len(sentence)))
                text += sentence + " "
            text = text[:-1] + "\n\n"
        return Sample(text, f"Question: {question}", f" Answer: {prefix}", gold, f" {answer}.", tuple(spans))


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    return distinct(count, draw, 50, " ")


def _filler(rng: random.Random, haystack: str) -> str:
    """Whole words of the haystack, about FILLER characters from a random place on."""
    if not haystack.strip():
        raise InputError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(max(len(haystack) - FILLER, 1))
    return " ".join(haystack[start : start + FILLER].split()[1:-1]).rstrip(".,;:") + "."


def make_story(task: str, rng: random.Random, units: int, haystack: str) -> Sample:
    """A story of ``units`` chapters, at least LEAST_CHAPTERS. Errors: InputError for an empty haystack."""
    return _MAKERS[task](rng, max(units, LEAST_CHAPTERS), haystack)


def _retrieval(rng: random.Random, chapters: int, haystack: str) -> Sample:
    story = _Story(rng, chapters, haystack)
    (asked,) = story.place(1)
    story.buy(asked)
    story.mark(asked, 0, -1)
    town, item = story.towns[asked], story.items[asked]
    prefix = f"In {town}, {story.who} bought the"
    return story.asked(f"What did {story.who} buy in {town}?", prefix, item, (item,))


def _before(rng: random.Random, chapters: int, haystack: str) -> Sample:
    story = _Story(rng, chapters, haystack)
    first, then = story.place(2)
    story.buy(first)
    story.buy(then)
    before = max(chapter for chapter in story.bought if chapter < then)
    story.mark(before, -1)
    story.mark(then, -1)
    item, known = story.items[before], story.items[then]
    question = f"What did {story.who} buy immediately before the {known}?"
    return story.asked(question, f"Immediately before the {known}, {story.who} bought the", item, (item,))


def _chain(rng: random.Random, chapters: int, haystack: str) -> Sample:
    """Four chains of the same wording, no two of which share a word; the question needs all links of the first."""
    story = _Story(rng, chapters, haystack)
    words = _distinct(8, lambda: key_words(rng).split("-")[0])
    owners = rng.sample([name for name in PEOPLE if name != story.who], 4)
    for chain, owner in enumerate(owners):
        facts = {"item": story.items[-1 - chain], "owner": owner}
        facts |= {"chest": words[2 * chain], "house": words[2 * chain + 1]}
        for chapter, template in zip(rng.sample(story.place(3), 3), _CHAIN, strict=True):
            story.sentences[chapter].insert(2, template.format(**facts))
            if not chain:
                story.mark(chapter, 2)
    item = story.items[-1]
    question = f"To whom belongs the house in which the {item} is?"
    return story.asked(question, f"The house in which the {item} is belongs to", owners[0], (owners[0],))


def _filtering(rng: random.Random, chapters: int, haystack: str) -> Sample:
    closed = sorted(rng.sample(range(chapters), 3))
    story = _Story(rng, chapters, haystack, set(closed))
    for chapter in closed:
        story.mark(chapter, 0, -1)
    gold = tuple(story.towns[chapter] for chapter in closed)
    question = f"In which three towns did {story.who} buy nothing?"
    return story.asked(
        question, f"The three towns in which {story.who} bought nothing are", ", ".join(gold), gold
    )


_MAKERS: dict[str, Callable[[random.Random, int, str], Sample]] = {
    "story_retrieval": _retrieval,
    "story_before": _before,
    "story_chain": _chain,
    "story_filtering": _filtering,
}
STORY_TASKS = tuple(_MAKERS)
