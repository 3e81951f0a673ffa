"""Rows of a DataFrame are what pandas' own itertuples gives, without its index. No GPU."""

from __future__ import annotations

import pandas as pd
import pytest

from routesparse.engine.store import frames

MIXED = pd.DataFrame(
    {
        "whole": [1, 2],
        "part": [0.5, None],
        "text": ["a", None],
        "flag": [True, False],
        "perhaps": pd.Series([True, None], dtype=object),
        "at": pd.to_datetime(["2026-11-24 10:00", None], utc=True),
        "kind": pd.Series(["x", "y"], dtype="category"),
        "bytes": [b"1", b"2"],
        "two words": [1, 2],
    }
)


@pytest.mark.parametrize(
    "frame", [MIXED, MIXED[:0], MIXED[["whole"]], pd.DataFrame()], ids=lambda f: str(f.shape)
)
def test_rows_have_the_values_and_types_of_itertuples(frame):
    told, wanted = list(frames.rows(frame)), list(frame.itertuples(index=False))
    assert len(told) == len(wanted)
    for mine, theirs in zip(told, wanted, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert type(one) is type(other) and (one == other or (pd.isna(one) and pd.isna(other)))


def test_columns_are_fields_and_a_name_that_no_field_can_have_is_its_place():
    (row, _) = frames.rows(MIXED)
    assert (row.whole, row.text, row._8) == (1, "a", 1) and row._asdict()["flag"] is True
