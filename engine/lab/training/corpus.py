"""Training text of the bundled model, and the check that none of it is held out.

Layout read (nothing is downloaded, nothing is shipped):
    DATA/{prose,code,dialog}/train/*.txt          one document a file
    DATA/train_extra/{prose,code,docs}.tar.xz     one document a member
Held out: DATA/{prose,code,dialog}/{calibration,test}/*.txt and DATA/docs/**/*.txt.

A training document is dropped when its file name names an excluded project (EXCLUDED), when its sha256
equals a held-out document's, or when more than MAX_OVERLAP of its 13-grams (lower-case words, as in the
GPT-3 contamination study, arXiv:2005.14165, appendix C) occur in the held-out text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tarfile
import unicodedata
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DOMAINS = ("prose", "code", "dialog", "docs")
EXCLUDED = ("cpython", "flask", "networkx", "express", "jq", "rust-book", "rust-lang-book", "pallets-flask")
GRAM = 13
MAX_OVERLAP = 0.01
_WORD = re.compile(r"\w+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# The multiplier of the rolling hash of word hashes, any odd 64-bit number with mixed bits.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Document:
    """One text: domain, name (file stem) and the cleaned characters."""

    domain: str
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Of the cleaned text in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def clean(text: str) -> str:
    """NFC, unix line ends, no control characters, at most two blank lines in a row."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    return re.sub(r"\n{4,}", "\n\n\n", _CONTROL.sub("", text)).strip() + "\n"


def read_folder(folder: Path, domain: str) -> Iterator[Document]:
    """Every text file below `folder`, in name order."""
    for path in sorted(folder.rglob("*.txt")):
        yield Document(domain, path.stem, clean(path.read_text(encoding="utf-8", errors="replace")))


def read_archive(path: Path, domain: str) -> Iterator[Document]:
    """Every text file of a tar archive, in the archive's order."""
    with tarfile.open(path) as archive:
        for member in archive:
            handle = archive.extractfile(member) if member.name.endswith(".txt") else None
            if handle is not None:
                yield Document(domain, Path(member.name).stem, clean(handle.read().decode(errors="replace")))


def read_training(data: Path) -> list[Document]:
    """All candidate training documents under `data`, train splits only, before the held-out check."""
    documents: list[Document] = []
    for domain in ("prose", "code", "dialog"):
        documents += read_folder(data / domain / "train", domain)
    for domain in ("prose", "code", "docs"):
        archive = data / "train_extra" / f"{domain}.tar.xz"
        if archive.exists():
            documents += read_archive(archive, domain)
    if not documents:
        raise FileNotFoundError(f"no training text under {data}; expected {data}/prose/train/*.txt and so on")
    return documents


def read_held_out(data: Path) -> list[Document]:
    """Every calibration, test and docs document under `data`: nothing of these may be trained on."""
    documents: list[Document] = []
    for domain in ("prose", "code", "dialog"):
        for split in ("calibration", "test"):
            documents += read_folder(data / domain / split, domain)
    return documents + list(read_folder(data / "docs", "docs"))


def gram_hashes(text: str) -> np.ndarray:
    """64-bit hashes of the text's 13-grams of lower-case words, in order, uint64 [words - 12]."""
    cache: dict[str, int] = {}
    words = _WORD.findall(text.lower())
    codes = np.empty(len(words), dtype=np.uint64)
    for index, word in enumerate(words):
        code = cache.get(word)
        if code is None:
            raw = word.encode()
            code = cache[word] = zlib.crc32(raw) << 32 | zlib.adler32(raw)
        codes[index] = code
    count = len(words) - GRAM + 1
    if count <= 0:
        return np.empty(0, dtype=np.uint64)
    out = np.zeros(count, dtype=np.uint64)
    # Wrap-around multiplication is the hash; numpy arrays do it silently.
    for offset in range(GRAM):
        out = out * _MULTIPLIER + (
            codes[offset : offset + count] ^ (codes[offset : offset + count] >> np.uint64(29))
        )
    return out


def held_out_hashes(documents: Iterable[Document]) -> np.ndarray:
    """Sorted unique 13-gram hashes of the held-out documents."""
    parts = [gram_hashes(document.text) for document in documents]
    return np.unique(np.concatenate([*parts, np.empty(0, dtype=np.uint64)]))


def overlap(text: str, reference: np.ndarray) -> float:
    """Share of the text's 13-grams that occur in `reference` (sorted), 0 for a text under 13 words."""
    grams = gram_hashes(text)
    if not len(grams) or not len(reference):
        return 0.0
    found = np.searchsorted(reference, grams).clip(max=len(reference) - 1)
    return float(np.mean(reference[found] == grams))


@dataclass(frozen=True)
class CorpusReport:
    """What the held-out check kept and dropped; `dropped` maps domain/name to the reason."""

    kept_documents: int
    kept_bytes_by_domain: dict[str, int]
    dropped: dict[str, str]
    largest_kept_overlap: float


def select(documents: Iterable[Document], held_out: list[Document]) -> tuple[list[Document], CorpusReport]:
    """Drop excluded, identical and overlapping documents; return the rest with a report."""
    reference = held_out_hashes(held_out)
    shas = {document.sha256 for document in held_out}
    kept: list[Document] = []
    dropped: dict[str, str] = {}
    largest = 0.0
    for document in documents:
        key = f"{document.domain}/{document.name}"
        if document.name.startswith(EXCLUDED):
            dropped[key] = "excluded project"
            continue
        share = overlap(document.text, reference)
        if document.sha256 in shas:
            dropped[key] = "identical to a held-out document"
        elif share > MAX_OVERLAP:
            dropped[key] = f"{share:.1%} of its 13-grams are held out"
        else:
            largest = max(largest, share)
            kept.append(document)
    sizes = {name: sum(len(d.text.encode()) for d in kept if d.domain == name) for name in DOMAINS}
    return kept, CorpusReport(len(kept), sizes, dropped, largest)


def main(argv: list[str] | None = None) -> None:
    """Check the corpus and write the report; the training run drops what the report names."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with {prose,code,dialog}/train")
    parser.add_argument("--report", type=Path, required=True, help="where to write the JSON report")
    args = parser.parse_args(argv)
    _, report = select(read_training(args.data), read_held_out(args.data))
    args.report.parent.mkdir(parents=True, exist_ok=True)
    args.report.write_text(json.dumps(vars(report), indent=1) + "\n")
    print(json.dumps(vars(report), indent=1))


if __name__ == "__main__":
    main()
