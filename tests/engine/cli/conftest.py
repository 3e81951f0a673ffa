"""Fixtures of the commands' tests."""

import random

import pytest

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "wizards",
    "draw",
    "jugs",
)


def words(seed, count=400):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


@pytest.fixture
def prompt(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 14)
    return file
