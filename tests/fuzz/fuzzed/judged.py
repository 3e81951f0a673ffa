"""What is judged: plans and masks for a certificate, and predictions for a suite's scorer."""

from __future__ import annotations

import io
import math
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.numpy import save
from torch.nn.attention.flex_attention import create_block_mask

from routesparse.engine import errors
from routesparse.engine.certification.mask_files import read_masks
from routesparse.engine.certification.minference_heads import heads_from_json
from routesparse.engine.certification.reads import reads_of
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.lab.suites.suite import read_rows
from routesparse.kernels.interface import RowPlan
from tests.fuzz.fuzzed.target import Target, bytes_like, json_bytes, json_lines, tensors_like, written

WINDOW = 40  # keys that a row of the plans below reads
_BARE = ("mask", "mask of NumPy")
_KINDS = (*_BARE, "RowPlan", "BlockMask")


def _mask_array() -> bytes:
    """More blocks than its header has bytes, so that half of the changes hit blocks."""
    buffer = io.BytesIO()
    np.save(buffer, np.ones((2, 1, 16, 32), bool))
    return buffer.getvalue()


def _mask_tensors() -> bytes:
    return save({"layer.0": np.ones((1, 16, 32), bool)}, metadata={"block_q": "128", "block_k": "64"})


def _reads(heads: int, queries: int, keys: int, block: tuple[int, int]) -> torch.Tensor:
    """bool [heads, M, N]: the blocks in which a row, as the last of ``keys`` tokens, reads one of its last WINDOW."""
    first = torch.arange(0, queries, block[0])[:, None] + keys - queries
    key = torch.arange(0, keys, block[1])[None]
    return ((key + block[1] > first - WINDOW) & (key < first + block[0])).expand(heads, -1, -1)


@cache
def _plan(kind: str, batch: int, heads: int, queries: int, keys: int, block: tuple[int, int]) -> Any:
    mask = _reads(heads, queries, keys, block)
    if kind == "mask":
        return mask
    if kind == "mask of NumPy":
        return mask.numpy()
    if kind == "RowPlan":
        return RowPlan.from_block_mask(mask.expand(batch, -1, -1, -1), queries, keys, *block)

    def keep(b: Any, h: Any, row: Any, key: Any) -> Any:
        return (row + keys - queries - key < WINDOW) & (key <= row + keys - queries)

    return create_block_mask(keep, batch, heads, queries, keys, device="cpu", BLOCK_SIZE=block)


def _judged(case: tuple[str, str, tuple[int, ...], tuple[int, ...]], folder: Path) -> None:
    """A plan that is taken for a call says of the call's own rows what it was made to say."""
    kind, way, planned, called = case
    batch, heads, queries, keys = called[:4]
    made = _plan(kind, *planned[:4], tuple(planned[4:]))
    plan = {"alone": made, "by layer": {0: made}, "function": lambda layer: made}[way]
    found = reads_of(plan, 0, (batch, heads, queries, keys), tuple(called[4:]))
    assert found is not None
    if kind in _BARE and planned[2:] != called[2:]:
        return  # as many blocks; that they are those of other tokens no bare mask says
    rows = torch.arange(0, queries, 7)
    kept = found.at(0, torch.full_like(rows, heads - 1), rows, keys)
    place = rows[:, None] + keys - queries
    key = torch.arange(keys)[None]
    needed = (place - key < WINDOW) & (key <= place)
    assert bool((kept | ~needed).all()), "a row is said to miss what its plan reads"
    far = (place - key > WINDOW + sum(planned[4:])) | (key > place + sum(planned[4:]))
    assert not bool((kept & far).any()), "a row is said to read what its plan does not"


def _shape(seed: int) -> tuple[int, ...]:
    random = Random(seed)
    keys = random.choice([128, 192, 200, 256])
    block = random.choice([(32, 32), (64, 32), (64, 64)])
    return (
        random.choice([1, 1, 2]),
        random.choice([1, 2]),
        random.choice([keys, keys, 64, 100, 128]),
        keys,
        *block,
    )


def _call(case: tuple[str, str, int, int]) -> tuple[str, str, tuple[int, ...], tuple[int, ...]]:
    """A plan and a call of its own shape, or with one size of another."""
    kind, way, seed, place = case
    planned, called = list(_shape(seed)), list(_shape(seed))
    while place < len(called) and called[place] == planned[place]:
        seed += 1
        called[place] = _shape(seed)[place]
    for shape in (planned, called):  # tokens before the first have no row
        shape[2] = min(shape[2:4])
    return kind, way, tuple(planned), tuple(called)


