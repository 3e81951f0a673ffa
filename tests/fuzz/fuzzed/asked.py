"""What somebody asks for: a run, a budget, a routing, a prompt, an evaluation; what is printed of it."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import strategies as st
from rich.table import Table

from routesparse.engine import errors
from routesparse.engine.config import LatencyBudget, RouterConfig, default_config
from routesparse.engine.export.csv_text import as_csv
from routesparse.engine.jobs.documents import unpack
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest, read_request
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.prompts.jsonl import read_rows
from routesparse.engine.prompts.text import read_prompt
from routesparse.engine.runtime.vllm.settings import SWITCH, from_environment
from routesparse.engine.terminal import Terminal
from tests.fuzz.fuzzed.target import (
    SEEDS,
    Content,
    Target,
    bytes_like,
    edited,
    json_bytes,
    json_lines,
    typed,
    written,
)

_JOB = {
    **{
        "suite": "ruler",
        "tasks": ["vt"],
        "lengths": [8192],
        "methods": ["routesparse=0.5,1"],
        "n": 2,
        "seed": 0,
    },
    **{"model": "demo", "data": "data", "out": "out", "extras": True},
}
_ROPE = json.dumps(
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5}
    | {"beta_fast": 32.0, "beta_slow": 1.0}
)
_REQUESTS = {
    "analyse": RunRequest(budget="0.5", domain="code", rope=_ROPE),
    "profile": ProfileRequest(),
    "calibrate": CalibrateRequest(name="mine", tau=0.5),
    "fit": FitRequest("mine"),
}
_SETTINGS = {**RouterConfig().to_dict(), "budget": "0.5", "gate_threshold": 0.9, "break_even_tokens": 4096}
_DOCUMENTS = [{"name": f"{place}.txt", "text": f"Text {place}, of two."} for place in range(3)]
_ARGUMENT = 4  # digits of the values in what an argument or a variable of the environment can hold
_CHAT = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": [{"type": "text", "text": "So."}]},
]
_PROMPTS: list[dict[str, Any]] = [
    {"context": "A long text.", "input": "What is it?", "answers": ["a text"], "answer_prefix": " It is"},
    {"messages": _CHAT},
    {"prompt": "A text.", "id": 7},
]
_HARMFUL = "\x1b\r\t\x07\x00\u202e\u2066\u200b\u2028\ud800\x9b="


def _request(case: tuple[str, Content], folder: Path) -> None:
    """What is accepted is of the types that it says, and is written and read as the same request."""
    kind, content = case
    made = read_request(kind, bytes(content).decode("utf-8", "replace"))
    typed(made)
    assert read_request(kind, made.to_json()) == made
    if isinstance(made, RunRequest | CalibrateRequest):
        typed(made.config())


def _config(case: tuple[bool, dict[str, Any]], folder: Path) -> None:
    """route()'s settings by name, and a whole configuration: either way every field is held to what it is."""
    on_gpu, values = case
    for made in (RouterConfig.from_dict(values), default_config(on_gpu, **values)):
        typed(made)
        assert (
            len(made.digest()) == 16 and 0 <= made.effective_gate_threshold <= 1 and made.max_tests <= 1_000
        )


def _served(case: tuple[Content, str, str], folder: Path) -> None:
    text, every, switch = case
    named = {"_CONFIG": bytes(text).decode("utf-8", "replace"), "_RECORD_EVERY": every, "": switch}
    found = from_environment({f"{SWITCH}{name}": value for name, value in named.items()}, on_gpu=False)
    if found is not None:
        typed(found.config)


def _prompts(file: Path) -> None:
    """What New run and analyze take of a file: whatever is accepted has a text, or messages that have one."""
    rows, _ = read_rows(read_prompt(file).text)
    for row in rows:
        assert row.text.strip() or row.messages, f"line {row.number} is accepted without a text"
        assert row.told.isprintable()
        row.prompt(
            lambda messages: "\n".join(f"{one['role']}: {one['content']}" for one in messages)
        ).encode()


