"""Fixtures of the commands' tests."""

import pytest


@pytest.fixture
def prompt(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("the quick brown fox jumps over the lazy dog. " * 14)
    return file
