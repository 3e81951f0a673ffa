"""The task generator: deterministic, sized, disjoint from training, scored as RULER scores. No GPU."""

import pytest

from routesparse.engine.lab.training.tasks import (
    GENERATION_TOKENS,
    TASKS,
    Training,
    fit_sample,
    make_sample,
    score_all,
)
from routesparse.engine.lab.training.words import ADJECTIVES, NOUNS

HAYSTACK = " ".join(f"Sentence number {i} tells of a quiet walk by the river." for i in range(3000))


def count(text: str) -> int:
    """A stand-in tokenizer: three characters a token."""
    return len(text) // 3


@pytest.mark.parametrize("task", TASKS)
def test_the_same_key_gives_the_same_sample_and_another_index_another(task):
    make = lambda index: fit_sample(  # noqa: E731
        task, 3000, count_tokens=count, haystack=HAYSTACK, seed=5, index=index
    )
    assert make(0) == make(0)
    assert make(0).prompt != make(1).prompt


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("length", [2048, 6000])
def test_a_sample_fits_its_length_and_fills_most_of_it(task, length):
    sample = fit_sample(task, length, count_tokens=count, haystack=HAYSTACK, seed=1)
    used = count(sample.prompt + sample.answer_prefix) + 1 + GENERATION_TOKENS[task]
    assert 0.85 * length <= used <= length


@pytest.mark.parametrize("task", [name for name in TASKS if name != "fwe"])
def test_needle_spans_point_at_the_gold_strings(task):
    sample = fit_sample(task, 3000, count_tokens=count, haystack=HAYSTACK, seed=2)
    hidden = " ".join(sample.prompt[start:end] for start, end in sample.needle_spans)
    assert sample.needle_spans == tuple(sorted(sample.needle_spans))
    assert all(gold in hidden for gold in sample.gold)


@pytest.mark.parametrize("task", TASKS)
def test_the_reference_answer_scores_full_marks_and_silence_none(task):
    sample = fit_sample(task, 3000, count_tokens=count, haystack=HAYSTACK, seed=3)
    assert score_all(sample.answer, sample.gold) == 1.0
    assert score_all("", sample.gold) == 0.0


def test_partial_credit_ignores_case_order_and_extra_text():
    assert score_all("so: BBB\x00 then aaa", ["AAA", "bbb", "ccc", "ddd"]) == 0.5


def test_scoring_without_gold_says_what_is_missing():
    with pytest.raises(ValueError, match="gold is empty"):
        score_all("anything", [])


def test_training_and_evaluation_words_are_disjoint():
    words = {part: set(ADJECTIVES[part]) | set(NOUNS[part]) for part in ("train", "eval")}
    assert not words["train"] & words["eval"]
    assert min(len(words[part]) for part in words) > 300


def test_evaluation_keys_come_from_the_evaluation_half():
    sample = make_sample("niah_multikey_2", 50, seed=0)
    for start, end in sample.needle_spans:
        key = sample.prompt[start:end].split(" for ")[1].split(" is:")[0]
        adjective, noun = key.split("-")
        assert adjective in ADJECTIVES["eval"] and noun in NOUNS["eval"]


def test_several_questions_share_one_context_and_ask_different_keys():
    options = Training(questions=5, needles=9, invented_share=0.5)
    sample = make_sample("niah_multikey_1", 4000, haystack=HAYSTACK, seed=0, words="train", training=options)
    turns = [sample.first, *sample.more]
    assert len({turn.question for turn in turns}) == 5
    assert all(gold in sample.context for turn in turns for gold in turn.gold)


def test_values_of_one_key_are_named_in_order_of_appearance():
    sample = make_sample("niah_multivalue", 4000, haystack=HAYSTACK, seed=0)
    places = [sample.prompt.index(value) for value in sample.gold]
    assert places == sorted(places) and len(places) == 4


def test_a_variable_chain_is_assigned_in_order():
    sample = make_sample("vt", 40, seed=4)
    lines = [sample.prompt[start:end] for start, end in sample.needle_spans]
    names = [line.split()[1] for line in lines]
    assert tuple(names) == sample.gold
    assert [line.split()[-1] for line in lines[1:]] == names[:-1]


def test_the_three_gold_words_of_fwe_are_the_most_frequent_but_the_dots():
    sample = make_sample("fwe", 2000, seed=1)
    words = sample.context.split("coded words. ")[1].split()
    ranked = sorted(set(words) - {"..."}, key=words.count, reverse=True)
    assert tuple(ranked[:3]) == sample.gold


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(ValueError, match="niah_single_1"):
        make_sample("niah_single_9", 10, seed=0)


def test_a_length_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="raise length"):
        fit_sample("vt", 300, count_tokens=count, seed=0)
