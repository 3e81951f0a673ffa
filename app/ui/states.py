"""Empty and error states: what happened, what was kept, what to do next."""

from __future__ import annotations

import re
import shlex
from html import escape

import streamlit as st

from routesparse.engine import paths
from routesparse.engine.errors import StoreDamagedError

PROGRAM = ".venv/bin/routesparse"  # where `make run` installs it, which is not on the PATH
ANALYZE = f"{PROGRAM} analyze FILE"
_COMMAND = re.compile(r"`|(?<!\S)--[a-z]")


def here(command: str) -> str:
    """A command for this dashboard's home, which it has to be told where that is not the default."""
    home = paths.home()
    if home == (paths.REPOSITORY / "var").resolve():
        return command
    return f"ROUTESPARSE_HOME={shlex.quote(str(home))} {command}"


def empty(title: str, lines: list[str], command: str | None = None) -> None:
    """A calm box that says what to do; ``command`` is shown as code, with this dashboard's home."""
    _box(title, lines, "")
    if command:
        st.code(here(command), language=None, width=520, wrap_lines=True)


def undecided(was_routed: bool, below: list[str]) -> None:
    """A run, or a segment of it, without decisions: they were lost, or it was not routed, which ``below`` explains."""
    if was_routed:
        empty(
            "Its decisions are not stored",
            [
                "This run was routed, and the store holds none of its decisions here. Restore a backup, or analyse the "
                "prompt again."
            ],
        )
    else:
        empty("Nothing was routed in this run", below)


def problem(title: str, lines: list[str]) -> None:
    """Something failed: say what happened, what was kept and what to do."""
    _box(title, lines, " bad")


def damaged_store(error: StoreDamagedError) -> None:
    """The store's file can't be read: what is lost and kept, the steps that mend it, and the database's own words."""
    file = str(error.database)
    away = shlex.quote(str(error.database.parent / "damaged"))
    problem(
        "The store can't be used",
        [
            "Kept: every run, in its bundle. Lost: names, notes, tags and pins. Nothing was changed.",
            f"1. Stop the dashboard. 2. Move {error.database.name} and its log away, with the command below. 3. Start "
            "the dashboard again: it takes the runs in from their bundles. Then reload this page.",
        ],
    )
    st.code(f"mkdir -p {away} && mv {shlex.quote(file)}* {away}/", language=None, width=720, wrap_lines=True)
    st.html(f'<div class="rs-note">The database says: {escape(error.cause)}</div>')


def _box(title: str, lines: list[str], style: str) -> None:
    body = "".join(f"<p>{escape(line)}</p>" for line in lines)
    st.html(f'<div class="rs-state{style}"><b>{escape(title)}</b>{body}</div>')


def note(message: str) -> None:
    """Something to know that keeps nobody from going on; the message may quote what was entered."""
    st.html(f'<div class="rs-note rs-warn">{escape(message)}</div>')


def field_error(message: str) -> None:
    """What is wrong with something just entered, in its place; the message may quote what was entered."""
    st.html(f'<div class="rs-error" role="alert">{escape(message)}</div>')


def wrong(error: Exception | str) -> str:
    """An engine's message, cut before its last clause where that names a command or an option as the cure: a page says
    its own, a button, a link, or the command in a field to copy."""
    told, _, cure = str(error).rpartition("; ")
    return told if told and _COMMAND.search(cure) else str(error)
