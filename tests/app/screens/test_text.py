"""The page Text filled, empty and in error; lines, search and selection behind it. No GPU, no browser."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from routesparse.app.screens.text import find, lines, selection, token_lines
from routesparse.app.shell.access import access
from routesparse.app.ui import numbers
from routesparse.engine.export.plain_text import visible
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.rows import PromptRow, TracedRow
from routesparse.engine.store import word_queries
from routesparse.engine.store.block_shares import BlockShares
from routesparse.engine.store.word_queries import Words

RUN = "3f9a1c20d4e5b678"


def test_the_worst_audited_rows_stand_with_their_text_and_what_they_lost(filled, record, open_page):
    worst = max(record.worst_rows, key=lambda row: row.error)
    page = open_page("text", run=RUN)
    html = page.told
    assert f"Text: layer {worst.layer}, head {worst.head}" in html
    labels = [button.label for button in page.button]
    assert any(
        f"Layer {worst.layer}, head {worst.head}: token {worst.position:,}" in label for label in labels
    )
    block = int(np.frombuffer(worst.lost_blocks, "<i4")[0])
    assert f"tokens {block * 64:,}–{block * 64 + 63:,}" in html
    starts = np.frombuffer(record.prompt.block_starts, "<i4")
    assert record.prompt.text[starts[block] : starts[block + 1]][:80].strip() in html


def test_the_text_leads_back_to_its_head_on_the_map(filled, open_page):
    html = open_page("text", run=RUN, layer="2", head="1", segment="1").told
    assert 'href="map?run=d4e5b678&amp;layer=2&amp;head=1&amp;segment=1"' in html
    html = open_page("text", run=RUN, layer="2", head="1").told
    assert 'href="map?run=d4e5b678&amp;layer=2&amp;head=1&amp;segment=0"' in html, "rows of all segments"


def test_an_audited_row_lists_what_it_dropped_most_first(filled, record, open_page):
    worst = max(record.worst_rows, key=lambda row: row.error)
    query = {"layer": str(worst.layer), "head": str(worst.head), "row": str(worst.position)}
    html = open_page("text", run=RUN, **query).told
    blocks, shares = np.frombuffer(worst.lost_blocks, "<i4"), np.frombuffer(worst.lost_mass, "<f4")
    places = [html.index(f">{numbers.tokens(int(b) * 64, 64)}</a>") for b in blocks]
    assert places == sorted(places) and all(f"<td>{100 * s:.2f} %</td>" in html for s in shares)
    assert "audited, exact. What it read was not kept." in html
    assert f"at={blocks[1]}-{blocks[1]}" in html, "who else reads it"


def test_a_row_of_the_probe_stands_in_for_a_token_near_it_and_says_so(filled, record, open_page):
    choice = next(c for c in record.choices if c.pattern != "dense" and c.segment == 0)
    probe = next(p for p in record.probes if (p.layer, p.head, p.segment) == (choice.layer, choice.head, 0))
    position = int(np.frombuffer(probe.positions, "<i4")[150])
    query = {"layer": str(choice.layer), "head": str(choice.head), "row": str(position)}
    page = open_page("routing_map", run=RUN, **query)
    assert "lost most of its attention on" in page.told
    html = open_page("text", run=RUN, **query).told
    assert f"Token {position:,}, layer {choice.layer}, head {choice.head}, from the probe" in html
    html = open_page("text", run=RUN, **{**query, "row": "7"}).told
    assert "Token 7 was not recorded; the nearest row that was stands in." in html
    assert "Trace the token" in open_page("text", run=RUN, **query, scope="all").told


def test_cells_of_several_blocks_say_at_least_and_a_part():
    """A cell holds the largest of its blocks' shares, and counts as read where one of them is."""
    found = token_lines.of_passages(900, [(2, 3, 0.2)], [(9, 3, 0.1)], 64, "told", "probe.parquet").drawn
    assert [(one.fate, one.coarse) for one in found] == [("read, all or a part", True), ("dropped", True)]
    single = token_lines.of_passages(900, [(2, 1, 0.2)], [], 64, "told", "probe.parquet").drawn
    assert [(one.fate, one.coarse) for one in single] == [("read", False)]


def traced_rows(record, position):
    """Head 0 of layer 0 drops key 5; all others read it."""
    keys, weights = np.array([3, 5], "<i4").tobytes(), np.array([0.4, 0.2], "<f4").tobytes()
    return tuple(
        TracedRow(
            RUN, 0, c.layer, c.head, 0, position, 0.9, keys, weights, bytes([1, (c.layer, c.head) != (0, 0)])
        )
        for c in record.choices
        if c.segment == 0
    )


