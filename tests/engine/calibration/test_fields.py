"""Every value of a calibration file outside its meaning is refused with file, field, value and advice. No GPU."""

import json
import math
import re

import pytest

from routesparse.engine import paths
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.errors import CalibrationError

TEXT = (paths.DATA / "calibrations" / "prose.json").read_text()
NAN, INF = math.nan, math.inf
# Anything that JSON can say: nothing is computed from it.
FREE = ("provenance", "predictor.fit", "buckets[0].histogram")


def leaves(value, path=()):
    """(path, value) of one entry per list and of all fields: what the file's kinds of values are."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from leaves(entry, (*path, name))
    elif isinstance(value, list):
        yield from leaves(value[0], (*path, 0)) if value else ()
    else:
        yield path, value


def shown(path):
    """("buckets", 0, "deltas") as the message writes it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def damaged(tmp_path, path, value):
    """A copy of the bundled prose calibration with one value replaced."""
    values = json.loads(TEXT)
    place = values
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(values))
    return file


LEAVES = [(path, value) for path, value in leaves(json.loads(TEXT)) if path != ("schema",)]
CHECKED = [(path, value) for path, value in LEAVES if not shown(path).startswith(FREE)]
NUMBERS = [path for path, value in CHECKED if isinstance(value, int | float) and not isinstance(value, bool)]
TEXTS = [path for path, value in CHECKED if isinstance(value, str)]


def refused(file, field):
    with pytest.raises(CalibrationError) as caught:
        load_calibration(str(file))
    message = str(caught.value)
    assert str(file) in message and "calibrate again" in message and field in message, message
    return message


def test_the_walk_meets_every_kind_of_value():
    assert {"stamp.price", "buckets[0].deltas.0.95", "predictor.threshold[0][0]", "stamp.tau"} <= set(
        map(shown, NUMBERS)
    )
    assert len(NUMBERS) > 40 and len(TEXTS) > 15


@pytest.mark.parametrize("path", NUMBERS, ids=shown)
def test_no_number_may_be_anything_else(tmp_path, path):
    for value in (NAN, -INF, "0.5", True, [0.5]):
        refused(damaged(tmp_path, path, value), shown(path))


@pytest.mark.parametrize("path", TEXTS, ids=shown)
def test_no_text_may_be_anything_else(tmp_path, path):
    for value in (0.5, True, NAN, ["a"], "", "two\nlines"):
        refused(damaged(tmp_path, path, value), shown(path) if path[0] != "stamp" else "stamp")


@pytest.mark.parametrize("path", [path for path, _ in LEAVES if (path, _) not in CHECKED], ids=shown)
def test_nothing_that_is_no_json_may_stand_anywhere(tmp_path, path):
    refused(damaged(tmp_path, path, INF), shown(path))


LISTS = sorted({shown(path[:end]): path[:end] for path, _ in CHECKED for end in range(1, len(path))}.items())


@pytest.mark.parametrize("path", [path for _, path in LISTS], ids=[name for name, _ in LISTS])
def test_no_list_or_object_may_be_anything_else(tmp_path, path):
    for value in (0, "a", *([None] if path[-1] not in ("cost_model", "drift", "predictor") else [])):
        refused(damaged(tmp_path, path, value), shown(path))


