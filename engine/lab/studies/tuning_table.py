"""What quality targets chose, and whether they were kept on documents that no choice has seen: data/results/TUNE.md.

    python -m routesparse.engine.lab.studies.tuning_table data/results/tuning_calibration_h200.jsonl.gz \\
        data/results/tuning_test_h200.jsonl.gz --out data/results/TUNE.md --shift data/results/tuning_shift.json

The first file's windows chose the bundled prices (data/calibrations/tuned), the second's are of the test split. The
table of one domain's price on another is also what the page Results draws: --shift. Files of questions make the page of
the prices that were chosen for answers, files of texts that of all others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.calibrate.choose import (
    CAP,
    LEAST_CLUSTERS,
    Sample,
    Target,
    kept_prices,
    least_area,
    sample,
)
from routesparse.engine.calibrate.tuning_rows import read_measured
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.errors import CalibrationError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies import tuning_check
from routesparse.engine.method.layer_certificate import layer_lower_mass
from routesparse.engine.results import shift
from routesparse.engine.stats.coverage import clustered_interval

REPEATS = 400
Row = Mapping[str, Any]


def main(argv: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("calibration", type=Path, help="rows that the prices were chosen from")
    parser.add_argument("test", type=Path, help="rows of the check")
    parser.add_argument("--prices", type=Path, default=paths.DATA / "calibrations" / tuned.FOLDER)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shift", type=Path, help="JSON of the prices on every domain, for the page Results")
    arguments = parser.parse_args(argv)
    files = [read_measured([path]) for path in (arguments.calibration, arguments.test)]
    questions = {"answer_tokens" in row for rows, _ in files for row in rows}
    chosen = [tuned.load(str(path)) for path in sorted(arguments.prices.glob("*.json"))]
    chosen = [one for one in chosen if {one.measure == "answer"} == questions]
    if not chosen:
        raise CalibrationError(
            f"{arguments.prices} holds no prices that were tuned on what these files measured; choose some with "
            "routesparse tune"
        )
    command = study.command()
    arguments.out.write_text("\n".join(page(chosen, *files[0], *files[1], command)).rstrip() + "\n")
    if arguments.shift is not None:
        paths.write_json(arguments.shift, shift.plain(shifted(chosen, *files[1], command)))


@dataclass(frozen=True)
class _Words:
    """What the page says of windows, or of questions. unit: what is bounded over; loss: of what; beyond: its limits."""

    unit: str
    loss: str
    beyond: str


_WORDS = {
    "windows": _Words(
        unit=f"A domain with at least {LEAST_CLUSTERS} documents (projects for code) is bounded over these; one with "
        "fewer over windows that were drawn independently from those there are, so that its claim is about these "
        "alone.",
        loss="nats a token, and for next-token agreement the share of tokens whose likeliest next token is another "
        "one than dense's.",
        beyond="With few documents (prose, code) the test documents above are the only evidence that the price carries "
        "over to others.",
    ),
    "questions": _Words(
        unit="A domain is a kind of question, bounded over its documents: of RULER each question is its own, drawn "
        "by itself. The text around the needles of multivalue and multiquery is one of the split's four books in turn, "
        "of the other kinds it is generated, so that the claim is about fresh questions over these texts.",
        loss="what the gold answer loses of its log-likelihood, nats a token of the answer, which runs dense "
        "behind the prompt.",
        beyond="A kind that no price loses (whose bound comes from the number of questions alone) "
        "says nothing about sparse attention: it stands here as a control. A price that keeps these answers may lose "
        "what a text's other tokens, or questions about the whole of it, need.",
    ),
}


def page(
    chosen: Sequence[TunedPrice],
    rows: Sequence[Row],
    headers: Sequence[Row],
    test_rows: Sequence[Row],
    test_headers: Sequence[Row],
    command: str,
) -> list[str]:
    """The page's lines. Errors: CalibrationError where the files share a document or are of the wrong splits."""
    both = {row["document_sha256"] for row in rows} & {row["document_sha256"] for row in test_rows}
    splits = {row["split"] for row in rows}, {row["split"] for row in test_rows}
    if both or splits != ({"calibration"}, {"test"}):
        raise CalibrationError(
            "prices are checked on documents of the test split, which no choice may have seen"
        )
    first = chosen[0]
    lots = tuning_check.by_target(chosen)
    goals = [f"{lot[0].goal} ({100 * lot[0].confidence:g} %)" for lot in lots]
    one, units = first.units.removesuffix("s"), first.units
    words, fresh = _WORDS[units], shift.FRESH[units]
    return [
        "# Quality targets in place of a price" + (": gold answers" if units == "questions" else ""),
        f"Written by `{command}`; do not edit by hand.",
        "",
        "`routesparse tune` chose, for each domain and target, the cheapest price at which a mean loss against dense "
        f"attention stays at or below a limit: {'; '.join(goals)}. A {one}'s loss counts up to {CAP:g} times the "
        "limit; where dense attention is the worse it counts as 0. Prices were tested from the dearest (the lowest) "
        "on, each at the full error, up to the first that failed (Learn-then-Test, fixed sequence); of those that "
        f"passed the one was taken that reads least. The confidence holds for prices and {units} that were fixed "
        "before their losses were seen, and for one target at a time: of several targets on the same "
        f"{units} each may err. A second try on more rows is a second test. {words.unit} Losses are means over "
        f"{units} of up to {first.tokens:,} tokens: {words.loss} Area: the kept share of the causal area.",
        "",
        *_sources(headers, test_headers),
        "## What was chosen",
        *_chosen_table([one for lot in lots for one in lot]),
        "## The check on test documents",
        f"{fresh[0].upper()}{fresh[1:]}. *upper bound*: of their mean, by the same "
        f"method at {100 * first.confidence:g} %; *interval*: 95 %, bootstrap over clusters (documents; projects "
        "for code), given from 8 clusters on. *kept*: the upper bound is at most the target; *by its mean*: the mean "
        f"is, the bound is not. *below*: {units} whose own loss is at most the target. *saved*: area against what the "
        f"strictest price for the same target reads on the same {units}.",
        "",
        *_each(lots, lambda lot, target: _check_table(lot, target, test_rows)),
        "## The price of one domain on another",
        f"Each price on the test {units} of every domain: the mean loss, its upper bound as above, and whether the "
        "target is kept. A price claims nothing about a domain that it was not tuned on; in **bold** what it was tuned "
        "on.",
        "",
        *_each(lots, lambda lot, _: _shift_table(tuning_check.used(lot, test_rows))),
        "## How often a choice would have been wrong",
        f"{REPEATS} times: choose on a random half of a domain's calibration {units}, judge by the mean of the other "
        "half. A wrong one is expected seldom; the guarantee is about the true mean, not about the other half's. The "
        "control tests the means in place of their bounds, in the same order.",
        "",
        *_each(lots, lambda lot, target: _repeats_table(lot, target, rows)),
        "## Every price",
        "Mean loss in thousandths (millinats a token; of agreement, changed tokens in a thousand), and area, on "
        f"calibration / test {units}.",
        "",
        *_each(lots, lambda lot, target: _curves(lot[0].tested, target, rows, test_rows)),
        *(_right_table(first.tested, rows, test_rows) if units == "questions" else ()),
        "## What this does not say",
        f"Nothing about another model, other kinds of text or question, or prompts far longer than these {units}. A "
        f"mean over {units} says nothing about a single {one}, or about a token that must be right. {words.beyond}",
    ]


