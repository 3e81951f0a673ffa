"""What the generators hide and ask. That prompts stay byte for byte what they were: ../suites/test_suites.py."""

import re

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators import infinitebench
from routesparse.engine.lab.generators.counting import make_cwe
from routesparse.engine.lab.generators.reading import Asked, make_qa, read_hotpot, two_hops
from routesparse.engine.lab.generators.samples import sample_rng, score_all
from routesparse.engine.lab.generators.stories import STORY_TASKS, make_story
from routesparse.engine.lab.generators.tasks import fit_sample, make_sample
from routesparse.engine.lab.generators.texts import clean

HAYSTACK = " ".join(f"Sentence number {i} tells of a quiet walk by the river." for i in range(3000))
ARRIVED = re.compile(r"(?:came to|led \w+ to|reached|arrived in) (\w+)[.,]")
BOUGHT = re.compile(r"(?:dealer for|bargained long over|saw|parted with) the ([a-z]+ [a-z]+)")


def count(text: str) -> int:
    """A stand-in tokenizer: three characters a token."""
    return len(text) // 3


def hidden(sample) -> list[str]:
    return [sample.prompt[start:end] for start, end in sample.needle_spans]


def test_partial_credit_ignores_case_order_and_extra_text():
    assert score_all("so: BBB\x00 then aaa", ["AAA", "bbb", "ccc", "ddd"]) == 0.5
    with pytest.raises(InputError, match="gold is empty"):
        score_all("anything", [])


def test_values_of_one_key_are_named_in_order_of_appearance():
    sample = make_sample("niah_multivalue", 4000, haystack=HAYSTACK, seed=0)
    places = [sample.prompt.index(value) for value in sample.gold]
    assert places == sorted(places) and len(places) == 4


def test_a_variable_chain_is_assigned_in_order():
    sample = make_sample("vt", 40, seed=4)
    lines = [line.split() for line in hidden(sample)]
    assert tuple(line[1] for line in lines) == sample.gold
    assert tuple(line[-1] for line in lines[1:]) == sample.gold[:-1]


def test_the_three_gold_words_of_fwe_are_the_most_frequent_but_the_dots():
    sample = make_sample("fwe", 2000, seed=1)
    words = sample.context.split("coded words. ")[1].split()
    ranked = sorted(set(words) - {"..."}, key=words.count, reverse=True)
    assert tuple(ranked[:3]) == sample.gold


@pytest.mark.parametrize(("length", "often", "seldom"), [(8_000, 30, 3), (4_000, 6, 1)])
def test_common_words_come_more_often_than_the_others(length, often, seldom):
    example = make_cwe(sample_rng(1, "cwe", length, 0), 60, length)
    listed = example.prompt.split("appear most often.\n")[-1].split("\nQuestion")[0].split()[1::2]
    common = {word for word in listed if listed.count(word) == often}
    assert common == set(example.gold) and len(common) == 10
    assert {listed.count(word) for word in set(listed) - common} == {seldom}


def test_an_unknown_task_or_a_length_that_is_too_short_is_refused():
    with pytest.raises(InputError, match="niah_single_1"):
        make_sample("niah_single_9", 10, seed=0)
    with pytest.raises(InputError, match="raise length"):
        fit_sample("vt", 300, count_tokens=count, seed=0)


def read_answer(sample) -> list[str]:
    """What a reader of a story answers, and the number of sentences that it takes."""
    question, chapters = sample.question, []
    for text in re.split(r"Chapter \d+\n", sample.context)[1:]:
        (town,), bought = ARRIVED.findall(text), BOUGHT.findall(text)
        assert len(bought) <= 1
        chapters.append((town, *bought))
    things = [bought[0] for _, *bought in chapters if bought]
    if place := re.search(r"buy in (\w+)\?", question):
        return [item for town, *bought in chapters for item in bought if town == place[1]]
    if thing := re.search(r"immediately before the ([a-z ]+)\?", question):
        return [things[things.index(thing[1]) - 1]]
    if "buy nothing" in question:
        return [town for town, *bought in chapters if not bought]
    (item,) = re.findall(r"the ([a-z]+ [a-z]+) is\?", question)
    (chest,) = re.findall(rf"The {item} had been put into the (\w+) chest\.", sample.context)
    (house,) = re.findall(rf"The {chest} chest was carried up to the (\w+) house\.", sample.context)
    return re.findall(rf"The {house} house belonged to (\w+)\.", sample.context)


@pytest.mark.parametrize(
    ("task", "sentences"), [*zip(STORY_TASKS, (2, 2, 3, 6), strict=True)], ids=STORY_TASKS
)
def test_a_story_has_one_answer_which_its_marked_sentences_say(task, sentences):
    for index in range(30):
        sample = make_story(task, sample_rng(3, task, 0, index), 25, HAYSTACK)
        assert read_answer(sample) == list(sample.gold) and len(hidden(sample)) == sentences
        assert all(gold in " ".join(hidden(sample)) and gold in sample.answer for gold in sample.gold)
        if task != "story_filtering":
            assert max(end for _, end in sample.needle_spans) < 0.9 * len(sample.prompt)


def test_a_question_over_two_documents_needs_both(tmp_path):
    asked, documents = two_hops(sample_rng(1, "qa", 0, 0), 8)
    sample = make_qa(sample_rng(1, "qa", 0, 1), 16, asked, documents)
    person, place = sorted(hidden(sample), key=lambda text: "was" not in text)
    assert f"born in {place.split(chr(10))[0]} " in person
    assert sample.gold[0] in place and sample.gold[0] not in person
    assert sample.prompt.count("Document ") == 16
    with pytest.raises(InputError, match="put the original file there"):
        read_hotpot(tmp_path / "none.json")
    text = '[{"question": "q", "answer": "a", "context": [["T", ["One. ", "Two."]], ["U", ["Three."]]]}]'
    (tmp_path / "hotpotqa.json").write_text(text)
    documents = ("T\nOne. Two.", "U\nThree.")
    assert read_hotpot(tmp_path / "hotpotqa.json") == ([Asked("q", ("a",), documents)], documents)


@pytest.mark.parametrize("index", range(len(infinitebench.RANKS)))
def test_math_find_asks_what_is_in_the_list(index):
    text, question, answer = infinitebench.MAKERS["math_find"](
        sample_rng(1, "math_find", 0, index), 80, index
    )
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    distinct, rank = sorted(set(numbers)), infinitebench.RANKS[index]
    wanted = [distinct[-1], distinct[-2], distinct[-3], distinct[0], distinct[1], distinct[2]]
    assert rank in question and answer == [*wanted, sorted(numbers)[len(numbers) // 2]][index]


def test_code_run_s_answer_is_what_the_code_returns():
    for index in range(5):
        code, question, answer = infinitebench.MAKERS["code_run"](
            sample_rng(1, "code_run", 0, index), 40, index
        )
        space: dict = {}
        exec(code, space)
        assert eval(re.search(r"func_\d+\(-?\d+\)", question)[0], space) == answer


def test_math_calc_s_answer_is_every_partial_sum():
    text, _, answer = infinitebench.MAKERS["math_calc"](sample_rng(1, "math_calc", 0, 0), 40, 0)
    terms = text.replace("- ", "-").replace("+ ", "").split()
    assert answer == [sum(map(int, terms[: n + 1])) for n in range(len(terms))]
    assert all(0 <= value <= 99 for value in answer)


def test_cleaning_keeps_text_and_drops_control_characters():
    assert clean("a\r\nb\x00\x0c\n\n\n\n\n\nc") == "a\nb\n\n\nc\n"
