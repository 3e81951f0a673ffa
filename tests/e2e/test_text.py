"""The prompt's words in a real browser: the worst head and what it dropped, who reads a phrase, hostile text."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from routesparse.engine.rows import PromptRow
from tests.e2e.serve import save_picture, settled

pytestmark = pytest.mark.timeout(180)
HOSTILE = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"> ',
    "\u202eevil\u202c a\u2028b\u2029c\x85d\x00\x1b[31m\u200b ",
    "[link](javascript:window.hacked=1) **bold** $x$ :red[x] ",
    "שלום z\u0351\u0352 漢字 👩‍👧 </div></style>\"' ",
    "x" * 4000 + " ",
)


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_record(hardness=0.9)


@pytest.fixture(scope="module")
def hostile(factory):
    """A run whose prompt and its name try everything."""
    made = factory.make_record("eeee1c20d4e5eeee", name="<b>hostile</b>\u202e.txt", hardness=0.9)
    text = "".join(HOSTILE[i % len(HOSTILE)] for i in range(60))
    starts = np.linspace(0, len(text), made.run.tokens + 1).astype("<i4")
    return replace(made, prompt=PromptRow(made.run.run_id, text, starts[::64].tobytes(), starts.tobytes()))


@pytest.fixture(scope="module")
def address(site, record, hostile):
    return site(hostile, record)


def words_of(record, block: int) -> str:
    starts = np.frombuffer(record.prompt.block_starts, "<i4")
    return record.prompt.text[starts[block] : starts[block + 1]]


def dropped(page) -> tuple[int, int]:
    """What the verdict says: dropped by how many of how many heads."""
    page.locator(".rs-dropped").wait_for()
    text = page.locator(".rs-dropped").inner_text()
    return tuple(int(number.replace(",", "")) for number in re.findall(r"[\d,]+", text)[:2])


def test_find_the_worst_head_and_the_words_it_dropped_in_three_clicks(address, context, page, record):
    worst = max(record.worst_rows, key=lambda row: row.error)
    page.goto(f"{address}/?q=d4e5b678")
    table = page.locator(".st-key-card-runs [data-testid=stDataFrame]")
    table.wait_for()
    settled(page)
    table.click(position={"x": 90, "y": 48})  # 1: the run
    page.locator(".st-key-card-reason").wait_for()
    page.locator("[data-testid=stSidebarNavLink]").filter(has_text="Text").click()  # 2: its words
    page.get_by_role(
        "button", name=f"Layer {worst.layer}, head {worst.head}"
    ).first.click()  # 3: its worst row
    card = page.locator(".st-key-card-token-lines")
    card.get_by_text(f"token {worst.position:,}").first.wait_for()
    lost = int(np.frombuffer(worst.lost_blocks, "<i4")[0])
    assert words_of(record, lost)[:40].strip() in card.inner_text()
    # The text has come to the row, and marks it and what it lost.
    page.locator(".rs-lens .piece.row").first.wait_for()
    card.locator("a").first.click()
    page.locator(".rs-lens .piece.lost.picked").first.wait_for()
    assert f"at={lost}-{lost}" in page.url
    page.get_by_text(f"Who still reads tokens {lost * 64:,}").wait_for()
    assert context.failures == []


def test_who_reads_this_phrase_as_a_link_without_the_phrase(address, context, page, record):
    page.goto(f"{address}/text?run=d4e5b678")
    field = page.get_by_placeholder("Find in the prompt")
    field.fill("CODE of  oslo")
    field.press("Enter")
    page.get_by_text(re.compile(r"Who still reads .*CODE of oslo")).wait_for()
    found = [match.start() for match in re.finditer("code of Oslo", record.prompt.text)]
    page.get_by_text(f"{len(found)} occurrences", exact=True).wait_for()
    count, heads = dropped(page)
    assert heads == 64 and 0 < count < 64
    page.wait_for_url(f"**find={found[0]}-12**")
    assert "slo" not in page.url
    assert page.locator(".rs-lens .piece.found").first.inner_text() in "code of Oslo"

    tree = ElementTree.fromstring(save_picture(page, "heads").read_bytes())
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}rect")) >= 64

    # The link alone shows the same, and a click on a head shades the text by it.
    page.reload()
    assert dropped(page) == (count, heads)
    # The input fills a moment after it is there.
    page.wait_for_function("document.querySelector('.st-key-find-phrase input')?.value === 'code of Oslo'")
    page.locator(".st-key-card-heads .rs-grid").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_url("**scope=head**")
    page.get_by_role("radio", name="All heads").click()
    page.wait_for_url("**scope=all**")
    # A click on the text asks for that passage alone.
    page.locator(".rs-lens .piece").first.click()
    page.get_by_text("Who still reads tokens").wait_for()
    page.get_by_role("button", name="All occurrences").click()
    page.get_by_text(re.compile(r"Who still reads .*code of Oslo")).wait_for()
    # So does Enter, for who has no mouse.
    page.locator(".rs-lens .view").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Who still reads tokens").wait_for()
    page.get_by_role("button", name="All occurrences").click()
    page.get_by_text(re.compile(r"Who still reads .*code of Oslo")).wait_for()
    assert context.failures == []


def test_a_row_of_the_probe_leads_to_its_words_and_to_the_text(address, context, page, record):
    page.goto(f"{address}/map?run=d4e5b678&layer=3&head=3")
    picture = page.locator(".st-key-probe .rs-plot image").first
    picture.wait_for()
    settled(page)
    picture.scroll_into_view_if_needed()
    page.wait_for_timeout(1_000)
    box = picture.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.2, box["y"] + box["height"] * 0.8)
    page.locator(".st-key-card-row").wait_for()
    page.wait_for_url("**row=**")
    row = re.search(r"row=(\d+)", page.url)[1]
    page.get_by_text("Show in the text").click()
    page.locator(".rs-lens .piece.row").first.wait_for()
    assert f"row={row}" in page.url
    page.get_by_text("Show in the probe’s picture").click()
    page.locator(".st-key-probe .rs-plot image").first.wait_for()
    page.locator(".st-key-card-row").wait_for()
    assert context.failures == []


def test_a_long_prompt_comes_in_windows_as_it_is_scrolled(address, page, record):
    frames = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: frames.append(len(data))))
    page.goto(f"{address}/text?run=d4e5b678")
    page.locator(".rs-lens .line").first.wait_for()
    settled(page)
    lines = page.locator(".rs-lens .line").count()
    total = page.evaluate("document.querySelector('.rs-lens').data.total")
    assert lines < total / 3
    assert sum(frames) < 1_000_000
    number = page.locator(".rs-lens .line .number").last
    assert int(number.inner_text().replace(",", "")) < 8_000
    page.evaluate("document.querySelector('.rs-lens .view').scrollTop = 1e9")
    page.wait_for_function(
        "Number([...document.querySelectorAll('.rs-lens .number')].at(-1).textContent.replace(',', '')) > 16340"
    )


def test_hostile_text_is_shown_as_text(address, context, page):
    for path in ("/text?run=d4e5eeee", "/text?run=d4e5eeee&layer=1&head=3&row=1000&find=0-8"):
        page.goto(address + path)
        page.locator(".rs-lens .line").first.wait_for()
        settled(page)
        assert page.evaluate("window.hacked") is None
        shown = page.locator(".rs-lens .lines").inner_text()
        assert "<script>window.hacked=1</script>" in shown.replace("\n", "")
        for hidden in "\u202e\u2028\u2029\x85\x1b\u200b":
            assert hidden not in page.locator("[data-testid=stMain]").inner_text()
        assert "⟨U+202E⟩" in shown
        assert page.locator(".rs-lens script, .rs-lens img, .rs-words img, .rs-words script").count() == 0
        assert page.locator(".rs-lens a, .rs-words a").count() == 0
    # Every line has its height, however long the prompt's is.
    heights = page.evaluate(
        "[...document.querySelectorAll('.rs-lens .line')].map((line) => line.offsetHeight)"
    )
    assert set(heights) == {19}
    assert context.failures == []


def test_a_hostile_phrase_is_searched_for_and_shown_as_text(address, context, page):
    """Typed, in the heading, in the occurrences, and from the link."""
    phrase = '<img src=x onerror="window.hacked=1">'
    page.goto(f"{address}/text?run=d4e5eeee")
    field = page.get_by_placeholder("Find in the prompt")
    title = page.locator(".st-key-card-heads .rs-h")
    field.fill(phrase)
    field.press("Enter")
    title.get_by_text(phrase).wait_for()
    page.wait_for_url("**find=**")
    assert "onerror" not in page.url and "img" not in page.url
    page.reload()
    title.get_by_text(phrase).wait_for()
    assert page.locator(".st-key-card-heads img, .st-key-card-heads script").count() == 0
    field.fill("\u202eevil</div>\u202c **bold** :blue[x] $\\frac{1}{2}$")
    field.press("Enter")
    page.get_by_text("No occurrence in this prompt.").wait_for()
    assert page.evaluate("window.hacked") is None
    assert context.failures == [] and context.hosts() == {"127.0.0.1"}