def shifted(
    chosen: Sequence[TunedPrice], test_rows: Sequence[Row], headers: Sequence[Row], command: str
) -> shift.Shift:
    """Every price on every domain of the test rows, for the page Results."""
    goals = tuple(tuning_check.used(lot, test_rows) for lot in tuning_check.by_target(chosen))
    sources = tuple(dict.fromkeys(map(_measured_on, headers)))
    return shift.Shift(command, chosen[0].model, chosen[0].tokens, sources, goals)


def _each(lots: Sequence[Sequence[TunedPrice]], tables: Callable[..., list[str]]) -> Iterator[str]:
    """A table for each target, under its words."""
    for lot in lots:
        yield f"### {lot[0].goal[0].upper()}{lot[0].goal[1:]}"
        yield from tables(lot, Target(lot[0].measure, lot[0].target))


def _measured_on(header: Row) -> str:
    return (
        f"{header['device']}, {header['dtype']}, torch {header['versions']['torch']}, seed {header['seed']}, commit "
        f"{(header['git_commit'] or 'unknown')[:7]}"
    )


def _sources(*headers: Sequence[Row]) -> Iterator[str]:
    for lot in headers:
        yield from dict.fromkeys(f"- `{header['command']}`: {_measured_on(header)}" for header in lot)
    yield ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _chosen_table(chosen: Sequence[TunedPrice]) -> list[str]:
    heads = (
        *("name", "domain", "unit", chosen[0].units, "documents"),
        *("price", "mean loss", "upper bound", "area"),
    )
    made = []
    for one in chosen:
        domains = ", ".join(part.domain for part in one.parts)
        at = one.at_price
        made.append(
            (
                f"`{one.name}`",
                f"each of {domains}" if one.robust else domains,
                ", ".join(dict.fromkeys(part.unit for part in one.parts)),
                *(str(sum(getattr(part, name) for part in one.parts)) for name in ("windows", "documents")),
                f"{one.price:g}",
                *(f"{value:.4f}" for value in (at.loss, at.bound)),
                f"{at.area:.3f}",
            )
        )
    return _table(heads, made)


