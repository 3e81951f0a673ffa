"""The store's file can't be read: what is lost and kept, the steps that mend it, and the database's own words last."""

from __future__ import annotations

import shlex
from html import escape

import streamlit as st

from routesparse.engine.errors import StoreDamagedError


def draw(error: StoreDamagedError) -> None:
    """The box, with the command that moves the file away."""
    file = str(error.database)
    away = shlex.quote(str(error.database.parent / "damaged"))
    steps = (
        "Stop the dashboard.",
        f"Move {error.database.name} and its log away, with the command below.",
        "Start the dashboard again: it takes the runs in from their bundles. Then reload this page.",
    )
    listed = "".join(f"<li>{escape(step)}</li>" for step in steps)
    st.html(
        '<div class="rs-state bad"><b>The store can\'t be used</b><p><b>Kept: every run, in its bundle. Lost: names, '
        f"notes, tags and pins.</b> Nothing was changed.</p><ol>{listed}</ol></div>"
    )
    st.code(f"mkdir -p {away} && mv {shlex.quote(file)}* {away}/", language=None, width=720, wrap_lines=True)
    st.html(f'<div class="rs-note">The database says: {escape(error.cause)}</div>')