def _printed(texts: list[str], folder: Path) -> None:
    """Neither a terminal's nor a spreadsheet's user meets anything but text."""
    shown = io.StringIO()
    console = Terminal(file=shown, width=160, force_terminal=False)
    table = Table(texts[0], title=texts[-1], caption=texts[0])
    for text in texts:
        table.add_row(text)
        console.print(text)
    console.print(table)
    bad = [c for c in shown.getvalue() if c != "\n" and unicodedata.category(c)[0] == "C"]
    assert not bad, f"the terminal gets {bad[:3]!r}"
    frame = pd.DataFrame({"label": texts, texts[0]: pd.Series(texts, dtype=object), "n": range(len(texts))})
    rows = list(csv.reader(io.StringIO(as_csv(frame), newline="")))
    assert len(rows) == 1 + len(texts), "a text began a row of its own"
    for cell in (cell for row in rows for cell in row):
        number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", cell)
        assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"a cell is {cell!r}"
    if any("[" in text and "]" in text for text in texts):
        raise LookupError("it holds what looks like markup")


TARGETS: dict[str, Target] = {
    "evaluation's job": Target(
        json_bytes(_JOB), written("job.json", lambda file: Job.load(file.parent)), (errors.InputError,)
    ),
    "request": Target(
        st.sampled_from(sorted(_REQUESTS)).flatmap(
            lambda kind: st.tuples(st.just(kind), json_bytes(json.loads(_REQUESTS[kind].to_json())))
        ),
        _request,
        (errors.InputError,),
    ),
    "configuration": Target(
        st.tuples(st.booleans(), SEEDS.map(lambda seed: edited(_SETTINGS, seed))).filter(
            lambda case: isinstance(case[1], dict)
        ),
        _config,
        (errors.ConfigError,),
    ),
    "vLLM settings": Target(
        st.tuples(
            json_bytes(
                {name: _SETTINGS[name] for name in ("price", "policy", "tau_head", "fallback", "seed")},
                _ARGUMENT,
            ),
            st.sampled_from(["0", "100"]) | st.text(max_size=3) | st.integers().map(str),
            st.sampled_from(["1"] * 9 + ["0", "yes"]),
        ),
        _served,
        (errors.ConfigError,),
    ),
    "rope": Target(
        json_bytes(json.loads(_ROPE), _ARGUMENT),
        lambda content, folder: RopeScaling.parse(bytes(content).decode("utf-8", "replace")),
        (errors.ConfigError,),
    ),
    "budget": Target(
        st.text(max_size=20)
        | st.from_regex(r"[-+0-9.eEus ]{0,12}", fullmatch=True)
        | st.from_regex(r" *[-+]?[0-9]{0,4}\.?[0-9]{1,400}([eE][-+]?[0-9]{1,4})?(us)? *", fullmatch=True)
        | st.floats().map(str),
        lambda text, folder: LatencyBudget.parse(text),
        (errors.ConfigError,),
    ),
    "prompt": Target(
        st.binary(max_size=200)
        | bytes_like("\ufeffA line of text, täglich.\n".encode() * 4)
        | st.text().map(str.encode),
        written("x.txt", read_prompt),
        (errors.PromptError,),
    ),
    "prompts in JSON lines": Target(
        json_lines(_PROMPTS) | json_bytes(_PROMPTS[0]),
        written("x.jsonl", _prompts),
        (errors.PromptError,),
    ),
    "documents": Target(
        json_lines(_DOCUMENTS),
        lambda content, folder: unpack(bytes(content)),
        (errors.PromptError,),
    ),
    "what is printed": Target(
        st.lists(
            st.text(st.characters(codec=None) | st.sampled_from(_HARMFUL + "+-@[]/|＝"), max_size=12)
            | st.sampled_from(["[/x]", "[red]", "=1+1", "-1.5", "\t=1", "a\rb", "https://x"]),
            min_size=1,
            max_size=4,
        ),
        _printed,
        (LookupError,),
    ),
}
