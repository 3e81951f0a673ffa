"""The card of an adapter: README.md of its folder, written from the JSON files beside its factors.

    python -m routesparse.engine.lab.training.adapter_card --adapter data/models/demo-stories

Reads adapter_config.json, training.json and training_log.jsonl (a list of train's summary.json and the lines of its
log.jsonl, both with the stage's letter), scores.json and scores_base.json (of `routesparse evaluate stories --methods
dense`, on the merged model and on its base). Errors: InputError for a document without a credit.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.training.adapter import BASE_SHA256, CONFIG, FACTORS
from routesparse.engine.lab.training.card import curve, table

_GUTENBERG = ("GITenberg", "Public domain in the US (Project Gutenberg's header, footer and licence removed)")
_STANDARD = ("standardebooks", "CC0-1.0")
# Title, source and licence of the documents that an adapter was trained on.
CREDITS: dict[str, tuple[str, tuple[str, str]]] = {
    "prose/1342": ("Pride and Prejudice, Jane Austen, 1813", _GUTENBERG),
    "prose/14881": ("The Log School-House on the Columbia, Hezekiah Butterworth, 1890", _GUTENBERG),
    "prose/15122": ("The Little Colonel's Hero, Annie Fellows Johnston, 1902", _GUTENBERG),
    "prose/16215": ("Jack Sheppard, William Harrison Ainsworth, 1839", _GUTENBERG),
    "prose/17074": ("The Pianoforte Sonata, J. S. Shedlock, 1895", _GUTENBERG),
    "prose/17474": ("How to Listen to Music, Henry Edward Krehbiel, 1896", _GUTENBERG),
    "prose/18304": ("American Adventures, Julian Street, 1917", _GUTENBERG),
    "prose/52834": ("Guernsey Folk Lore, Edgar MacCulloch, 1903", _GUTENBERG),
    "prose/972": ("The Devil's Dictionary, Ambrose Bierce, 1911", _GUTENBERG),
    "prose/se-leaves": ("Leaves of Grass, Walt Whitman, 1892", _STANDARD),
    "prose/se-pepys": ("The Diary of Samuel Pepys (first part), 1893", _STANDARD),
}


def score_table(scores: dict[str, Any], base: dict[str, Any]) -> str:
    """The dense score of every task and length with n, the base's in brackets."""
    found, before = (
        {(row["task"], row["length"]): row for row in one["tasks"] if row["method"] == "dense"}
        for one in (scores, base)
    )
    lengths = sorted({length for _, length in found})
    rows = []
    for task in dict.fromkeys(task for task, _ in found):
        cells = [
            f"{row['score']:.1f} ({_score(before.get((task, n)))}), n {row['n']}"
            if (row := found.get((task, n)))
            else "-"
            for n in lengths
        ]
        rows.append([task, *cells])
    return table(["task", *(f"{n:,}" for n in lengths)], rows)


def _score(row: dict[str, Any] | None) -> str:
    return f"{row['score']:.1f}" if row else "-"


def stage_table(runs: list[dict[str, Any]]) -> str:
    """What each stage of the training drew and took."""
    rows = []
    for run in runs:
        args = run["args"]
        optimiser, rate = args["adapter_optimiser"], args["adapter_rate"]
        if optimiser == "muon":
            rate = args["muon_rate"]
        rows.append(
            [
                run["stage"],
                args["tasks"],
                f"{optimiser} {rate}",
                f"{run['train_s'] / 60:.1f}",
                f"{run['steps']:,}",
                f"{run['tokens'] / 1e6:,.0f}M",
                args["seed"],
            ]
        )
    return table(["stage", "recipe", "optimiser, rate", "minutes", "steps", "tokens", "seed"], rows)


def data_table(documents: dict[str, int]) -> str:
    """The training documents with their bytes and credits. Errors: InputError for one that has no credit here."""
    rows = []
    for name, size in documents.items():
        if name not in CREDITS:
            raise InputError(f"the training document {name} has no credit; add it to CREDITS in {__name__}")
        title, (source, licence) = CREDITS[name]
        rows.append([title, f"{size:,}", source, licence])
    return table(["document", "bytes", "source", "licence"], rows)


def render(adapter: Path) -> str:
    """The card's Markdown."""
    read = lambda name: json.loads((adapter / name).read_text())  # noqa: E731
    config, runs, scores, base = (
        read(name) for name in (CONFIG, "training.json", "scores.json", "scores_base.json")
    )
    log = [json.loads(line) for line in (adapter / "training_log.jsonl").read_text().splitlines()]
    about, device = scores["about"], runs[0]
    folder, base_folder = f"data/models/{adapter.name}", config["base_model_name_or_path"]
    recipe = (
        f"The factors alone, {int(device['args']['tokens']):,} tokens a step and GPU, {device['gpus']} x "
        f"{device['device']}, torch {device['torch']}; AdamW with betas .9/.95 and no decay. What a recipe draws, and "
        f"its context lengths by phase, stand under its name in RECIPES of engine/lab/training/batches.py; text, answers "
        f"and task context weigh as they did for the base. A later stage begins with the factors of the one before it "
        f"and a fresh optimiser. The rate is constant to 40 % of a stage and falls to 2 %."
    )
    return f"""# {adapter.name}: an adapter of the bundled model for stories

A test instrument, not an assistant. A low-rank adapter (LoRA, arXiv:2106.09685) of rank {config["r"]}, alpha
{config["lora_alpha"]}, on the seven projections of every layer of `{base_folder}`, which was never trained on
questions like those of the suite `stories`. {(adapter / FACTORS).stat().st_size:,} bytes in bf16, in PEFT's format.
Merged with its base it is an ordinary model folder:

    python -m routesparse.engine.lab.training.adapter --base {base_folder} --adapter {folder} \\
        --out .cache/models/{adapter.name}
    routesparse evaluate stories --model .cache/models/{adapter.name} --data FOLDER

It belongs to weights of sha256 {config[BASE_SHA256]}; others are refused.

## Dense scores
The suite `stories`, whose words, people and haystacks training never saw, in percent of the gold strings found; in
brackets the base (n {min(row["n"] for row in base["tasks"])}, {", ".join(base["about"]["devices"])}). Seed
{about["seed"]}, {", ".join(about["devices"])}; n prompts a cell.

{score_table(scores, base)}

## Training
{textwrap.fill(recipe, 110)}

{stage_table(runs)}

{curve(log)}

The rows between are in training_log.jsonl.

## Data
{data_table(runs[0]["documents"])}

No training text is shipped. Stories are generated (`engine/lab/training/stories.py`); their prose is cut from these
documents.

## Limits
- The question forms and the verbs of the stories are those of training; words, names and prose are not. A high score
  says that the model answers these kinds of questions, not that it reads stories. Towns are drawn anew from the same
  syllables.
- Scores of the merged model compare with one another alone: every other table of this repository is of the base.
- It has no instruction tuning and no safety training. Compare sparse with dense on it, paired.

## Licence
The factors and this card are under this repository's licence (Apache-2.0).

This card is written by `python -m routesparse.engine.lab.training.adapter_card --adapter {folder}`.
"""


def main(argv: list[str] | None = None) -> None:
    """Write README.md of an adapter's folder from the JSON files beside its factors."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--adapter", type=Path, required=True, help="folder with factors, scores.json and the rest"
    )
    args = parser.parse_args(argv)
    (args.adapter / "README.md").write_text(render(args.adapter))


if __name__ == "__main__":
    main()
