"""The page of the tuning study, from made-up rows. No GPU."""

import json

import numpy as np
import pytest

from routesparse.engine import paths
from routesparse.engine.calibrate.choose import Sample, Target, choose, sample
from routesparse.engine.calibrate.tuning_rows import read_measured
from routesparse.engine.calibration import tuned
from routesparse.engine.calibration.tuned import Part
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.lab.studies import tuning_table
from routesparse.engine.models.files import resolve, revision_of
from routesparse.engine.results import shift

PRICES = (0.25, 0.5, 1.0)


def header(split):
    return {
        "command": f"measure {split}",
        "model": "demo",
        "revision": "r",
        "dtype": "float32",
        "device": "cpu",
        "library_hash": "l",
        "stamp": {"policy": RouterConfig.policy},
        "tokens": 600,
        "seed": 0,
        "git_commit": None,
        "versions": {"torch": "2"},
    }


def rows_of(split, domain, scale, clusters=4, windows=16):
    rng = np.random.default_rng(len(split + domain))
    return [
        {
            "split": split,
            "domain": domain,
            "cluster": f"{split}/{domain}/{c}",
            "document": f"{c}",
            "document_sha256": f"{split}/{domain}/{c}",
            "index": w,
            "price": price,
            "kl": kl * price,
            "agreement": 1 - kl,
            "nats": 3 + kl,
            "nats_dense": 3.0,
            "area": 0.5 - 0.2 * price,
        }
        for c in range(clusters)
        for w in range(windows)
        for kl in [scale * rng.uniform(0.5, 1.5)]
        for price in PRICES
    ]


def write(path, split, scales):
    lines = [header(split)]
    for domain, scale in scales.items():
        lines += rows_of(split, domain, scale)
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return lines[1:]


def test_the_page_tells_what_was_chosen_kept_and_saved(tmp_path):
    rows = write(tmp_path / "a.jsonl", "calibration", {"prose": 0.004, "code": 0.012})
    write(tmp_path / "b.jsonl", "test", {"prose": 0.004, "code": 0.03, "docs": 0.012})
    options = {"robust": False, "measured": ["m"], "command": "c"}
    for domain in ("prose", "code"):
        made = choose(
            rows,
            header("calibration"),
            Target("kl", 0.01),
            0.95,
            name=domain,
            domain=domain,
            domains=[domain],
            **options,
        )
        made.save(tmp_path / "prices" / f"{domain}.json")
    both = {**options, "robust": True}
    made = choose(
        rows,
        header("x"),
        Target("kl", 0.01),
        0.95,
        name="all",
        domain="all",
        domains=["prose", "code"],
        **both,
    )
    made.save(tmp_path / "prices" / "all.json")
    out = tmp_path / "TUNE.md"
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    written = tmp_path / shift.FILES[0]
    tuning_table.main(
        [*files, "--prices", str(tmp_path / "prices"), "--out", str(out), "--shift", str(written)]
    )
    lines = out.read_text().splitlines()
    chosen, check = (
        {
            tuple(cells[:2]): cells
            for line in lines
            for cells in [line.strip("| ").split(" | ")]
            if len(cells) == size
        }
        for size in (9, 12)
    )
    assert chosen["`prose`", "prose"][5] == "1" and chosen["`code`", "code"][5] == "0.5"
    assert chosen["`all`", "each of prose, code"][5] == "0.5"
    # Kept on prose at .4 of the limit, missed on test code, and read from the robust price on what no choice knew.
    assert check["`prose`", "prose"][9:] == ["yes", "0.300", "25 %"]
    assert check["`code`", "code"][9] == "**no**"
    assert "`code` on code (0.0" in out.read_text().split("Missed: ")[1]
    assert ("`all`", "docs (shift)") in check and "windows" in check["price of", "on"]
    # Code's own test windows lose 2.5 times what its calibration's did; the price of prose, 1, loses that and more.
    cross = {
        cells[0]: cells[1:]
        for line in lines
        for cells in [line.strip("| ").split(" | ")]
        if len(cells) == 5 and cells[0].startswith("`")
    }
    assert [cell.rsplit(": ")[-1] for cell in cross["`prose`"][1:]] == ["yes**", "no", "no"]
    assert cross["`prose`"][0] == "1" and cross["`code`"][2].startswith("**0.0")
    assert cross["`code`"][1].endswith(": yes") and cross["`code`"][2].endswith(": no**")
    assert "Of 5 pairs of a price and a domain that it was not tuned on: " in out.read_text()
    (goal,) = shift.read(written).goals
    used = {(one.name, use.domain): use for one in goal.prices for use in one.uses}
    assert [pair for pair, use in used.items() if use.own] == [
        ("code", "code"), ("prose", "prose"), ("all", "prose"), ("all", "code")
    ]  # fmt: skip
    assert goal.kept(used["prose", "docs"]) == "no" and used["prose", "docs"].windows == 64
    assert used["prose", "docs"].saved == pytest.approx(1 - 0.3 / 0.4) and used["code", "docs"].saved == 0
    told = shift.headline(goal)
    assert (
        told.endswith("2 missed. The strictest price, 0.5, is not shown to keep it on code.")
        and ": 3 kept" in told
    )
    assert "measure calibration" in out.read_text() and "commit unknown" in out.read_text()
    with pytest.raises(CalibrationError, match="documents of the test split"):
        tuning_table.main([files[0], files[0], "--prices", str(tmp_path / "prices"), "--out", str(out)])