def _samples(
    rows: Sequence[Row], domains: Sequence[str], prices: Sequence[float], target: Target
) -> list[Sample]:
    return [sample(rows, one, prices, target) for one in domains]


def _check_table(chosen: Sequence[TunedPrice], target: Target, rows: Sequence[Row]) -> list[str]:
    strictest = min(one.price for one in chosen)
    seen = dict.fromkeys(row["domain"] for row in rows)
    own = {part.domain for one in chosen for part in one.parts}
    heads = (
        *("price of", "on", "price", chosen[0].units, "clusters"),
        *("mean loss", "interval", "upper bound", "below", "kept", "area", "saved"),
    )
    made = []
    for one in chosen:
        mine = [part.domain for part in one.parts]
        lots = [[domain] for domain in mine] if one.robust or len(mine) == 1 else [mine]
        if one.robust:
            lots += [[domain] for domain in seen if domain not in own]
        for lot in lots:
            prices = sorted({strictest, one.price})
            found = _samples(rows, lot, prices, target)
            place = prices.index(one.price)
            error = (1 - one.confidence) / len(found)
            bound = float(np.mean([s.bounds(one.cap, error)[place] for s in found]))
            mean = float(np.mean([s.losses[place].mean() for s in found]))
            windows = np.concatenate([s.windows[place] for s in found])
            area, strict = (float(np.mean([s.areas[p] for s in found])) for p in (place, 0))
            made.append(
                (
                    f"`{one.name}`",
                    ", ".join(lot) + ("" if set(lot) <= own else " (shift)"),
                    f"{one.price:g}",
                    str(len(windows)),
                    str(sum(s.part.clusters for s in found)),
                    f"{mean:.4f}",
                    _interval(found, place),
                    f"{bound:.4f}",
                    f"{(windows <= one.limit).sum()}",
                    shift.kept(mean, bound, one.limit).replace("no", "**no**"),
                    f"{area:.3f}",
                    f"{100 * (1 - area / strict):.0f} %",
                )
            )
    missed = [f"{row[0]} on {row[1]} ({row[5]})" for row in made if row[9] == "**no**"]
    return [
        *_table(heads, made),
        f"Missed: {', '.join(missed)}. A price that was bounded over windows promises something about the documents "
        "that were measured; these are others, and other documents may lose more."
        if missed
        else "None was missed.",
        "",
    ]


def _shift_table(goal: shift.Goal) -> list[str]:
    """Tuned on, down; used on, across; and how many of the shifted pairs keep the target."""
    made = []
    for one in goal.prices:
        cells = [f"{use.loss:.4f}, at most {use.bound:.4f}: {goal.kept(use)}" for use in one.uses]
        cells = [f"**{told}**" if use.own else told for told, use in zip(cells, one.uses, strict=True)]
        made.append((f"`{one.name}`", f"{one.price:g}", *cells))
    kept = [goal.kept(use) for use in goal.shifted]
    counts = ", ".join(f"{kept.count(one)} {told}" for one, told in _KEPT.items())
    return [
        *_table(("tuned on", "price", *(f"used on {domain}" for domain in goal.domains)), made),
        f"Of {len(kept)} pairs of a price and a domain that it was not tuned on: {counts}.",
        "",
    ]


_KEPT = {"yes": "keep the target", "by its mean": "keep it by their mean only", "no": "miss it"}


