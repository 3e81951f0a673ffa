"""Every term of the pages, and the page that lists them. No GPU, no browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from routesparse.app.screens.terms.page import EQUATIONS
from routesparse.app.ui.glossary import REASONS, TERMS, mark
from routesparse.engine.verdict import WARNINGS

REPOSITORY = Path(__file__).resolve().parents[3]


def test_every_term_is_escaped_and_names_its_place_and_every_warning_of_a_verdict_has_one():
    for term, text in TERMS.items():
        assert mark(term).count("<") == 2, term
        assert re.search(r"\(.*(equation|section|abstract|ours)[^)]*\)", text), text
    assert set(REASONS) == set(WARNINGS)
    assert all((REPOSITORY / equation[-1]).is_file() for equation in EQUATIONS)


@pytest.mark.parametrize("term", ["risk", "", "no such <b>term</b>"])
def test_the_page_lists_all_terms_and_a_wanted_one_first_with_its_equation(home, open_page, term):
    html = open_page("terms", term=term).told
    assert html.count("<tr") == len(TERMS) and "no such <b>" not in html
    assert html.count("α u + β e") == (4 if term == "risk" else 2), "and its own card: the term, its equation"
    assert html.count('<tr class="pick">') == (term == "risk")
