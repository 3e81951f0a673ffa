"""The one schema of a bundle's values: nonsense is refused before anything is moved. No GPU."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from routesparse.engine import paths
from routesparse.engine.errors import BundleError
from routesparse.engine.schema import FieldError
from routesparse.engine.store import bundle, checks, ranges, spool, tables

(NAME,) = ranges.Name.__metadata__
NONSENSE = {
    pa.int64(): (-1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63)),
    pa.float64(): (math.nan, math.inf, -math.inf, -1.0, 1e308),
    pa.string(): ("<b>x</b>", "a\0b", "x" * 100_000, ""),
    pa.binary(): (b"", b"x", b"\xff" * 7),
    pa.bool_(): (),
}
# What every column of a kind may hold all the same, and what only looks like nonsense.
MEANT = {
    ("run", "seed"): NONSENSE[pa.int64()],
    **dict.fromkeys(
        [("head_choice", n) for n in ("lower_mass", "conformal_lower_mass", "row_lower_mass")], (math.nan,)
    ),
    **dict.fromkeys([(t, "lower_mass") for t in ("layer_run", "fallback_event", "audit")], (math.nan,)),
    **dict.fromkeys([(t, "risk") for t in ("head_choice", "candidate_score")], (-1.0,)),
    ("fallback_event", "paid_us"): (-1.0,),
    ("audit", "executed_error"): (math.inf,),
    ("prompt", "text"): ("x" * 100_000,),
    **dict.fromkeys([(t, "reason") for t in ("head_choice", "candidate_score")], ("<b>x</b>", "")),
    ("run", "calibration_mismatch"): ("<b>x</b>", ""),
    # Tokens, and names of files and people, which pages escape.
    **dict.fromkeys(
        [("answer", "text"), *(("continuation", f"{side}_text") for side in ("same", "dense", "routed"))],
        ("<b>x</b>", "a\0b", ""),
    ),
    **dict.fromkeys(
        [("run", name) for name, rule in tables.rules("run").items() if rule is NAME],
        ("<b>x</b>", "a\0b", ""),
    ),
}
COLUMNS = [(table, field.name) for table in tables.TABLES for field in tables.arrow_schema(table)]
COLUMNS = [(table, column) for table, column in COLUMNS if column != "run_id"]  # compared with the manifest's


def same(a, b):
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@pytest.fixture(scope="module")
def good(small):
    found = {table: tables.to_arrow(table, tables.rows_of(small, table)) for table in tables.TABLES}
    checks.check(found)
    return found


def changed(good, table, column, value):
    """The tables with another value in the first row."""
    data = good[table]
    place = data.schema.get_field_index(column)
    values = [value, *data.column(place).to_pylist()[1:]]
    field = data.schema.field(place)
    return {**good, table: data.set_column(place, field, pa.array(values, field.type))}


def test_every_column_has_a_rule():
    for table in (*tables.TABLES, *tables.CERTIFICATE_TABLES):
        assert set(tables.rules(table)) == set(tables.arrow_schema(table).names)


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_nonsense_in_any_column_is_refused_by_name(good, table, column):
    wrong = [
        value
        for value in NONSENSE[tables.arrow_schema(table).field(column).type]
        if not any(same(value, meant) for meant in MEANT.get((table, column), ()))
    ]
    for value in wrong:
        with pytest.raises(FieldError) as caught:
            checks.check(changed(good, table, column, value))
        assert table in str(caught.value) or "run" in str(caught.value), (value, str(caught.value))


@pytest.mark.parametrize(
    ("table", "column", "value", "told"),
    [
        ("run", "layers", 0, r"run\.layers in row 0 is 0, it must be a whole number from 1 to 4096"),
        ("run", "layers", 1, r"layer_run\.layer in row 1 is 1, it must be a whole number from 0 to 0"),
        ("probe", "mask_pool", 1 << 20, r"probe\.mask_pool in row 0 is 1048576, it must be such"),
        ("run", "kv_heads", 3, "a divisor of the 2 heads"),
        ("run", "units", 5, "it must be 4, the rows of head_choice"),
        ("run", "sparse_units", 5, "at most the 4 units"),
        ("run", "over_budget_layers", 3, "at most 2, the layers"),
        ("run", "budget", "soon", "run.budget is .*a latency limit"),
        ("run", "dtype", "int4", "one of float64, float32, float16, bfloat16"),
        ("run", "policy", "greedy", "one of priced"),
        ("run", "created_at", "2026-99-99T00:00:00", "a time in ISO 8601"),
        ("run", "config_json", '{"price": "dear"}', "config_json"),
        ("run", "config_json", '{"served": {"by": "vllm", "one_in": 0}}', "config_json.served.one_in"),
        ("head_choice", "head", 1, "rows of head_choice for batch_index 0, layer 0, head 1, segment 0 is 2"),
        ("head_choice", "body_tokens", 4_096, "at most tokens, 2048"),
        ("head_choice", "first_token", 1, r"first_token \+ tokens in row 0 is 2049"),
        (
            "head_choice",
            "candidate",
            77,
            r"head_choice\.candidate in row 0 is 77, it must be one of the scored",
        ),
        ("fallback_event", "to_candidate", 77, r"fallback_event\.to_candidate in row 0 is 77"),
        ("audit", "violations", 513, "at most rows, 512"),
        ("probe", "columns", 17, r"the size of probe\.mass in row 0 is"),
        ("probe", "kinds", b"\x09" * 272, "probe.kinds in row 0 is 9"),
        ("probe", "positions", b"\xff\xff\xff\xff" * 272, "probe.positions in row 0"),
        ("probe", "masks", b"\0" * 8, r"the size of probe\.masks in row 0 is 8"),
        ("probe", "mask_columns", None, "there with masks"),
        ("prompt", "block_starts", b"\x05\0\0\0\x01\0\0\0", "prompt.block_starts"),
        ("prompt", "text", "short", "ascending offsets of the text's 5 characters"),
    ],
)
def test_values_that_contradict_each_other_are_refused(good, table, column, value, told):
    with pytest.raises(FieldError, match=told):
        checks.check(changed(good, table, column, value))


def test_a_map_that_no_page_can_draw_is_refused(good):
    with pytest.raises(FieldError, match=r"run\.layers is 4096, it must be at most 16, with 4096 heads"):
        checks.check(changed(changed(good, "run", "layers", 4_096), "run", "heads", 4_096))


def test_a_family_of_another_version_is_let_through(good):
    """Its name alone is checked: pages show it in grey."""
    data = good["head_choice"]
    checks.check({**good, "head_choice": data.set_column(
        data.schema.get_field_index("pattern"), data.schema.field("pattern"),
        pa.array(["fifth_family"] * len(data)),
    )})  # fmt: skip


def test_the_bundled_samples_pass():
    samples = sorted((paths.DATA / "samples" / "runs").iterdir())
    assert samples
    for sample in samples:
        bundle.verify_bundle(sample)


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("run", {"tokens": 2**62}),
        ("head_choice", {"budget": "<script>"}),
    ],
)
def test_a_bundle_that_no_run_can_have_made_is_set_aside_with_its_reason(
    store, small, factory, home, table, values
):
    """It used to wait for ever, or to break the pages of everybody."""
    path = bundle.write_bundle(small, home / "spool")
    factory.rewrite(path, table, **values)
    report = spool.ingest_spool(store)
    (rejection,) = report.rejected
    assert not report.waiting and not report.ingested and not store.unlisted
    assert f"{table}.{next(iter(values))}" in rejection.reason and "make the bundle again" in rejection.reason
    assert (home / "spool" / "rejected" / small.run.run_id / "manifest.json").is_file()
    assert not list(store.bundles.iterdir()) and not store.run_ids()
    with pytest.raises(BundleError):
        bundle.verify_bundle(home / "spool" / "rejected" / small.run.run_id)
