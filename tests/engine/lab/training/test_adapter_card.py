"""An adapter's card has every number from the files beside it. No GPU."""

import json
from pathlib import Path

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.training.adapter_card import main

SHA256 = "5eed" * 16


@pytest.fixture
def adapter(tmp_path) -> Path:
    folder = tmp_path / "demo-stories"
    folder.mkdir()
    config = {"r": 24, "lora_alpha": 48, "base_model_name_or_path": "data/models/demo"}
    step = {
        "stage": "A",
        "step": 20,
        "elapsed_s": 90.0,
        "length": 1024,
        "rate": 0.2,
        "loss_text": 0,
        "loss_answer": 1.234,
    }
    cell = {"task": "story_chain", "length": 4096, "n": 17}
    scores = [{**cell, "method": "dense", "score": 87.6}, {**cell, "method": "window", "score": 1.0}]
    run = {
        "stage": "A",
        "steps": 4321,
        "tokens": 5_600_000,
        "train_s": 456.0,
        "gpus": 1,
        "device": "GPU of a test",
        "torch": "9.9",
        "args": {
            "tasks": "stories",
            "tokens": "65536",
            "seed": "7",
            "adapter_optimiser": "adamw",
            "adapter_rate": "0.003",
            "muon_rate": "0.002",
        },
        "documents": {"prose/1342": 691_843},
    }
    files = {
        "adapter_config.json": config | {"routesparse_base_sha256": SHA256},
        "training.json": [run],
        "training_log.jsonl": step | {"answer_accuracy": 0.5},
        "scores.json": {"about": {"n": 48, "seed": 3, "devices": ["GPU of a test"]}, "tasks": scores},
        "scores_base.json": {
            "about": {"devices": ["CPU of a test"]},
            "tasks": [{**cell, "method": "dense", "score": 2.5}],
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "adapter_model.safetensors").write_bytes(b"x" * 1234)
    return folder


def test_the_card_says_what_the_files_say(adapter):
    main(["--adapter", str(adapter)])
    card = " ".join((adapter / "README.md").read_text().split())
    assert card.startswith("# demo-stories:")
    for said in (
        *("rank 24, alpha 48", SHA256, "1,234 bytes", "--adapter data/models/demo-stories"),
        *(
            "| story_chain | 87.6 (2.5), n 17 |",
            "the base (n 17, CPU of a test)",
            "| A | stories | adamw 0.003 | 7.6 | 4,321 | 6M | 7 |",
        ),
        *("| A | 20 | 1.5 | 1K | 0.20 | - | 1.234 | 50.0 |", "Jane Austen, 1813 | 691,843 | GITenberg"),
    ):
        assert said in card


def test_a_training_document_without_a_credit_is_refused(adapter):
    (run,) = json.loads((adapter / "training.json").read_text())
    (adapter / "training.json").write_text(json.dumps([run | {"documents": {"prose/unknown": 1}}]))
    with pytest.raises(InputError, match="prose/unknown has no credit"):
        main(["--adapter", str(adapter)])
