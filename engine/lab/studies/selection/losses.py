"""Tables of predicted against true losses, in Markdown on stdout.

    python -m routesparse.engine.lab.studies.selection.losses data/results/real/loss_1.5b_h200.jsonl.gz \\
        --fit data/fits/Qwen2.5-Coder-1.5B-Instruct.json

Rows are of ``--foretold`` (foretold.py), measured on documents that the fit did not see. Where a table does not say
otherwise a replay is of 16 rows of each of 32 stretches, and the fit that of the text's own kind, or of all kinds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.choose import aimed
from routesparse.engine.calibration.fitted import FLOOR, MIXED, Fitted
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.selection.rows import read_rows

Row = dict[str, Any]
OURS = "routesparse_fitted"  # as an analysis by the fit routes
CONFIDENCE = 0.95
ROWS = {256: 0, 512: 1, 1_024: 3}  # replayed rows: place in a row's ``replayed``
LOST_NATS = 0.5  # of a gold answer


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--fit", type=Path, required=True)
    arguments = parser.parse_args(argv)
    fit = fitted.load(str(arguments.fit))
    found = [row for row in read_rows(arguments.rows)[0].values() if row["method"] != "dense"]
    dense = {_place(row): row for row in read_rows(arguments.rows)[0].values() if row["method"] == "dense"}
    texts = [row for row in found if row["task"].startswith("text:")]
    for title, table in (
        ("Predicted against true", predictions(texts)),
        ("Coverage of the bound, and the alarm", coverage(texts, fit)),
        ("Targets", targets(texts, fit)),
        ("Lost answers", answers([row for row in found if "question" in row], dense)),
    ):
        if len(table) > 2:
            print("\n".join([f"**{title}**, {fit.model}", "", *table, ""]))


def predictions(rows: Sequence[Row]) -> list[str]:
    """By method and number of replayed rows: log(true / replayed), and rank correlations over prompts."""
    table = _head("method", "runs", *(f"{n:,} rows: log ratio, ranks mixed, ranks in kind" for n in ROWS))
    for method in sorted({row["method"] for row in rows}):
        mine = [row for row in rows if row["method"] == method]
        cells = []
        for place in ROWS.values():
            ratios = [log_ratio(row, place) for row in mine]
            by_setting = [
                [r for r in mine if r["setting"] == s] for s in sorted({r["setting"] for r in mine})
            ]
            kinds = [
                [r for r in of if r["task"] == t]
                for of in by_setting
                for t in sorted({r["task"] for r in of})
            ]
            mixed, within = ([spearman(of, place) for of in groups] for groups in (by_setting, kinds))
            cells.append(
                f"{np.mean(ratios):+.2f} ± {np.std(ratios):.2f}, {np.mean(mixed):.2f}, {np.mean(within):.2f}"
            )
        table.append(_line(method, len(mine), *cells))
    return table


def coverage(rows: Sequence[Row], fit: Fitted) -> list[str]:
    """By kind of text and of fit, of our own runs at all prices: share within the bound, and where the alarm rang."""
    own = [row for row in rows if row["method"] == OURS]
    kinds = [*fit.domains, MIXED]
    table = _head("text", "runs", *(f"fit on {kind}: held, alarm" for kind in kinds), "on the nearest kind")
    for task in sorted({row["task"] for row in own}):
        mine = [row for row in own if row["task"] == task]
        cells, nearest = [], [fit.nearest(row["entropy"], row["surprise"]) for row in mine]
        for of in (*([kind] * len(mine) for kind in kinds), nearest):
            pairs = list(zip(mine, of, strict=True))
            held = [
                row["kl"] <= (fit.predicted(_seen(row), kind, CONFIDENCE).bound or 0) for row, kind in pairs
            ]
            rang = [fit.is_unlike(row["entropy"], row["surprise"], kind) for row, kind in pairs]
            cells.append(f"{np.mean(held):.2f}, {np.mean(rang):.2f}")
        table.append(_line(task.partition(":")[2], len(mine), *cells))
    return table


def targets(rows: Sequence[Row], fit: Fitted, losses: Iterable[float] = (0.01, 0.02, 0.05)) -> list[str]:
    """The price of a target by the fit on all kinds, and what it did on these windows."""
    tasks = sorted({row["task"] for row in rows})
    table = _head("target", "price", *(f"{task.partition(':')[2]}: KL, kept, area" for task in tasks))
    for loss in losses:
        aim = aimed(fit, MIXED, loss)
        price, told = aim.price, f"{aim.price:g}" if aim.found else f"none ({aim.price:g})"
        cells = []
        for task in tasks:
            mine = [r for r in rows if (r["method"], r["setting"], r["task"]) == (OURS, price, task)]
            kept = np.mean([row["kl"] <= loss for row in mine]) if mine else 0.0
            means = [np.mean([row[name] for row in mine]) if mine else 0.0 for name in ("kl", "area")]
            cells.append(
                f"{means[0]:.4f}, {kept:.2f} of {len(mine)}, {means[1]:.2f}" if mine else "not measured"
            )
        table.append(_line(f"{loss:g}", told, *cells))
    return table


def answers(rows: Sequence[Row], dense: dict[tuple[Any, ...], Row]) -> list[str]:
    """Area under the curve for an answer that lost LOST_NATS, by what is known without dense attention."""
    names = ("last row", "last 16", "last 64", "random stretches")
    table = _head("task", "price", "prompts", f"lost {LOST_NATS:g} nats", *names)
    pairs = [(row, dense[_place(row)]) for row in rows if _place(row) in dense]
    for task in [*sorted({row["task"] for row in rows}), None]:
        for setting in sorted({row["setting"] for row in rows}):
            mine = [(a, b) for a, b in pairs if a["setting"] == setting and task in (None, a["task"])]
            if not mine:
                continue
            lost = np.array([(a["nats"] - b["nats"]) * a["positions"] > LOST_NATS for a, b in mine])
            scores = [[*a["question"], a["replayed"][-1]] for a, _ in mine]
            cells = [_auc(lost, np.array(column)) for column in zip(*scores, strict=True)]
            table.append(_line(task or "all", f"{setting:g}", len(mine), int(lost.sum()), *cells))
    return table


def log_ratio(row: Row, place: int) -> float:
    """log(true / replayed)."""
    return float(np.log(max(row["kl"], FLOOR) / max(row["replayed"][place], FLOOR)))


def spearman(rows: Sequence[Row], place: int) -> float:
    """Rank correlation of the true loss and the replay's, over prompts; NaN for fewer than three."""
    if len(rows) < 3:
        return float("nan")
    ranks = [rankdata(values) for values in ([r["kl"] for r in rows], [r["replayed"][place] for r in rows])]
    return float(np.corrcoef(*ranks)[0, 1])


def _auc(lost: np.ndarray, score: np.ndarray) -> str:
    if lost.all() or not lost.any():
        return "-"
    ranks = rankdata(score)
    above = ranks[lost].sum() - lost.sum() * (lost.sum() + 1) / 2
    return f"{above / (lost.sum() * (~lost).sum()):.2f}"


def _seen(row: Row) -> float:
    return float(row["replayed"][ROWS[512]])


def _place(row: Row) -> tuple[Any, ...]:
    return row["task"], row["length"], row["index"], row["seed"]


def _head(*names: str) -> list[str]:
    return [_line(*names), f"|{'---|' * len(names)}"]


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    study.run(main)
