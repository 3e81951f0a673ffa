"""Questions about a generated story, in the manner of The Sparse Frontier (Nawrot et al. 2025, arXiv:2504.17768).

A traveller goes from town to town, a chapter each, and buys things; between that the chapters are prose. Unlike
RULER's needles, what is asked is said in the story's own words, in another phrase than the question.

    story_retrieval   one hop: what was bought in a town
    story_before      two hops: what was bought immediately before another thing; not every chapter has a purchase
    story_chain       three hops: a thing lies in a chest, the chest stands in a house, the house belongs to somebody
    story_filtering   the three towns in which nothing was bought

What is asked lies between 5 and 75 % of the chapters, so that the end of the prompt never holds it (story_filtering
asks about all of them).

Training asks several questions about one story. The first is the evaluation's own; the others ask about whatever was
bought anyway, at any place, or about the other chains, each by a random link of its three, so that the links are learnt
before their composition. What is asked for once does not depend on how many questions follow. Things and people may
have made-up names in training: a model that has read only some hundred words in these places knows them by heart.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable

from routesparse.engine.lab.training.samples import Built, Turn
from routesparse.engine.lab.training.words import WordSet, invented, key_words

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
# A chain's question by the link that answers it: question, beginning of the answer, answer, what is looked for in it.
_LINKS = (
    ("In which chest is the {item}?", "The {item} is in the", "{chest} chest", "{chest}"),
    ("In which house is the {item}?", "The {item} is in the", "{house} house", "{house}"),
    (
        "To whom belongs the house in which the {item} is?",
        "The house in which the {item} is belongs to",
        "{owner}",
        "{owner}",
    ),
)


class _Story:
    """Chapters in the making: what was bought where, and the sentences of each."""

    def __init__(
        self,
        rng: random.Random,
        chapters: int,
        haystack: str,
        part: WordSet,
        filler: int,
        invented_share: float,
        closed: set[int] | None = None,
    ) -> None:
        self.rng, self.part, self.invented_share = rng, part, invented_share
        self.who = self.name()
        self.towns = _distinct(chapters, lambda: invented(rng).capitalize())
        self.items = _distinct(chapters + 8, lambda: self.words().replace("-", " "))
        closed = {k for k in range(chapters) if rng.random() < 0.3} if closed is None else closed
        self.bought = {k: self.items[k] for k in range(chapters) if k not in closed}
        self.sentences: list[list[str]] = []
        for k, town in enumerate(self.towns):
            deal = rng.choice(_PURCHASES if k in self.bought else _NOTHING)
            self.sentences.append(
                [
                    rng.choice(_ARRIVALS).format(who=self.who, town=town),
                    _filler(rng, haystack, filler),
                    deal.format(who=self.who, item=self.items[k]),
                ]
            )
        self.marked: list[tuple[int, str]] = []  # (chapter, sentence) of what the first question needs

    def words(self) -> str:
        return key_words(self.rng, self.part, self.invented_share)

    def name(self) -> str:
        if self.invented_share and self.rng.random() < self.invented_share:
            return invented(self.rng).capitalize()
        return self.rng.choice(PEOPLE[self.part])

    def place(self, count: int) -> list[int]:
        """Distinct chapters in the part that questions may ask about, ascending."""
        chapters = len(self.towns)
        allowed = range(int(EARLIEST * chapters), max(int(LATEST * chapters), count + 1))
        return sorted(self.rng.sample(allowed, count))

    def others(self, chapters: Iterable[int], questions: int) -> list[int]:
        """Chapters of those given for all questions but the first, in random order."""
        found = list(chapters)
        return self.rng.sample(found, min(questions - 1, len(found)))

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


def _filler(rng: random.Random, haystack: str, characters: int) -> str:
    """Whole words of the haystack, about so many characters from a random place on."""
    if not haystack.strip():
        raise ValueError("the haystack is empty; pass some text, for instance a public-domain book")
    start = rng.randrange(max(len(haystack) - characters, 1))
    return " ".join(haystack[start : start + characters].split()[1:-1]).rstrip(".,;:") + "."


def make_story(
    task: str,
    rng: random.Random,
    units: int,
    haystack: str,
    part: WordSet,
    questions: int = 1,
    filler: int = FILLER,
    invented_share: float = 0.0,
) -> Built:
    """A story of `units` chapters, at least LEAST_CHAPTERS.

    questions: how many are asked at most, for training; a story has an answer to some 0.7 a chapter, story_chain to 4
    and story_filtering to one. filler: characters of prose in a chapter. invented_share: of things and people, how many
    have made-up names. Errors: ValueError for an unknown task or an empty haystack.
    """
    chapters = max(units, LEAST_CHAPTERS)
    if task == "story_filtering":
        made, turns = _filtering(rng, chapters, haystack, part, filler, invented_share)
    elif task in _QUESTIONS:
        made = _Story(rng, chapters, haystack, part, filler, invented_share)
        turns = _QUESTIONS[task](made, questions)
    else:
        raise ValueError(f"unknown task {task!r}; use one of {', '.join(STORY_TASKS)}")
    context, spans = made.text("Read the following story. You will be asked about it afterwards.\n\n")
    # A further question stands behind an answer, the first behind the last chapter's empty line.
    more = [dataclasses.replace(turn, question=f"\n\n{turn.question}") for turn in turns[1:]]
    return context, [turns[0], *more], spans, {"chapters": chapters}


def _buy(story: _Story, chapter: int) -> None:
    """Have something bought in a chapter, whatever was drawn."""
    story.bought[chapter] = story.items[chapter]
    story.sentences[chapter][-1] = story.rng.choice(_PURCHASES).format(
        who=story.who, item=story.items[chapter]
    )


def _retrieval(story: _Story, questions: int) -> list[Turn]:
    (chapter,) = story.place(1)
    _buy(story, chapter)
    story.mark(chapter, 0, -1)
    others = story.others((k for k in story.bought if k != chapter), questions)
    return [_bought_in(story, asked) for asked in (chapter, *others)]


def _bought_in(story: _Story, chapter: int) -> Turn:
    town, item = story.towns[chapter], story.items[chapter]
    return Turn(
        f"Question: What did {story.who} buy in {town}?",
        f" Answer: In {town}, {story.who} bought the",
        (item,),
        f" {item}.",
    )


def _before(story: _Story, questions: int) -> list[Turn]:
    first, then = story.place(2)
    _buy(story, first)
    _buy(story, then)
    story.mark(_last_before(story, then), -1)
    story.mark(then, -1)
    # Nothing was bought before the first purchase.
    others = story.others((k for k in story.bought if k not in (then, min(story.bought))), questions)
    return [_bought_before(story, asked) for asked in (then, *others)]


def _last_before(story: _Story, then: int) -> int:
    return max(chapter for chapter in story.bought if chapter < then)


def _bought_before(story: _Story, then: int) -> Turn:
    item = story.items[_last_before(story, then)]
    return Turn(
        f"Question: What did {story.who} buy immediately before the {story.items[then]}?",
        f" Answer: Immediately before the {story.items[then]}, {story.who} bought the",
        (item,),
        f" {item}.",
    )


def _chain(story: _Story, questions: int) -> list[Turn]:
    """Four chains of the same wording, no two of which share a word; the first question needs all links of one."""
    rng = story.rng
    words = _distinct(8, lambda: story.words().split("-")[0])
    if story.invented_share:
        owners = [name for name in _distinct(5, story.name) if name != story.who][:4]
    else:
        owners = rng.sample([name for name in PEOPLE[story.part] if name != story.who], 4)
    chains = [
        {
            "item": story.items[-1 - place],
            "chest": words[2 * place],
            "house": words[2 * place + 1],
            "owner": owners[place],
        }
        for place in range(4)
    ]
    for place, facts in enumerate(chains):
        for chapter, template in zip(rng.sample(story.place(3), 3), _CHAIN, strict=True):
            story.sentences[chapter].insert(2, template.format(**facts))
            if not place:
                story.mark(chapter, 2)
    asked = [(_LINKS[-1], chains[0]), *((rng.choice(_LINKS), facts) for facts in chains[1:questions])]
    return [_link_turn(link, facts) for link, facts in asked]


def _link_turn(link: tuple[str, str, str, str], facts: dict[str, str]) -> Turn:
    question, prefix, answer, gold = (text.format(**facts) for text in link)
    return Turn(f"Question: {question}", f" Answer: {prefix}", (gold,), f" {answer}.")


_QUESTIONS: dict[str, Callable[[_Story, int], list[Turn]]] = {
    "story_retrieval": _retrieval,
    "story_before": _before,
    "story_chain": _chain,
}


def _filtering(
    rng: random.Random, chapters: int, haystack: str, part: WordSet, filler: int, invented_share: float
) -> tuple[_Story, list[Turn]]:
    closed = sorted(rng.sample(range(chapters), 3))
    story = _Story(rng, chapters, haystack, part, filler, invented_share, set(closed))
    for chapter in closed:
        story.mark(chapter, 0, -1)
    gold = tuple(story.towns[chapter] for chapter in closed)
    question = f"Question: In which three towns did {story.who} buy nothing?"
    prefix = f" Answer: The three towns in which {story.who} bought nothing are"
    return story, [Turn(question, prefix, gold, " " + ", ".join(gold) + ".")]