# A suite's task with a row that it scores.
_SCORED: dict[tuple[str, str], dict[str, Any]] = {
    **{
        (suite, task): {"index": 0, "pred": "it is 7 and 8", "outputs": ["7", "8"]}
        for suite, task in (("ruler", "niah_multikey_1"), ("ruler", "qa_1"), ("stories", ""))
    },
    **{
        ("infinitebench", task): {"id": 0, "prediction": prediction, "ground_truth": gold}
        for task, prediction, gold in (
            ("passkey", "it is 71432.", ["71432"]),
            ("kv_retrieval", "a-b is it", "a-b"),
            ("longbook_sum_eng", "a short story", "a story"),
            ("longbook_qa_eng", "the cat", ["cat", "a cat"]),
            ("longbook_choice_eng", "answer is: B", ["a cat", "B"]),
            ("longdialogue_qa_eng", "Tom", ["TOM"]),
            ("code_debug", "B. name", ["name", "B"]),
            ("code_run", "it is 5", 5),
            ("math_calc", "1 2 3", [1, 2, 3]),
            ("math_find", "4.5", 4.5),
        )
    },
    **{
        ("longbench", task): {
            "index": 0,
            "pred": "Paragraph 3",
            "answers": ["Paragraph 3"],
            "all_classes": None,
        }
        for task in ("narrativeqa", "gov_report", "passage_count", "passage_retrieval_en", "lcc")
    },
    ("longbench", "trec"): {"pred": "cat\n", "answers": ["cat"], "all_classes": ["cat", "dog"]},
    ("pg19", "test"): {
        **{"nll": 3.0, "tokens": 4, "words": 3, "bytes": 20, "last_nll": 1.0, "last_tokens": 2},
        "index": 0,
    },
}


def _rows(place: tuple[str, str], count: int = 4) -> list[dict[str, Any]]:
    row = _SCORED[place]
    return [{**row, **{name: number for name in ("index", "id") if name in row}} for number in range(count)]


def _score(case: tuple[tuple[str, str], Any], folder: Path) -> None:
    """A score is a number from 0 to 100, and a null prediction adds nothing to it."""
    (name, task), content = case
    (folder / "rows.jsonl").write_bytes(bytes(content))
    suite = find(name)
    rows = read_rows(folder / "rows.jsonl", 1 << 20)
    found = suite.score(task or suite.tasks[0], rows)
    assert math.isfinite(found.score) and len(found.values) == len(rows)
    assert name == "pg19" or 0 <= found.score <= 100
    for row, value in zip(rows, found.values, strict=True):
        told = [row[field] for field in ("pred", "prediction", "m_pred") if field in row][:1]
        assert told != [None] or not value, f"null scores {value}"


def _scored(folder: Path) -> None:
    """Each task once: some load what they need with the first row."""
    for place in _SCORED:
        suite = find(place[0])
        suite.score(place[1] or suite.tasks[0], _rows(place))


_HEADS = [
    {str(head): ["vertical_and_slash", 1000, 6096, 0.9] for head in range(3)},
    {"0": ["stream_llm", 100, 800, 1]},
    {},
]

TARGETS: dict[str, Target] = {
    "mask, NumPy": Target(bytes_like(_mask_array()), written("x.npy", read_masks), (errors.ConfigError,)),
    "mask, safetensors": Target(
        tensors_like(_mask_tensors()), written("x.safetensors", read_masks), (errors.ConfigError,)
    ),
    "MInference's heads": Target(
        json_bytes(_HEADS), written("x.json", heads_from_json), (errors.ConfigError,)
    ),
    "plan": Target(
        st.tuples(
            st.sampled_from(_KINDS),
            st.sampled_from(["alone", "by layer", "function"]),
            st.integers(0, 200),
            st.integers(0, 9),
        ).map(_call),
        _judged,
        (errors.ConfigError,),
    ),
    "predictions": Target(
        st.sampled_from(sorted(_SCORED)).flatmap(
            lambda place: st.tuples(st.just(place), json_lines(_rows(place)))
        ),
        _score,
        (errors.InputError,),
        _scored,
    ),
}
