"""CSV that a spreadsheet reads as texts and numbers, never as formulas."""

import csv
import io

import pandas as pd
import pytest

from routesparse.app.ui import exports
from routesparse.engine.export.csv_text import as_csv


def cells(text):
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    "text", ["=1+1", "+x", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1", "-1.5 %"]
)
@pytest.mark.parametrize("kind", ["object", "string", "category"])
def test_a_text_that_would_be_a_formula_begins_with_an_apostrophe(text, kind):
    found = cells(as_csv(pd.DataFrame({text: pd.Series([text, "harbour"], dtype=kind)})))
    assert found == [[f"'{text}"], [f"'{text}"], ["harbour"]]


@pytest.mark.parametrize("value", [-1.5, -3, True, None, "-1.5", "+2", "-1e-05", "x=1", "", "harbour"])
def test_numbers_and_other_texts_stay(value):
    found = cells(as_csv(pd.DataFrame({"a": [value], "b": pd.Series([value], dtype=object)})))
    assert found[1] == ["" if value is None else str(value)] * 2


def test_a_line_end_inside_of_a_text_begins_no_row():
    assert cells(as_csv(pd.DataFrame({"a": ["x\r=1", 'y"\n@z']})))[1:] == [["x\r=1"], ['y"\n@z']]


def test_the_pages_button_gives_such_csv(monkeypatch):
    """The content that is asked of it when it is pressed."""
    given = {}
    monkeypatch.setattr(exports.st, "download_button", lambda label, data, **_: given.update({label: data}))
    exports.downloads("tokens", pd.DataFrame({"text": ["=cmd()"], "mean_error": [-1.5]}), "key")
    assert given["1 row as CSV"]() == b'"text","mean_error"\n"\'=cmd()",-1.5\n'
    assert pd.read_parquet(io.BytesIO(given["1 row as Parquet"]()))["text"].tolist() == ["=cmd()"]
