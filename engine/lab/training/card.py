"""The model card: README.md of a model folder, written from the JSON files beside the weights.

    python -m routesparse.engine.lab.training.card --model data/models/demo

Reads scores.json (evaluate), nll.json (evaluate), training.json (facts of the run), training_log.jsonl (train) and
corpus_report.json (corpus); every number in the card comes from one of them.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import Any

# Task, metric, lengths and least score: what the model was built to reach.
TARGETS: tuple[tuple[str, tuple[str, ...], tuple[int, ...], float], ...] = (
    (
        "singles and multikey 1",
        ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1"),
        (4096, 8192, 16384, 32768),
        95.0,
    ),
    (
        "multikey 2 and 3, multiquery, multivalue, vt",
        ("niah_multikey_2", "niah_multikey_3", "niah_multiquery", "niah_multivalue", "vt"),
        (4096, 8192, 16384),
        80.0,
    ),
    ("singles", ("niah_single_1", "niah_single_2", "niah_single_3"), (65536,), 80.0),
)
LARGEST_NLL_RATIO = 1.3


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def score_table(scores: dict[str, Any]) -> str:
    """Greedy partial credit, with teacher-forced exactness in brackets, by task and length."""
    lengths = sorted({int(n) for row in scores.values() for n in row})
    rows = []
    for task, by_length in sorted(scores.items()):
        cells = []
        for n in lengths:
            cell = by_length.get(str(n))
            cells.append(f"{cell['greedy']:.1f} ({cell['exact']:.0f})" if cell else "-")
        counts = [cell["n"] for cell in by_length.values()]
        rows.append([task, *cells, f"{min(counts)} to {max(counts)}"])
    return table(["task", *(f"{n // 1024}K" for n in lengths), "n"], rows)


def target_lines(scores: dict[str, Any]) -> str:
    """Each target with the lowest score that counts for it."""
    lines = []
    for name, tasks, lengths, least in TARGETS:
        worst, where = min(
            (scores[t][str(n)]["greedy"], f"{t} at {n // 1024}K") for t in tasks for n in lengths
        )
        verdict = "met" if worst >= least else f"missed by {least - worst:.1f}"
        span = f"{lengths[0] // 1024}K" + (f" to {lengths[-1] // 1024}K" if len(lengths) > 1 else "")
        lines.append(f"- {name}, {span}: at least {least:.0f}: **{verdict}** (lowest: {worst:.1f}, {where})")
    return "\n".join(lines)


def nll_section(nll: dict[str, Any]) -> str:
    """Loss on training and unseen text by domain, and what follows from the ratio."""
    rows, failed = [], []
    for domain, row in nll.items():
        cells = [
            f"{row[s]['nats_per_token']:.2f} / {row[s]['bits_per_byte']:.2f}" for s in ("train", "unseen")
        ]
        rows.append([domain, *cells, f"{row['ratio']:.2f}"])
        if row["ratio"] > LARGEST_NLL_RATIO:
            failed.append(domain)
    header = ["domain", "training text (nats a token / bits a byte)", "unseen text", "ratio"]
    if failed:
        tail = (
            f"The gate is a ratio of at most {LARGEST_NLL_RATIO}: **missed on {' and '.join(failed)}**, so perplexity "
            f"there is plumbing only. The other domains pass."
        )
    else:
        tail = f"The gate is a ratio of at most {LARGEST_NLL_RATIO}: all domains pass."
    return table(header, rows) + "\n\n" + tail


def curve(log: list[dict[str, Any]], count: int = 16) -> str:
    """A thinned loss curve over the whole run."""
    step = max(len(log) // count, 1)
    rows = []
    for row in [*log[::step], log[-1]]:
        rows.append(
            [
                row["stage"],
                str(row["step"]),
                f"{row['elapsed_s'] / 60:.1f}",
                f"{row['length'] // 1024}K",
                f"{row['rate']:.2f}",
                f"{row['loss_text']:.2f}" if row["loss_text"] else "-",
                f"{row['loss_answer']:.3f}",
                f"{100 * row['answer_accuracy']:.1f}",
            ]
        )
    header = [
        "stage",
        "step",
        "minute",
        "context",
        "rate",
        "text loss",
        "answer loss",
        "answer tokens right, %",
    ]
    return table(header, rows)


def render(model: Path) -> str:
    """The card's Markdown."""
    read = lambda name: json.loads((model / name).read_text())  # noqa: E731
    scores, nll, run, corpus = (read(f"{n}.json") for n in ("scores", "nll", "training", "corpus_report"))
    log = [json.loads(line) for line in (model / "training_log.jsonl").read_text().splitlines()]
    stages = [
        [
            s["name"],
            s["hardware"],
            f"{s['minutes']:.1f}",
            f"{s['steps']:,}",
            f"{s['tokens'] / 1e6:,.0f}M",
            str(s["seed"]),
        ]
        for s in run["stages"]
    ]
    data = [
        [d["domain"], str(d["documents"]), f"{d['bytes']:,}", d["sources"], d["licences"]]
        for d in run["data"]
    ]
    least_n = min(cell["n"] for by_length in scores["scores"].values() for cell in by_length.values())
    size = (model / "model.safetensors").stat().st_size
    overlapped = [k for k, why in corpus["dropped"].items() if "13-grams" in why]
    return f"""# demo: the bundled model

A test instrument, not an assistant. A Llama-shaped model of 15.7M parameters ({size:,} bytes in bf16), trained from
scratch by this repository on plain text and generated retrieval tasks, so that real, learnt attention can be analysed
offline. Context 131,072 positions, trained to 65,536. Prompts start with the begin token, id 0, which the tokenizer
does not add; the end token is id 1.

8 layers, hidden 384, MLP 1,024, 8 query and 4 KV heads of 64, tied embeddings, RoPE theta 1e6, byte-level BPE of 4,096
entries in which digits, acronym letters and hex letters beside digits are tokens of their own.

## Dense scores
RULER's templates, evaluation key words, seeds and documents that training never saw (seed {scores["seed"]}, haystacks
from prose/test). Greedy partial credit as RULER scores it, in percent; in brackets the share of samples whose whole
reference answer is the first choice under teacher forcing. {scores["device"]}, {scores["dtype"]}, torch
{scores["torch"]}, {scores["attention"]}.

{score_table(scores["scores"])}

{target_lines(scores["scores"])}

fwe (counting coded words) is shown as found; no target was set. Tasks of RULER that are not listed (cwe, qa) were not
trained. With n = {least_n}, {least_n} exact samples of {least_n} still allow a true rate of {100 - 300 / least_n:.0f} %
(rule of three, 95 %).

## Loss on text
Random windows of 4,096 tokens, {nll["device"]}, {nll["dtype"]}.

{nll_section(nll["nll"])}

## Training
{textwrap.fill(run["recipe"], 110)}

{table(["stage", "hardware", "minutes", "steps", "tokens", "seed"], stages)}

{textwrap.fill(run["stages_note"], 110)}

{curve(log)}

The rows between are in training_log.jsonl.

## Data
{table(["domain", "documents", "bytes", "sources", "licences"], data)}

No training text is shipped. Checked by sha256 and 13-grams against every calibration, test and docs document:
{len(corpus["dropped"])} candidate documents were dropped ({len(corpus["dropped"]) - len(overlapped)} of an excluded
project, {len(overlapped)} for more than 1 % overlap); the largest overlap kept is
{100 * corpus["largest_kept_overlap"]:.2f} %. corpus_report.json names them; a test repeats the check.

## What did not work, and limits
{chr(10).join("- " + line for line in run["notes"])}

## Licence
The weights, tokenizer and card are under this repository's licence (Apache-2.0).

This card is written by `python -m routesparse.engine.lab.training.card --model data/models/demo`.
"""


def main(argv: list[str] | None = None) -> None:
    """Write README.md of a model folder from the JSON files beside the weights."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder with weights, scores.json and the rest"
    )
    args = parser.parse_args(argv)
    (args.model / "README.md").write_text(render(args.model))


if __name__ == "__main__":
    main()
