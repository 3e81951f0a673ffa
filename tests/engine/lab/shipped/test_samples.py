"""The bundled samples: which prompts they take. A tiny model on a CPU; nothing is routed."""

from dataclasses import replace

import pytest

from routesparse.engine.lab.shipped import samples


@pytest.fixture(scope="module")
def loaded(loaded):
    return replace(loaded, max_tokens=4_000)  # it only counts tokens here


@pytest.fixture
def prompts(loaded, tmp_path):
    """The three prompt files, made from texts of short lines."""
    for source in samples.SOURCES.values():
        path = tmp_path / "data" / source
        path.parent.mkdir(parents=True)
        path.write_text("some words of a line\n" * 2_000)
    folder = tmp_path / "prompts"
    samples.make_prompts(loaded, tmp_path / "data", 3_000, folder)
    return folder


def test_a_prompt_fills_its_tokens_and_ends_with_a_line(loaded, prompts):
    for name in ("prose", "code"):
        text = (prompts / f"{name}.txt").read_text()
        tokens = len(loaded.tokenizer(text, add_special_tokens=False)["input_ids"]) + 1
        assert 2_979 < tokens <= 3_000 and text.endswith("line\n")
    assert len(loaded.tokenizer((prompts / "needles.txt").read_text())["input_ids"]) <= 3_000