def _interval(found: Sequence[Sample], place: int) -> str:
    """Of the mean of one domain, over its clusters; nothing where there are too few, or several domains."""
    if len(found) > 1 or found[0].part.clusters < 8:
        return "–"
    losses = found[0].losses[place]  # [strata, units]; a unit is a cluster where there is one stratum for all
    places = (
        np.arange(losses.size)
        if found[0].part.unit == "document"
        else np.arange(losses.size) // losses.shape[1]
    )
    low, high = clustered_interval(losses.ravel().tolist(), places.tolist())
    return f"{low:.4f} to {high:.4f}"


def _repeats_table(chosen: Sequence[TunedPrice], target: Target, rows: Sequence[Row]) -> list[str]:
    made = []
    for one in chosen:
        if len(one.parts) > 1:
            continue
        found = sample(rows, one.parts[0].domain, [row.price for row in one.tested], target)
        wrong, naive, prices = repeated(found, one.cap, one.limit, 1 - one.confidence)
        grid = {-1: "none", **dict(enumerate(f"{row.price:g}" for row in one.tested))}
        told = ", ".join(
            f"{price}: {(prices == place).sum()}" for place, price in grid.items() if (prices == place).any()
        )
        made.append((one.domain, told, f"{100 * wrong:.1f} %", f"{100 * naive:.1f} %"))
    return _table(("domain", "chosen how often", "wrong", "wrong, by the mean alone"), made)


def repeated(
    found: Sample, cap: float, limit: float, error: float, repeats: int = REPEATS
) -> tuple[float, float, np.ndarray]:
    """How often a choice on a random half is wrong by the other half's mean: ours, by the mean alone, and the places of
    the prices that were chosen int64 [repeats] (-1: none)."""
    rng = np.random.default_rng(0)
    units = found.losses.shape[2]
    # Half of each stratum's units.
    order = rng.permuted(np.tile(np.arange(units), (repeats, found.losses.shape[1], 1)), axis=2)
    drawn = np.take_along_axis(found.losses[None], order[:, None], axis=3)
    half, rest = drawn[..., : units // 2], drawn[..., units // 2 :]
    truth = rest.mean((2, 3))
    bounds = cap * (1 - layer_lower_mass(1 - half / cap, error))
    wrong, places = [], []
    for scores in (bounds, half.mean((2, 3))):
        place = least_area(kept_prices(scores, limit), found.areas)
        places.append(place)
        above = np.take_along_axis(truth, np.maximum(place, 0)[:, None], axis=1)[:, 0] > limit
        wrong.append(float((above & (place >= 0)).mean()))
    return wrong[0], wrong[1], places[0]


def _curves(
    tested: Sequence[Any], target: Target, rows: Sequence[Row], test_rows: Sequence[Row]
) -> list[str]:
    prices = [row.price for row in tested]
    domains = list(dict.fromkeys(row["domain"] for row in [*rows, *test_rows]))
    cells: dict[str, list[str]] = {}
    for domain in domains:
        sides = []
        for lot in (rows, test_rows):
            if any(row["domain"] == domain for row in lot):
                found = sample(lot, domain, prices, target)
                loss, area = found.losses.mean((1, 2)), found.areas
                sides.append([f"{1e3 * a:.2f}, {b:.3f}" for a, b in zip(loss, area, strict=True)])
        cells[domain] = [" / ".join(side) for side in zip(*sides, strict=True)]
    made = [
        [f"{price:g}", *(cells[domain][place] for domain in domains)] for place, price in enumerate(prices)
    ]
    return _table(("price", *domains), made)


def _right_table(tested: Sequence[Any], rows: Sequence[Row], test_rows: Sequence[Row]) -> list[str]:
    """How many questions have their whole answer right, by price and domain."""
    counts: dict[tuple[float, str], list[list[bool]]] = {}
    for side, lot in enumerate((rows, test_rows)):
        for row in lot:
            cell = counts.setdefault((row["price"], row["domain"]), [[], []])
            cell[side].append(row["right"] == 1)
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    made = [
        (
            f"{row.price:g}",
            *(
                " / ".join(f"{sum(side)} of {len(side)}" for side in counts[row.price, domain])
                for domain in domains
            ),
        )
        for row in tested
    ]
    return [
        "## Answers that are right throughout",
        "Questions each token of whose gold answer is the likeliest one behind the prompt and the tokens before it, on "
        "calibration / test questions: a stricter count than a score that gives a part of the points. Dense's own was "
        "not kept.",
        "",
        *_table(("price", *domains), made),
    ]


if __name__ == "__main__":
    study.run(main)
