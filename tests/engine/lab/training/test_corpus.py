"""Nothing that is held out is trained on. The check on the real splits needs ../shared/data. No GPU."""

import json
from pathlib import Path

import pytest

from routesparse.engine.lab.training.corpus import (
    MAX_OVERLAP,
    Document,
    clean,
    held_out_hashes,
    overlap,
    read_held_out,
    read_training,
    select,
)

ROOT = Path(__file__).resolve().parents[4]
SHARED = ROOT.parent / "shared" / "data"
WORDS = " ".join(f"word{i} follows" for i in range(200))


def test_cleaning_keeps_text_and_drops_control_characters():
    assert clean("a\r\nb\x00\x0c\n\n\n\n\n\nc") == "a\nb\n\n\nc\n"


def test_overlap_is_one_for_a_copy_and_zero_for_another_text():
    reference = held_out_hashes([Document("prose", "held", WORDS)])
    assert overlap(WORDS.upper(), reference) == 1.0
    assert overlap(" ".join(f"other{i}" for i in range(400)), reference) == 0.0


def test_copies_quotations_and_excluded_projects_are_dropped():
    held = [Document("prose", "held", WORDS)]
    fresh = " ".join(f"fresh{i}" for i in range(400))
    quoted = Document("code", "quoted", fresh + " " + " ".join(WORDS.split()[:40]))
    documents = [Document("code", "cpython-1", fresh), quoted, Document("prose", "copy", WORDS)]
    kept, report = select([*documents, Document("prose", "fine", fresh)], held)
    assert [d.name for d in kept] == ["fine"]
    assert set(report.dropped) == {"code/cpython-1", "code/quoted", "prose/copy"}


def test_a_folder_without_text_says_what_is_expected(tmp_path):
    with pytest.raises(FileNotFoundError, match="prose/train"):
        read_training(tmp_path)


@pytest.mark.skipif(not SHARED.exists(), reason="the training text is not at ../shared/data")
def test_the_kept_training_text_overlaps_no_held_out_split():
    """sha256 and 13-grams of every kept document against calibration, test and docs."""
    report = json.loads((ROOT / "data/models/demo/corpus_report.json").read_text())
    held_out = read_held_out(SHARED)
    reference, shas = held_out_hashes(held_out), {document.sha256 for document in held_out}
    kept = [d for d in read_training(SHARED) if f"{d.domain}/{d.name}" not in report["dropped"]]
    assert len(kept) == report["kept_documents"]
    worst = max((overlap(document.text, reference), document.name) for document in kept)
    assert worst[0] <= MAX_OVERLAP, worst
    assert not any(document.sha256 in shas for document in kept)
    excluded = ("cpython", "flask", "networkx", "express", "jq")
    assert not [d.name for d in kept if d.name.startswith(excluded)]
