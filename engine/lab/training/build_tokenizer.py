"""Train the tokenizer on a share of the corpus and some generated tasks, and save it."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

from routesparse.engine.lab.training.corpus import Document, read_held_out, read_training, select
from routesparse.engine.lab.training.tasks import TASKS, make_sample
from routesparse.engine.lab.training.tokenizer import train_tokenizer

SLICE = 40_000


def texts(documents: list[Document], megabytes: float, seed: int) -> Iterator[str]:
    """Random slices of the documents, domains in proportion to their size, then a few generated prompts."""
    rng = random.Random(seed)
    weights = [len(document.text) for document in documents]
    for _ in range(int(megabytes * 1e6 / SLICE)):
        text = rng.choices(documents, weights)[0].text
        start = rng.randrange(max(len(text) - SLICE, 1))
        yield text[start : start + SLICE]
    units = {"niah_single_1": 20, "niah_multikey_2": 30, "niah_multikey_3": 10, "vt": 20, "fwe": 100}
    for index in range(40):
        for task in TASKS:
            sample = make_sample(
                task, units.get(task, 1500), haystack=documents[0].text, seed=seed, index=index, words="train"
            )
            yield sample.prompt + sample.answer_prefix + sample.answer


def main(argv: list[str] | None = None) -> None:
    """Train the tokenizer of the bundled model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with {prose,code,dialog}/train")
    parser.add_argument("--out", type=Path, required=True, help="folder for tokenizer.json")
    parser.add_argument("--megabytes", type=float, default=30.0, help="text to learn merges from")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    documents, _ = select(read_training(args.data), read_held_out(args.data))
    train_tokenizer(texts(documents, args.megabytes, args.seed)).save_pretrained(args.out)


if __name__ == "__main__":
    main()