@pytest.mark.parametrize(
    ("path", "value", "wanted"),
    [
        ("buckets.0.deltas.0.95", -1e-9, "a number from 0 to 1"),
        ("buckets.0.deltas.0.95", 1.01, "a number from 0 to 1"),
        ("buckets.0.deltas.0.95", 0.05, "at least 0.05, as at the lower level 0.95"),
        ("buckets.0.deltas.0.9", None, "null, as at the lower level 0.9"),
        ("buckets.1.deltas.0.99", 0.05, "null: 40 prompts are too few for this level"),
        ("buckets.0.prompts", 18, "null: 18 prompts are too few"),
        ("buckets.0.prompts", 0, "at most the 0 prompts"),
        ("buckets.0.prompts", -1, "a whole number from 0"),
        ("buckets.0.documents", 113, "at most the 112 prompts"),
        ("buckets.0.documants", 112, "must be left out"),
        ("buckets.0.units", -1, "a whole number"),
        ("buckets.0.min_tokens", 0, "a whole number from 1"),
        ("buckets.0.min_tokens", 9_000, "at least min_tokens, 9000"),
        ("buckets.0.max_tokens", 8_193, "above 8193, where the bucket before it ends"),
        ("buckets.0.deltas", {"1.5": 0.01}, "named after a level q"),
        ("buckets.0.deltas", {"0.950": 0.01}, "named after a level q"),
        ("gate_threshold", 0, "a number above 0 and at most 1"),
        ("gate_threshold", 1.0001, "a number above 0 and at most 1"),
        ("alpha", -0.1, "a finite number of at least 0"),
        ("alpha", 10**400, "a finite number of at least 0"),
        ("seed", 0.5, "a whole number"),
        ("stamp.tau", 1.5, "stamp.tau is 1.5, it must be a number from 0 to 1"),
        ("stamp.block_k", 63, "must be a power of two"),
        ("stamp.budget", "-3us", "stamp.budget is -3.0, it must be a number above 0"),
        ("cost_model.dense", -1.0, "a finite number of at least 0"),
        ("folds.A.prompts", -1, "a whole number"),
        ("folds.C", {}, "one of A, B"),
        ("prompts.0.fold", "C", "one of A, B"),
        ("prompts.0.density", 1.5, "a number from 0 to 1"),
        ("prompts.0.q95", 3.0, "a number from -1 to 1"),
        ("drift.level", 0.0, "a number above 0 and at most 1"),
        ("drift.distances.3", 0.0, "at least"),
        ("drift.distances", [], "a list of at least 1"),
        ("drift.descriptors.1", "entropy 0", "without repetition"),
        ("drift.max_tokens", 1, "at least min_tokens"),
        ("drift.components.0.spread.0", 0.0, "a finite number above 0"),
        ("drift.components.0.precision.0.0", -1.0, "symmetric and positive definite"),
        ("drift.components.0.precision.0.1", 1.0, "symmetric and positive definite"),
        ("drift.components.0.slope", [0.0], "a list of 24"),
        ("predictor.feature.0.0", 3, "a whole number from -1 to 2"),
        ("predictor.left.0.0", 10_000, "a whole number from 0 to"),
        ("predictor.left.0.0", 0, "that of the deepest leaf"),
        ("predictor.value", [], "a list of 40"),
        ("predictor.depth", 1, "that of the deepest leaf"),
        ("gaet", 0.9, "left out"),
    ],
)  # fmt: skip
def test_a_value_outside_its_meaning_is_refused_by_field_and_value(tmp_path, path, value, wanted):
    parts = re.sub(r"deltas\.(0\.\d+)", lambda m: f"deltas.{m[1].replace('.', '~')}", path).split(".")
    names = [int(p) if p.isdigit() else p.replace("~", ".") for p in parts]
    message = refused(damaged(tmp_path, names, value), wanted)
    assert "mine.json" in message and "is corrupt" in message


@pytest.mark.parametrize("drop", ["gate_threshold", "buckets", "documents", "stamp", "provenance", "alpha"])
def test_a_missing_field_is_named_and_one_that_stands_twice_too(tmp_path, drop):
    values, file = json.loads(TEXT), tmp_path / "mine.json"
    del values[drop]
    file.write_text(json.dumps(values))
    refused(file, f"{drop} is missing")
    file.write_text(TEXT.replace(f'"{drop}":', f'"{drop}": 0.5, "{drop}":', 1))
    refused(file, f"the field '{drop}' stands twice")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": 2, "gate": ' + "9" * 5_000 + "}", "\ud800", "{}"]
)
def test_a_file_that_json_cannot_hold_is_refused(tmp_path, text):
    file = tmp_path / "mine.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(file, "is corrupt")


def test_what_is_legal_stays_legal(tmp_path):
    """Infinite (null) where K is too small, at every level above, and in a bucket that no prompt fell into."""
    values = json.loads(TEXT)
    assert values["buckets"][1]["deltas"]["0.99"] is None
    values["buckets"][0] |= {"prompts": 0, "documents": 0, "units": 0}
    values["buckets"][0]["deltas"] = {"0.9": None, "0.95": None, "0.99": None}
    values["buckets"][1]["deltas"] = {"0.9": 0, "0.95": 1}
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(values))
    made = load_calibration(str(file))
    assert made.delta(5_000, 0.95) == made.delta(9_000, 0.99) == math.inf
    assert made.delta(9_000, 0.9) == 0 and made.delta(9_000, 0.95) == 1