def test_a_traced_token_is_shown_key_by_key_for_one_head_or_all_also_by_another_run(
    spooled, record, open_page
):
    spooled(traced_rows=traced_rows(record, 900))
    spooled("abcdabcd00001111")
    one = {"layer": "0", "head": "0", "row": "900"}
    html = open_page("text", run=RUN, **one).told
    assert "Token 900, layer 0, head 0: 90.0 % of its attention was read; exact, key by key." in html
    assert re.search(r"dropped</span></td><td>20.00 %</td><td><a [^>]*at=0-0[^>]*>5</a>", html)
    other = open_page("text", run="00001111", **one, scope="all")
    assert "dropped</span>" not in other.told and "Token 900, all heads" in other.told, (
        "of the same prompt and settings"
    )
    rows = word_queries.traced(access().store, RUN, 900)
    lines = token_lines.of_traced(rows, 900, "all heads").drawn
    assert [(line.first, round(line.share, 6)) for line in lines] == [(3, 0.4), (5, 0.2)]
    assert lines[1].dropped == pytest.approx(0.2 / 16)
    assert [line.fate for line in lines] == ["read", "94 % read"], "no word for what was read in part"


def test_any_token_of_a_kept_prompt_is_traced_by_a_job_under_the_same_settings(filled, record, open_page):
    page = open_page("text", run=RUN, layer="1", head="1", row="7")
    page.button(key="trace-token").click().run()
    assert "Queued." in page.told
    job = access().queue.jobs()[0]
    request = RunRequest.from_json(job.request_json)
    assert (request.trace, request.tau, request.policy) == ("7", record.run.tau, record.run.policy)
    assert request.config().seed == record.run.seed


def test_a_phrase_is_counted_and_its_link_says_where_not_what(filled, record, open_page):
    page = open_page("text", run=RUN)
    page.text_input(key="find-phrase").set_value("code  of OSLO").run()
    starts = [match.start() for match in re.finditer("code of Oslo", record.prompt.text)]
    assert page.query_params["find"] == f"{starts[0]}-12"
    html = page.told
    assert "Who still reads" in html and f"({len(starts)} occurrence" in html
    told = re.search(r"little read by (\d+) of 16 heads", html)
    assert told
    table = page.dataframe[0].value
    assert len(table) == len(starts) and table["dropped_by"].between(0, 16).all()
    assert all("code of Oslo" in words[:30] for words in table["words"]), "a narrow window shows the phrase"
    single = table["dropped_by"]
    ends = str(single.min()) if single.min() == single.max() else f"{single.min()} to {single.max()}"
    assert f"on the mean of {len(starts)} occurrences; of a single occurrence by {ends}" in html
    assert '"format": "%.1f %%"' in page.dataframe[0].proto.columns and table["read_by"].max() > 1, "percent"

    linked = open_page("text", run=RUN, find=f"{starts[0]}-12")
    assert linked.text_input(key="find-phrase").value == "code of Oslo"
    assert f"little read by {told[1]} of 16 heads" in linked.told
    all_heads = open_page("text", run=RUN, find=f"{starts[0]}-12", below="1")
    assert int(re.search(r"little read by (\d+) of 16", all_heads.told)[1]) <= int(told[1])


def test_what_can_t_be_searched_is_said(filled, open_page):
    page = open_page("text", run=RUN)
    page.text_input(key="find-phrase").set_value("no such words here").run()
    assert "No occurrence in this prompt" in page.told
    assert "find" not in page.query_params
    page.text_input(key="find-phrase").set_value("(").run()
    assert "No occurrence in this prompt" in page.told, "what would be an expression is text"


def test_a_run_without_its_text_says_so_and_what_to_do(spooled, open_page):
    spooled(prompt=None)
    page = open_page("text", run=RUN)
    assert "text of this prompt was not kept" in page.told and "Keep the text" in page.told
    assert "How much attention does each head lose?" in page.told
    assert not page.text_input


def test_a_run_from_before_says_so_and_what_to_do(spooled, record, open_page):
    spooled(block_reads=(), worst_rows=(), prompt=replace(record.prompt, token_starts=None))
    page = open_page("text", run=RUN, find="0-10")
    html = page.told
    assert "audited before this page existed" in html and "with audit “rows”" in html
    assert "Not recorded: the run is older" in html
    assert re.search(r"little read by \d+ of 16 heads", html)


def test_a_run_that_was_not_audited_says_so(spooled, factory, open_page):
    shape = {"layers": 2, "heads": 2, "audit": False}
    spooled(of=factory.make_record(segments=1, tokens=2048, **shape))
    spooled(of=factory.make_record("c0de17aa90e1f003", probe=False, prompt=False, **shape))
    html = open_page("text", run=RUN).told
    assert "It was not audited" in html and "Not audited. Analyse the prompt again" in html
    assert "was not recorded" in open_page("text", run="90e1f003").told


def test_a_run_of_dense_heads_has_nothing_to_lose(spooled, record, open_page):
    choices = tuple(replace(c, pattern="dense", lower_mass=None) for c in record.choices)
    spooled(run={"sparse_units": 0}, choices=choices, audits=(), worst_rows=(), block_reads=())
    html = open_page("text", run=RUN, at="3-3").told
    assert "little read by 0 of 16 heads" in html and "there is nothing to lose" in html
    assert "Analyse the prompt again" not in html