TEXTS = ("code", "dialog", "mixed", "prose", "strictest")
QUESTIONS = ("niah_multivalue", "strictest", "vt")


def test_every_shipped_price_has_its_rows_and_says_what_it_promises():
    found = {path.stem for path in (paths.DATA / "calibrations" / "tuned").glob("*.json")}
    texts = {f"{domain}-{measure}" for domain in TEXTS for measure in set(tuned.MEASURES) - {"answer"}}
    assert found == texts | {f"{domain}-answer" for domain in QUESTIONS}
    said = "price 0.35: at most 3 % of next tokens changed (agreement 0.97) on code (the 3 projects measured), in"
    assert tuned.load("code-agreement").says.startswith(said)


@pytest.mark.parametrize(("kind", "name"), [("", "TUNE.md"), ("answers_", "notes/tune_answers.md")])
def test_the_shipped_prices_and_page_are_what_the_shipped_rows_say(kind, name):
    """The page is written by the command that it names, prices are chosen again, the weights are today's."""
    results = paths.DATA / "results"
    splits = ("calibration", "test")
    files = [read_measured([results / f"tuning_{kind}{split}_h200.jsonl.gz"]) for split in splits]
    names = sorted(path.stem for path in (paths.DATA / "calibrations" / "tuned").glob("*.json"))
    shipped = [tuned.load(one) for one in names if one.endswith("-answer") == bool(kind)]
    text = (results / name).read_text()
    command = text.splitlines()[1].split("`")[1]
    assert "\n".join(tuning_table.page(shipped, *files[0], *files[1], command)).rstrip() + "\n" == text
    assert shift.read(results / f"tuning_{kind}shift.json") == tuning_table.shifted(
        shipped, *files[1], command
    )
    for one in shipped:
        again = choose(
            files[0][0],
            files[0][1][0],
            Target(one.measure, one.target),
            one.confidence,
            name=one.name,
            domain=one.domain,
            domains=[part.domain for part in one.parts],
            robust=one.robust,
            measured=one.measured,
            command=one.command,
        )
        assert again == one
        config = RouterConfig(segment_tokens=32_768 if kind else 16_384)
        assert one.mismatch(revision_of(resolve("demo")[0]), config) is None


def test_a_choice_on_half_of_the_windows_is_seldom_wrong_where_the_mean_alone_often_is():
    """The second price loses 1.02 times the limit: half the samples have a mean below it."""
    rng = np.random.default_rng(0)
    losses = np.stack([mean * rng.gamma(4.0, 0.25, (4, 24)).clip(max=3.0) for mean in (0.3, 1.0)])
    part = Part("x", "window", 96, 4, 4)
    limit = float(losses[1].mean()) / 1.02
    found = Sample(part, np.minimum(losses, 4 * limit), losses.reshape(2, -1), np.array([0.3, 0.2]))
    wrong, naive, places = tuning_table.repeated(found, 4 * limit, limit, 0.05)
    assert wrong <= 0.05 < 0.2 < naive
    assert (places == 0).mean() > 0.9


def test_the_interval_is_of_the_mean_beside_it_with_failed_windows_at_the_cap():
    rows = rows_of("test", "prose", 0.004, clusters=10, windows=2)
    lost = [
        {**row, "failed": "out of memory"}
        if row["index"] == 0
        else {**row, "kl": 9.0}
        if row["index"] == 1
        else row
        for row in rows
    ]
    target = Target("kl", 0.01)
    assert tuning_table._interval([sample(lost, "prose", PRICES, target)], 2) == "0.0400 to 0.0400"
    low, high = map(float, tuning_table._interval([sample(rows, "prose", PRICES, target)], 2).split(" to "))
    assert 0.002 < low < 0.004 < high < 0.006
    assert tuning_table._interval([sample(rows_of("test", "x", 0.004), "x", PRICES, target)], 2) == "–"
    many = sample(rows_of("test", "x", 0.004, clusters=25), "x", PRICES, target)
    assert many.part.unit == "document" and " to " in tuning_table._interval([many], 2)
