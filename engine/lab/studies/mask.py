"""Writes what a method of the selection study reads on one prompt as a block mask, for instance to certify it.

    python -m routesparse.engine.lab.studies.mask data/samples/prompts/prose.txt --method indexer=32 \\
        --out mask.safetensors

The file holds the tensor ``mask``, bool [L, H, M, N] (engine/lab/rivals/masks.py), and in its metadata block_q, block_k
and the command. Anything that reads safetensors can take it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from routesparse.engine.errors import ConfigError
from routesparse.engine.lab import study
from routesparse.engine.lab.rivals.masks import block_masks, save_mask
from routesparse.engine.lab.studies.selection.methods import find, rounds
from routesparse.engine.models.load import load_model
from routesparse.engine.prompts import read_prompt, tokenize


def main(argv: list[str] | None = None) -> None:
    """Prefill the prompt by the method and write its mask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prompt", type=Path)
    parser.add_argument("--model", default="demo", help="demo, or a model folder")
    parser.add_argument("--method", required=True, help="NAME or NAME=VALUE of a selection rule")
    parser.add_argument("--tokens", type=int, help="at most so many of the prompt")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    arguments = parser.parse_args(argv)
    (name, setting) = rounds([arguments.method])[0][0]
    rule = find(name, setting).rule
    if rule is None:
        raise ConfigError(f"{name} is no selection rule; use one of engine/lab/rivals/README.md")
    loaded = load_model(arguments.model)
    prompt = tokenize(read_prompt(arguments.prompt), loaded.tokenizer, loaded.max_tokens)
    ids = list(prompt.token_ids[: arguments.tokens])
    mask = block_masks(loaded.model, ids, rule, salt=prompt.sha256)
    save_mask(arguments.out, mask, about=study.command())
    layers, heads, rows, keys = mask.shape
    study.note(
        f"{arguments.out}: {layers} layers, {heads} heads, {rows} x {keys} blocks of {len(ids):,} tokens, "
        f"{float(mask.float().mean()):.3f} of the square read"
    )


if __name__ == "__main__":
    study.run(main)
