"""The shipped model: small enough, loadable, and its card is what the command writes. No GPU."""

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from routesparse.engine.lab.training.card import render, score_table
from routesparse.engine.lab.training.tasks import TASKS, fit_sample, score_all

MODEL = Path(__file__).resolve().parents[4] / "data" / "models" / "demo"


def test_the_card_is_what_the_command_writes():
    assert (MODEL / "README.md").read_text() == render(MODEL)


def test_the_score_table_has_a_row_for_every_task():
    scores = json.loads((MODEL / "scores.json").read_text())["scores"]
    assert set(scores) == set(TASKS)
    assert score_table(scores).count("\n") == len(TASKS) + 1


def test_the_weights_are_small_and_answer_a_needle_prompt():
    """A 2K prompt on the CPU, greedy; the haystack is noise, so nothing but the repository is needed."""
    assert (MODEL / "model.safetensors").stat().st_size <= 32_000_000
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    encode = lambda text: tokenizer(text)["input_ids"]  # noqa: E731
    sample = fit_sample("niah_single_1", 2048, count_tokens=lambda text: len(encode(text)), seed=77)
    ids = torch.tensor([[tokenizer.bos_token_id, *encode(sample.prompt + sample.answer_prefix)]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, pad_token_id=1)
    assert score_all(tokenizer.decode(out[0, ids.shape[1] :]), sample.gold) == 1.0
