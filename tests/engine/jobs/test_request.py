"""What a job may ask for, and that a wrong wish is refused where it is made."""

import json

import pytest

from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.prompts.text import MAX_LABEL, clean_label


def test_the_configuration_carries_every_choice():
    config = RunRequest(
        policy="strict", budget="0.25", tau=0.8, segment=4096, probe="pooled", seed=7
    ).config()
    assert (config.policy, str(config.budget), config.tau) == ("strict", "0.25", 0.8)
    assert (config.segment_tokens, config.probe, config.seed) == (4096, "pooled", 7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "strict"}, "needs a latency limit"),
        ({"budget": "soon"}, "budget 'soon' is not understood"),
        ({"tau": 1.5}, "tau_layer is 1.5, it must be a number from 0 to 1"),
        ({"tau": 1.5, "policy": "certified"}, "tau is 1.5, it must be a number from 0 to 1"),
        ({"keep_text": 1}, "keep_text is 1, it must be true or false"),
        ({"calibration": "../secret.json"}, "is no name"),
        ({"profile": "/etc/passwd"}, "is no name"),
        ({"model": " "}, "names no model"),
        ({"tau": True}, "tau is true, it must be a finite number"),
        ({"seed": 2**63}, "seed is 9223372036854775808, it must be a whole number"),
        ({"calibration": "x" * 5_000}, "at most 1000 characters"),
        ({"domain": "a\x1b"}, "domain "),
        ({"domain": "x" * 121}, "domain of 121 characters is no label"),
        ({"segment": 128}, "segment 128 tokens is too short to be probed"),
    ],
)
def test_a_wrong_wish_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        RunRequest(**wrong)


def test_the_worker_picks_the_segment_where_nobody_names_one():
    asked = RunRequest.from_json(RunRequest().to_json())
    assert [asked.config(on_gpu).segment_tokens for on_gpu in (False, True)] == [16_384, 131_072]
    assert RunRequest(segment=4096).config(on_gpu=True).segment_tokens == 4096


def test_a_request_of_a_newer_version_is_refused_by_name():
    values = {**json.loads(RunRequest().to_json()), "tempo": "allegro"}
    with pytest.raises(ConfigError, match="tempo"):
        RunRequest.from_json(json.dumps(values))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "null",
        "{",
        "[" * 100_000,
        '{"seed": NaN}',
        '{"seed": 1, "seed": 2}',
        "9" * 5_000,
        b"\xff",
    ],
    ids=["empty", "list", "number", "null", "cut", "deep", "nan", "twice", "long", "bytes"],
)
def test_a_request_that_is_none_is_refused(text):
    """Whatever stands in the queue's file."""
    with pytest.raises(ConfigError):
        RunRequest.from_json(text)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("../../etc/x.txt", "x.txt"),
        (r"C:\prompts\needle.md", "needle.md"),
        ("bell\x07\n\x1b[31m", "bell[31m"),
        ("", "unnamed"),
        ("a/", "unnamed"),
        ("x" * 500, "x" * MAX_LABEL),
    ],
)
def test_a_label_is_only_a_label(given, kept):
    assert clean_label(given) == RunRequest(label=given).label == kept
