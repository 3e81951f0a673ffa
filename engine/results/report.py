"""Evaluations as one HTML page that opens from disk, and, without its details, as Markdown.

No server, no network, no script; a Content-Security-Policy forbids whatever the page does not need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from routesparse.engine.export import report_html
from routesparse.engine.export.plain_text import visible
from routesparse.engine.results import answers, tables, wording
from routesparse.engine.results.evaluations import Evaluation
from routesparse.engine.results.picture import STYLE, area_picture
from routesparse.engine.results.tables import Table

TITLE = "Is it better? Suites and intervals"
LIMITS = (
    "Read with care: one model, which everybody can run and which is small; routing is forced, also at lengths where "
    "the product runs dense by itself; a task on which dense scores below 80 says nothing about sparse attention; an "
    "interval that holds 0 does not show that nothing is lost; times of several processes on one device include "
    "waiting for each other."
)
MORE = "Every length by task, the controls and pictures stand on the HTML page that the same command writes."


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it. On the HTML page only: pictures, which are SVG, and a section of detail."""

    title: str
    notes: tuple[str, ...]
    tables: tuple[Table, ...]
    pictures: tuple[str, ...] = ()
    detail: bool = False


def sections(found: Sequence[Evaluation]) -> Iterator[Section]:
    """Everything that a report says, answers first."""
    for one in found:
        for length in one.lengths[-1:]:
            told = (f"{ask} {answer}" for ask, answer in answers.answers(one, length))
            yield Section(f"{_name(one, found)}, in short", (wording.about(one), *told), ())
    for one in found:
        unit = "% of perplexity" if one.is_perplexity else "points"
        drawn = [area_picture(one.at(n), unit, f"{one.suite} at {n:,} tokens") for n in one.lengths]
        notes = (wording.how(one), one.made_by)
        yield Section(
            f"{_name(one, found)}: methods by length",
            notes,
            (tables.main_table(one),),
            tuple(filter(None, drawn)),
        )
        if one.by_task:
            for length in reversed(one.lengths):
                title = f"{_name(one, found)}: by task at {length:,} tokens"
                table = tables.task_table(one, length)
                yield Section(title, (), (table,), detail=length != one.lengths[-1])
            rows = [answers.ours(one, length) for length in one.lengths]
            known = tuple(tables.task_intervals(one, row) for row in rows if row is not None and row.tasks)
            yield Section(f"{_name(one, found)}: RouteSparse by task", (), known, detail=True)
        yield Section(f"{_name(one, found)}: controls", (), (tables.control_table(one),), detail=True)


def _name(one: Evaluation, found: Sequence[Evaluation]) -> str:
    """The suite's name, with the lengths where another evaluation is of the same suite."""
    if [other.suite for other in found].count(one.suite) == 1:
        return one.suite
    return f"{one.suite} at {', '.join(f'{length:,}' for length in one.lengths)} tokens"


def page(found: Sequence[Evaluation], command: str) -> str:
    """The HTML page."""
    body = [
        f"<header><h1>{report_html.text(TITLE)}</h1>",
        report_html.note(f"RouteSparse evaluations · {command}"),
        "</header>",
        report_html.note(LIMITS),
    ]
    for one in sections(found):
        drawn = [report_html.note(note) for note in one.notes]
        drawn += [f"<figure>{picture}</figure>" for picture in one.pictures]
        drawn += [
            report_html.table(table.caption, table.heads, table.rows, table.left) for table in one.tables
        ]
        body.append(report_html.section(one.title, *drawn))
    return report_html.document(f"RouteSparse: {TITLE}", "".join(body), STYLE)


def markdown(found: Sequence[Evaluation], command: str) -> str:
    """The Markdown page."""
    lines = [f"# {TITLE}", f"Written by `{command}`; do not edit by hand.", "", f"{LIMITS} {MORE}"]
    for one in sections(found):
        if one.detail:
            continue
        lines += [*([""] if lines[-1] else []), f"## {one.title}"]
        for note in one.notes:
            lines += [_plain(note), ""]
        for table in one.tables:
            lines += [*([""] if lines[-1] else []), "| " + " | ".join(map(_plain, table.heads)) + " |"]
            lines += [
                "|" + "|".join("---" if i in table.left else "---:" for i in range(len(table.heads))) + "|"
            ]
            lines += ["| " + " | ".join(map(_plain, row)) + " |" for row in table.rows]
            lines += ["", _plain(table.caption)]
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    """A text from a file, which must not become Markdown or HTML."""
    return "".join(f"\\{sign}" if sign in "<>`*_|[]#\\" else sign for sign in visible(text, " "))
