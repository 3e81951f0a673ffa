"""Model, optimiser, batches and the loop, at a tiny size on a CPU. No GPU."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from routesparse.engine.lab.training import train
from routesparse.engine.lab.training.batches import (
    ANSWER,
    IGNORE,
    STORY_WEIGHTS,
    BatchSource,
    Corpus,
    Phase,
    RowMaker,
    encode_sample,
    length_at,
    phase_at,
)
from routesparse.engine.lab.training.corpus import Document
from routesparse.engine.lab.training.model import Llama, Shape, export, load_weights
from routesparse.engine.lab.training.muon import Muon
from routesparse.engine.lab.training.tasks import TASKS, make_sample
from routesparse.engine.lab.training.tokenizer import BOS_ID, EOS_ID, train_tokenizer

TINY = Shape(hidden=64, mlp=128, heads=2, kv_heads=1, layers=2, vocabulary=512)
PHASES = (Phase(0.5, {512: 1.0}, 0.4), Phase(1.0, {512: 0.5, 1024: 0.5}, 0.3))
TEXT = " ".join(f"Sentence {i} of a long quiet story about the sea." for i in range(2000))


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    sample = make_sample("niah_multikey_1", 2000, haystack=TEXT, seed=0)
    train_tokenizer([TEXT[:20_000], sample.prompt + sample.answer_prefix], 512).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder):
    return train.load_tokenizer(tokenizer_folder)


@pytest.mark.parametrize(
    "text", ["is: 8589727.", "VAR ABCDE = 12345", "f8a65081-4a71-4ee4-bfb6-754a4964508a"]
)
def test_what_is_copied_is_one_token_a_character_and_round_trips(tokenizer, text):
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids) == text
    copied = [token for token in encoding.tokens if any(c.isdigit() or "A" <= c <= "Z" for c in token)]
    assert copied and all(len(token) == 1 for token in copied)


@pytest.mark.parametrize("task", TASKS)
def test_segments_encode_as_the_whole_text_does(tokenizer, task):
    """Training encodes prompt and answer apart; a user encodes them in one go."""
    sample = make_sample(task, 900, haystack=TEXT, seed=1)
    ids, classes = encode_sample(tokenizer, sample)
    assert ids[1:-1] == tokenizer.encode(sample.prompt + sample.answer_prefix + sample.answer).ids
    assert (ids[0], classes[0], ids[-1], classes[-1]) == (BOS_ID, IGNORE, EOS_ID, ANSWER)


def test_rows_have_the_asked_length_and_answers(tokenizer):
    corpus = Corpus.build([Document("prose", "story", TEXT)], tokenizer, None)
    maker = RowMaker(corpus, tokenizer, seed=0, worker=0)
    ids, classes = maker.batch(1024, 6, text_share=0.0)
    assert ids.shape == classes.shape == (6, 1025) and ids.dtype == np.uint16
    # A row whose smallest haystack is too long for it is plain text instead, and counted.
    assert (classes == ANSWER).any(axis=1).sum() == 6 - maker.skipped > 2


def test_phases_follow_progress_and_lengths_are_the_same_everywhere():
    assert phase_at(0.0, PHASES) is PHASES[0] and phase_at(1.5, PHASES) is PHASES[1]
    assert length_at(7, 0.9, PHASES) == length_at(7, 0.9, PHASES)


def test_the_learning_rate_warms_up_and_ends_at_its_last_value():
    assert train.learning_rate_scale(0, 0.0) == pytest.approx(0.01)
    assert train.learning_rate_scale(500, 0.2) == 1.0
    assert train.learning_rate_scale(500, 1.0) == pytest.approx(train.FINAL_RATE)


def test_the_exported_model_gives_the_same_logits(tmp_path):
    torch.manual_seed(0)
    model = Llama(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    export(model, tmp_path)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, TINY.vocabulary, (2, 40))
    with torch.no_grad():
        assert torch.allclose(model.logits(ids), exported(ids).logits, atol=2e-4)
    again = Llama(TINY)
    load_weights(again, tmp_path)
    assert torch.equal(again.logits(ids), model.logits(ids))


def test_batched_muon_takes_the_same_step_as_torch():
    """Against torch.optim.Muon in float64 arithmetic's reach: the reference works in bf16, hence the tolerance."""
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(24, 16)) for _ in range(3)]
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    a = Muon(ours, lr=0.1)
    b = torch.optim.Muon(theirs, lr=0.1, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    for _ in range(2):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(ours, theirs, strict=True):
        assert (p - q).norm() / q.norm() < 5e-3


def test_a_run_writes_weights_and_goes_on_from_its_checkpoint(tmp_path, tokenizer_folder, monkeypatch):
    data = tmp_path / "data"
    (data / "prose" / "train").mkdir(parents=True)
    (data / "prose" / "train" / "story.txt").write_text(TEXT)
    (tmp_path / "report.json").write_text('{"dropped": {}}')
    monkeypatch.setattr(train, "LOG_EVERY", 2)
    common = [
        *(
            "--data",
            str(data),
            "--report",
            str(tmp_path / "report.json"),
            "--tokenizer",
            str(tokenizer_folder),
        ),
        *(
            "--out",
            str(tmp_path / "out"),
            "--tokens",
            "1024",
            "--workers",
            "1",
            "--minutes",
            "5",
            "--no-compile",
        ),
    ]
    train.main([*common, "--steps", "4"], TINY, PHASES)
    drawn = []

    def source(*arguments, weights, **more):
        drawn.append(weights)
        return BatchSource(*arguments, weights=weights, **more)

    monkeypatch.setattr(train, "BatchSource", source)
    train.main([*common, "--steps", "6", "--resume", "--tasks", "stories"], TINY, PHASES)
    assert drawn == [STORY_WEIGHTS]
    rows = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert rows[-1]["tokens"] == 6 * 1024
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "model")
    assert model.config.num_key_value_heads == 1 and model.dtype == torch.bfloat16
