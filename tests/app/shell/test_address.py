"""What an address names and a page does not have is told in one line, and the page stays usable. No GPU, no browser."""

import importlib
import re

import pytest

from tests.app.conftest import REPOSITORY

SCREENS = REPOSITORY / "app" / "screens"
RUN = "d4e5b678"
PAGES = sorted(place.parent.name for place in SCREENS.glob("*/page.py"))
READ = re.compile(
    r'(?:query_params(?:\.get\(|\[)|switch\.(?:chosen|field|buttons|several|many)\(\s*|view\.number\(|names\()"(\w+)"'
)


@pytest.mark.parametrize(
    ("page", "query", "told"),
    [
        ("new_run", {"model": "xyz"}, "model=xyz: nothing on this page has this name"),
        ("new_run", {"tau": "abc", "source": "Nowhere"}, "tau=abc; source=Nowhere"),
        ("compare", {"run": "xyz"}, "run=xyz: nothing on this page has this name"),
        ("text", {"run": RUN, "row": "999999"}, "row=999999: here are 0 to 4,095"),
        ("text", {"run": RUN, "at": "7-3", "find": "0-0"}, "at=7-3"),
        ("text", {"run": RUN, "scope": "none", "shade": "none", "below": "7"}, "below=7: here are 50, 10, 1"),
        ("routing_map", {"metric": "<b>", "zoom": "1", "tour": "9"}, "metric=&lt;b&gt;"),
        ("routing_map", {"run": RUN, "layer": "²", "head": "-1"}, "layer=²: here are 0 to 3; head=-1: here"),
        (
            "routing_map",
            {"run": RUN, "layer": "<b>9</b>", "segment": "7"},
            "layer=&lt;b&gt;9&lt;/b&gt;: here",
        ),
        ("runs", {"level": "foo", "columns": "kl,drop", "model": "gone"}, "columns=drop"),
        ("trust", {"scope": "mine", "details": "7"}, "scope=mine: here are run, all"),
        ("trust", {"claim": "x", "by": "²", "domain": "nowhere", "details": "true"}, "claim=x: here are in_"),
        ("compare", {"runs": f"{RUN},c0de17aa", "baseline": "²", "by": "x"}, "baseline=²"),
        ("trust", {"layer": "-1", "segment": "x"}, "layer=-1: nothing on this page has this name"),
        ("trust", {"run": RUN, "segment": "0", "batch": "7"}, "has this name; batch=7: only 0 is here"),
        ("text", {"run": "aa90e1f003", "segment": "99"}, "segment=99: only 0 is here"),
        ("text", {"run": RUN, "segment": "x"}, "segment=x: here are 0 to 1"),
        ("compare", {"layer": "-1"}, "layer=-1: nothing on this page"),
        ("domains", {"layer": "-1", "head": "2"}, "layer=-1: nothing on this page has this name; head=2"),
        ("terms", {"term": "zz"}, "term=zz"),
    ],
)
def test_what_the_address_names_in_vain_is_told(filled, open_page, page, query, told):
    html = open_page(page, **query).told
    assert told in html.split("This address names what is not here: ")[1]


@pytest.mark.parametrize(
    ("page", "query"),
    [
        ("new_run", {"with_model": "demo", "audit": "rows", "tau": "0.9", "keep_text": "true"}),
        ("runs", {"level": "Not safe", "q": "abc", "columns": "kl,loss"}),
        (
            "routing_map",
            {"run": RUN, "layer": "1", "head": "2", "metric": "density", "mask": "none", "x": "density"},
        ),
        ("trust", {"scope": "all", "details": "true", "claim": "row"}),
        ("text", {"run": RUN, "row": "4000", "at": "3-7", "click": "reads"}),
    ],
)
def test_a_link_of_ours_is_silent(filled, open_page, page, query):
    assert "names what is not here" not in open_page(page, **query).told


@pytest.mark.parametrize("page", PAGES)
def test_a_page_knows_every_name_that_it_reads(page):
    read = {name for file in (SCREENS / page).glob("*.py") for name in READ.findall(file.read_text("utf-8"))}
    assert read <= importlib.import_module(f"routesparse.app.screens.{page}.page").render.known
