"""Stories: what evaluation asks stays as it was, and training's further questions are right. No GPU."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from routesparse.engine.lab.training.batches import (
    ANSWER,
    IGNORE,
    STORY_WEIGHTS,
    Corpus,
    RowMaker,
    encode_sample,
)
from routesparse.engine.lab.training.corpus import Document
from routesparse.engine.lab.training.samples import Sample, Training, sample_rng
from routesparse.engine.lab.training.stories import PEOPLE, STORY_TASKS, make_story
from routesparse.engine.lab.training.tasks import make_sample
from routesparse.engine.lab.training.tokenizer import load_tokenizer
from routesparse.engine.lab.training.words import ADJECTIVES, NOUNS

DEMO = Path(__file__).resolve().parents[4] / "data" / "models" / "demo"
HAYSTACK = " ".join(f"Sentence number {i} tells of a quiet walk by the river." for i in range(3000))
# Of (10 chapters, eval), (23, train), (60, eval), made before training asked anything.
BEFORE_TRAINING = {
    "story_retrieval": "bfa3410152db70ddf0a35f89021a7d17280af1f191f085ec5424adfb2712e5d3",
    "story_before": "1ffc71ace84efbc44c6ca7f058a3907a09f0c3b75502121e5686eb72a79c3799",
    "story_chain": "76da5eab61b0279ea9519a155a220d269a4febc03c7c6fdbada6d6ecc7e60f72",
    "story_filtering": "9a6a608eeb31a2dc4706aa0c2812af1573371841b08d6e99e122a7e0bdb7eb7a",
}
ARRIVED = re.compile(r"(?:came to|led \w+ to|reached|arrived in) (\w+)[.,]")
BOUGHT = re.compile(r"(?:dealer for|bargained long over|saw|parted with) the ([a-z]+ [a-z]+)")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(DEMO)


@pytest.mark.parametrize("task", STORY_TASKS)
def test_what_evaluation_asks_is_byte_for_byte_what_it_was(task):
    found = hashlib.sha256()
    for units, part in ((10, "eval"), (23, "train"), (60, "eval")):
        found.update(repr(make_story(task, sample_rng(7, task, 0, units), units, HAYSTACK, part)).encode())
    assert found.hexdigest() == BEFORE_TRAINING[task]


def asked(task: str, index: int, questions: int, invented_share: float = 0.0) -> Sample:
    options = Training(questions=questions, filler=80, invented_share=invented_share)
    return make_sample(task, 25, haystack=HAYSTACK, seed=3, index=index, words="train", training=options)


@pytest.mark.parametrize("task", STORY_TASKS)
def test_further_questions_change_neither_the_story_nor_the_first_question(task):
    one, many = asked(task, 0, 1), asked(task, 0, 8)
    assert (one.context, one.first, one.needle_spans) == (many.context, many.first, many.needle_spans)
    assert not one.more
    assert len(many.more) == {"story_filtering": 0, "story_chain": 3}.get(task, 7)


def chapters(context: str) -> list[tuple[str, str | None]]:
    """Town and purchase of each chapter, read from its text."""
    found = []
    for text in re.split(r"Chapter \d+\n", context)[1:]:
        (town,), bought = ARRIVED.findall(text), BOUGHT.findall(text)
        assert len(bought) <= 1
        found.append((town, bought[0] if bought else None))
    return found


def read_answer(context: str, question: str) -> list[str]:
    """What a reader of the story answers."""
    if place := re.search(r"buy in (\w+)\?", question):
        return [item for town, item in chapters(context) if town == place[1] and item]
    if thing := re.search(r"immediately before the ([a-z ]+)\?", question):
        bought = [item for _, item in chapters(context) if item]
        return [bought[bought.index(thing[1]) - 1]] if bought[0] != thing[1] else []
    if "buy nothing" in question:
        return [town for town, item in chapters(context) if not item]
    (item,) = re.findall(r"(?:which|is) the ([a-z]+ [a-z]+)(?: is)?\?", question)
    chest, *more = re.findall(rf"The {item} had been put into the (\w+) chest\.", context)
    (house,) = re.findall(rf"The {chest} chest was carried up to the (\w+) house\.", context)
    (owner,) = re.findall(rf"The {house} house belonged to (\w+)\.", context)
    assert not more
    return [chest if "In which chest" in question else house if "In which house" in question else owner]


@pytest.mark.parametrize("invented_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("task", STORY_TASKS)
def test_every_question_has_the_answer_that_a_reader_finds_and_is_asked_once(task, invented_share):
    for index in range(30):
        sample = asked(task, index, 8, invented_share)
        turns = (sample.first, *sample.more)
        assert len({turn.question for turn in turns}) == len(turns)
        for turn in turns:
            assert read_answer(sample.context, turn.question) == list(turn.gold)
            assert all(gold in turn.answer for gold in turn.gold)


def test_with_made_up_names_no_listed_word_or_person_is_left():
    listed = {*ADJECTIVES["train"], *NOUNS["train"], *PEOPLE["train"]}
    for task in STORY_TASKS:
        sample = asked(task, 0, 8, 1.0)
        golds = [word for turn in (sample.first, *sample.more) for gold in turn.gold for word in gold.split()]
        assert golds and not listed & set(golds)


def test_training_asks_about_every_chain_and_every_link():
    questions = [turn.question for index in range(30) for turn in asked("story_chain", index, 4).more]
    for beginning in ("In which chest", "In which house", "To whom belongs"):
        assert sum(beginning in question for question in questions) > 15


@pytest.mark.parametrize("task", STORY_TASKS)
def test_segments_of_a_story_encode_as_the_whole_text_does(tokenizer, task):
    """Training encodes questions and answers apart; a user encodes all in one go."""
    sample = asked(task, 1, 4)
    text = sample.prompt + sample.answer_prefix + sample.answer
    text += "".join(turn.question + turn.answer_prefix + turn.answer for turn in sample.more)
    ids, _ = encode_sample(tokenizer, sample)
    assert ids[1:-1] == tokenizer.encode(text).ids


@pytest.mark.parametrize("task", STORY_TASKS)
def test_a_short_context_holds_a_story_of_the_training_words(tokenizer, task):
    corpus = Corpus([Document("prose", "walk", HAYSTACK)], tokenizer.encode(HAYSTACK).ids)
    maker = RowMaker(corpus, tokenizer, seed=0, worker=0, weights={task: STORY_WEIGHTS[task]})
    rows = [maker.task(1024) for _ in range(20)]
    assert maker.skipped <= 6
    told = [tokenizer.decode(ids[classes != IGNORE].tolist()) for ids, classes in rows if ANSWER in classes]
    assert len(told) == 20 - maker.skipped and all("Chapter 10\n" in text for text in told)
