"""The paired table: who loses less, over documents; what is left out is counted. Rows by hand."""

import json

import numpy as np
import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.studies.selection import paired


def rows(task, index, document, losses, areas=(0.7, 0.3)):
    """Dense, base=1 and other=2 on one prompt."""
    about = {"task": task, "length": 100, "index": index, "seed": 8, "extras": True, "documents": [document]}
    names = (
        ("dense", 1.0, 0.0, 1.0),
        ("base", 1.0, losses[0], areas[0]),
        ("other", 2.0, losses[1], areas[1]),
    )
    return [
        about
        | {
            "method": name,
            "setting": setting,
            "kl": lost,
            "nats": 1 + lost,
            "positions": 2,
            "area": area,
            "score": 1.0,
        }
        for name, setting, lost, area in names
    ]


def test_both_kinds_are_paired_by_prompt_and_what_reads_too_much_is_left_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    made = [
        one for i in range(40) for one in rows("text:prose", i, i % 10, (0.03 + rng.normal(0, 0.002), 0.01))
    ]
    made += [one for i in range(40) for one in rows("vt", i, i % 10, (0.1, 0.1 + rng.normal(0, 0.3)))]
    made += rows("vt", 40, 0, (0.1, 9.0), areas=(0.7, 0.5))
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, made)))
    paired.main([str(tmp_path / "rows.jsonl"), "--base", "base=1", "--other", "other=2", "--deciding", "0.3"])
    told = capsys.readouterr().out
    texts = next(line for line in told.splitlines() if line.startswith("| **texts")).split(" | ")
    assert texts[1] == "40, 10" and texts[4].startswith("0.0") and float(texts[5]) < 0.001
    questions = next(line for line in told.splitlines() if line.startswith("| **questions")).split(" | ")
    assert questions[1] == "40, 10" and float(questions[5]) > 0.01
    assert "1 of 81 prompts left out" in told
    lost = paired.pairs(made, "base=1", "other=2")[40:80]
    found = paired.less_lost(lost)
    by_hand = np.mean([2 * (base["nats"] - other["nats"]) for _, base, other in lost])
    assert found.value == pytest.approx(by_hand) and found.low < by_hand < found.high


def test_methods_without_common_prompts_are_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"known: base=1, dense=1, other=2"):
        paired.pairs(rows("vt", 0, 0, (0.1, 0.1)), "base=1", "nobody=1")