@pytest.mark.parametrize("find", ["99999999-3", "1-2,zzz"])
def test_links_that_mean_nothing_show_the_page_without_them(filled, open_page, find):
    assert "Worst audited rows" in open_page("text", run=RUN, find=find, at="0-99999").told


def test_markup_in_a_prompt_and_its_name_is_escaped(spooled, record, open_page):
    text = '<img src=x onerror="alert(1)"> \u202e \u2028 **bold** ' * 40
    starts = np.linspace(0, len(text), record.run.tokens + 1).astype("<i4")
    prompt = PromptRow(RUN, text, starts[::64].tobytes(), starts.tobytes())
    spooled(run={"prompt_name": "<b>name</b>\u202e"}, prompt=prompt)
    page = open_page("text", run=RUN, find="0-10")
    html = page.told
    assert "&lt;img src=x" in html and "<img" not in html and "<b>name</b>" not in html
    assert "\u202e" not in html and "\u2028" not in html
    # Prompts reach labels nowhere: Streamlit reads those as Markdown.
    assert not any("bold" in button.label for button in page.button)


def test_lines_hold_the_whole_text_in_bounded_width():
    texts = [
        "",
        "\n",
        "\n\n\na",
        "word " * 500,
        "x" * 1000,
        "漢字" * 200 + "\n" + "é" * 90,
        "\u202e\u2028\t\x00" * 100,
        "a b\n" * 50 + "end",
        "x" * lines.WIDTH + "\n" + "y" * (lines.WIDTH + 1),
    ]
    for text in texts:
        starts = lines.starts(text)
        assert (starts[0] == 0 and starts[-1] == len(text) and (np.diff(starts) > 0).all()) or not text
        for first, end in pairwise(starts):
            line = text[first:end]
            assert "\n" not in line[:-1]
            shown = visible(line)
            wide = sum(2 if "\u2e80" <= c <= "\ua4cf" else 1 for c in shown.rstrip(" "))
            assert wide <= lines.WIDTH
    assert len(lines.starts("x" * lines.WIDTH + "\n")) == 2, "a full line and its newline are one"


def test_a_line_is_cut_where_blocks_and_marks_begin():
    text = "abcdefghij\n"
    made = lines.pieces(text, 0, 11, np.array([0, 4, 8]), [(2, 6, 1), (5, 9, 4)])
    assert "".join(piece[1] for piece in made) == "abcdefghij"
    assert made == [
        [0, "ab", 0],
        [0, "cd", 1],
        [1, "e", 1],
        [1, "f", 5],
        [1, "gh", 4],
        [2, "i", 4],
        [2, "j", 0],
    ]


@pytest.mark.parametrize(
    ("phrase", "spans"),
    [("b c", [(1, 4), (7, 11)]), ("B C", [(1, 4), (7, 11)]), ("x*", []), ("[", []), (" ", [])],
)
def test_a_phrase_is_found_in_any_case_over_any_white_space(phrase, spans):
    assert [tuple(span) for span in find.search("ab cd\ndb \ncd", phrase).spans] == spans


def test_a_search_is_bounded_in_number_and_length_and_quick():
    many = find.search("a" * 200_000, "a")
    assert len(many.spans) == find.MOST and many.more
    start = time.thread_time()
    assert not len(find.search("a " * 500_000, "a " * 99 + "b").spans)
    assert time.thread_time() - start < 5


def test_links_lead_back_to_what_was_found():
    text = "one two one three one"
    plain = find.search(text, "ONE")
    assert find.link(plain) == "0-3"
    assert find.linked(text, "0-3").spans.tolist() == plain.spans.tolist()
    assert find.link(find.search(text, "four")) is None
    for wrong in ("", "5", "1-", "-1-2", "99-3", "0-0", "r:1-2", "1-2x", "0-3,0-3"):
        assert find.linked(text, wrong) is None, wrong


def test_a_phrase_over_several_blocks_counts_as_the_mean_of_its_blocks():
    reads = np.full((1, 2, 4), np.nan, np.float32)
    reads[0, 0], reads[0, 1] = [1, 0.5, 0, np.nan], [0, 0, 1, np.nan]
    shares = BlockShares(2, "audit", reads)
    per_part = selection.part_shares(shares, [(0, 3), (4, 4), (6, 7), (7, 99)])
    np.testing.assert_allclose(per_part[0, 0], [0.75, 0, np.nan, np.nan])
    np.testing.assert_allclose(per_part[0, 1], [0, 1, np.nan, np.nan])
    np.testing.assert_allclose(selection.mean(per_part), [[0.375, 0.5]])


def test_occurrences_know_their_blocks():
    words = Words("aaabxxabcccc", np.array([0, 4, 8, 12]), None)
    assert selection.occurrences(find.search(words.text, "ab"), words) == [(0, 0), (1, 1)]
    assert selection.occurrences(find.search(words.text, "bc"), words) == [(1, 2)]
