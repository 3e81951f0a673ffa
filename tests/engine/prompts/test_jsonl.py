"""Prompts of .jsonl files as benchmarks and chat services write them; the page and the commands read alike."""

import json

import pytest

from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.prompts.jsonl import jsonl_prompts, read_one, read_rows

LONG = "The ledger of the harbour. " * 50


def row_of(value):
    (row,), wrong = read_rows(json.dumps(value))
    assert wrong == []
    return row


@pytest.mark.parametrize(
    ("value", "prompt"),
    [
        ({"input": "Who?", "context": LONG, "answers": ["Ann"]}, f"{LONG}\n\nWho?"),
        ({"question": "Who?", "passage": LONG}, f"{LONG}\n\nWho?"),
        ({"query": "Who?", "documents": [LONG, "b"]}, f"{LONG}\nb\n\nWho?"),
        ({"context": [["Title", [LONG, "s"]]], "question": "Who?"}, f"Title\n{LONG}\ns\n\nWho?"),
        ({"instruction": "Sum up.", "context": LONG, "response": "x"}, f"Sum up.\n\n{LONG}"),
        ({"text": LONG, "question": "ledger"}, f"{LONG}\n\nledger"),
        ({"prompt": f"{LONG} Who?", "context": LONG, "question": "Who?"}, f"{LONG} Who?"),
        ({"prompt": "Who?", "context": LONG}, f"{LONG}\n\nWho?"),
        ({"instruction": "Sum up.", "input": "", "output": "x"}, "Sum up."),
        ({"input": LONG, "answer_prefix": " Answer:", "outputs": ["1"]}, f"{LONG} Answer:"),
        ({"text": "as it stands\n"}, "as it stands\n"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_a_long_text_stands_with_its_question(value, prompt):
    assert row_of(value).prompt(None) == prompt
    assert jsonl_prompts(json.dumps(value)) == ([prompt], [])


def test_one_line_says_what_was_taken_and_what_was_left():
    told = row_of({"question": "Who?", "document": {"text": LONG}, "answers": ["Ann"], "id": 3}).told
    assert told == "line 1: the prompt is question; left out: document, answers"
    assert row_of({"input": "Who?", "context": LONG}).told == "line 1: the prompt is context + input"
    assert row_of({"text": LONG}).told == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a", "text": "b"}', "'text' stands twice"),
        ('{"dialogue": "a"}', "no text under prompt or text, .*only dialogue"),
        ('{"messages": [{"role": "user"}]}', 'message 1 needs "role" and "content"'),
        ('{"text": "a", "context": ' + "[" * 600 + "]" * 600 + "}", "nested too deeply"),
        ('{"text": "a", "x": [' + "[]," * 600_000 + "0]}", "more than 524,288 values"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "images"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "chat template"),
    ],
)
def test_what_cannot_be_a_prompt_says_why(line, message):
    with pytest.raises(PromptError, match=message):
        jsonl_prompts(line)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {
            "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "u"}]}]},
            "method": "POST",
        },
        {"prompt": [{"role": "user", "content": "u"}], "completion": "c"},
    ],
    ids=["fine-tuning", "batch", "conversational"],
)
def test_messages_are_rendered_by_the_chat_template(value):
    assert row_of(value).prompt(lambda messages: f"{len(messages)} {messages[-1]['content']}")[-1] == "u"


def test_a_command_reads_one_prompt_of_the_file(tmp_path):
    file = tmp_path / "suite.jsonl"
    file.write_text('{"suite": "ruler", "n": 2}\n{"text": "one"}\n[1]\n{"text": "two"}\n')
    prompt, told = read_one(file, 2, str)
    assert (prompt.text, prompt.name) == ("two", "suite.jsonl #2")
    assert len(told) == 1 and told[0].startswith("left out: line 3 has no text under ")
    prompt, told = read_one(file, None, str)
    assert prompt.text == "one" and told[1] == "the first of 2 prompts; --number picks another"
    with pytest.raises(InputError, match="holds 2 prompts"):
        read_one(file, 3, str)
    (tmp_path / "p.txt").write_text("text")
    with pytest.raises(InputError, match=r"--number 1 is for a \.jsonl file"):
        read_one(tmp_path / "p.txt", 1, str)
