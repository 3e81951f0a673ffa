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

from routesparse.engine.demo_model.samples import Built, Turn
from routesparse.engine.demo_model.words import WordSet, invented, key_words

STORY_TASKS = ("story_retrieval", "story_before", "story_chain", "story_filtering")
EARLIEST, LATEST = 0.05, 0.75
LEAST_CHAPTERS = 10
FILLER = 500  # characters of prose in a chapter
_PEOPLE = """
Agnes Albert Anton Beatrice Bernard Cecily Clara Conrad Daphne Edmund Edith Elias Esther Felix Flora Gideon Greta Harold
Helena Ingrid Isaac Jasper Johanna Julian Karl Lavinia Leopold Lydia Magnus Martha Matilda Nathan Nora Octavia Oscar
Pauline Philip Quentin Rosalind Rufus Selma Silas Sophia Theodore Ursula Victor Viola Walter Wilma
"""
PEOPLE = {"train": tuple(_PEOPLE.split()[::2]), "eval": tuple(_PEOPLE.split()[1::2])}
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
        self, rng: random.Random, chapters: int, haystack: str, part: WordSet, closed: set[int] | None
    ) -> None:
        self.rng, self.part = rng, part
        self.who = rng.choice(PEOPLE[part])
        self.towns = _distinct(chapters, lambda: invented(rng).capitalize())
        self.items = _distinct(chapters + 8, lambda: key_words(rng, part).replace("-", " "))
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

    def mark(self, chapter: int, *sentences: int) -> None:
        self.marked += [(chapter, self.sentences[chapter][one]) for one in sentences]

    def text(self, intro: str) -> tuple[str, list[tuple[int, int]]]:
        """The story behind an introduction, and the character spans of the marked sentences."""
        spans = []
        for k, sentences in enumerate(self.sentences):
            intro += f"Chapter {k + 1}\n"
            for sentence in sentences:
                if (k, sentence) in self.marked:
                    spans.append((len(intro), len(intro) + len(sentence)))
                intro += sentence + " "
            intro = intro[:-1] + "\n\n"
        return intro, spans


def _distinct(count: int, draw: Callable[[], str]) -> list[str]:
    found: dict[str, None] = {}
    tries = 0
    while len(found) < count:
        word, tries = draw(), tries + 1
        found[word if tries < 50 * count else f"{word} {len(found)}"] = None
    return list(found)


def _filler(rng: random.Random, haystack: str) -> str:
    """Whole words of the haystack, about FILLER characters from a random place on."""
    if not haystack.strip():
        raise ValueError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(max(len(haystack) - FILLER, 1))
    return " ".join(haystack[start : start + FILLER].split()[1:-1]).rstrip(".,;:") + "."


def make_story(task: str, rng: random.Random, units: int, haystack: str, part: WordSet) -> Built:
    """units: chapters, at least LEAST_CHAPTERS. Errors: ValueError for an unknown task or an empty haystack."""
    chapters = max(units, LEAST_CHAPTERS)
    if task == "story_filtering":
        made, turn = _filtering(rng, chapters, haystack, part)
    elif task in _QUESTIONS:
        made = _Story(rng, chapters, haystack, part, None)
        turn = _QUESTIONS[task](made)
    else:
        raise ValueError(f"unknown task {task!r}; use one of {', '.join(STORY_TASKS)}")
    context, spans = made.text("Read the following story. You will be asked about it afterwards.\n\n")
    return context, [turn], spans, {"chapters": chapters}


def _buy(story: _Story, chapter: int) -> None:
    """Have something bought in a chapter, whatever was drawn."""
    story.bought[chapter] = story.items[chapter]
    story.sentences[chapter][-1] = story.rng.choice(_PURCHASES).format(
        who=story.who, item=story.items[chapter]
    )


def _retrieval(story: _Story) -> Turn:
    (chapter,) = story.place(1)
    _buy(story, chapter)
    story.mark(chapter, 0, -1)
    town, item = story.towns[chapter], story.items[chapter]
    return Turn(
        f"Question: What did {story.who} buy in {town}?",
        f" Answer: In {town}, {story.who} bought the",
        (item,),
        f" {item}.",
    )


def _before(story: _Story) -> Turn:
    first, then = story.place(2)
    _buy(story, first)
    _buy(story, then)
    last = max(chapter for chapter in story.bought if chapter < then)
    story.mark(last, -1)
    story.mark(then, -1)
    item = story.items[last]
    return Turn(
        f"Question: What did {story.who} buy immediately before the {story.items[then]}?",
        f" Answer: Immediately before the {story.items[then]}, {story.who} bought the",
        (item,),
        f" {item}.",
    )


def _chain(story: _Story) -> Turn:
    """Four chains of the same wording; one is asked about, and no two share a word."""
    rng, part = story.rng, story.part
    words = _distinct(8, lambda: key_words(rng, part).split("-")[0])
    owners = rng.sample([name for name in PEOPLE[part] if name != story.who], 4)
    for place in range(4):
        facts = {
            "item": story.items[-1 - place],
            "chest": words[2 * place],
            "house": words[2 * place + 1],
            "owner": owners[place],
        }
        for chapter, template in zip(rng.sample(story.place(3), 3), _CHAIN, strict=True):
            story.sentences[chapter].insert(2, template.format(**facts))
            if not place:
                story.mark(chapter, 2)
    item = story.items[-1]
    return Turn(
        f"Question: To whom belongs the house in which the {item} is?",
        f" Answer: The house in which the {item} is belongs to",
        (owners[0],),
        f" {owners[0]}.",
    )


_QUESTIONS: dict[str, Callable[[_Story], Turn]] = {
    "story_retrieval": _retrieval,
    "story_before": _before,
    "story_chain": _chain,
}


def _filtering(rng: random.Random, chapters: int, haystack: str, part: WordSet) -> tuple[_Story, Turn]:
    closed = sorted(rng.sample(range(chapters), 3))
    story = _Story(rng, chapters, haystack, part, set(closed))
    for chapter in closed:
        story.mark(chapter, 0, -1)
    gold = tuple(story.towns[chapter] for chapter in closed)
    question = f"Question: In which three towns did {story.who} buy nothing?"
    prefix = f" Answer: The three towns in which {story.who} bought nothing are"
    return story, Turn(question, prefix, gold, " " + ", ".join(gold) + ".")
