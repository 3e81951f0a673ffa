"""Errors of a page end here, as words on the page: what happened, what was kept, what to do; never a prompt's text.

Pages are drawn inside one boundary (main.py), timed fragments inside their own: Streamlit runs them again without the
page around them.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from routesparse.app.ui import states
from routesparse.engine import paths
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.jobs.log import JobLog, frames


@contextmanager
def boundary(what: str, page: str, advice: str) -> Iterator[None]:
    """Say "``what`` can't be drawn" where the block fails, and log the errors that are not ours."""
    try:
        yield
    except RouteSparseError as error:
        states.problem(
            f"{what} can't be drawn", [str(error), "The stored runs are unchanged. Reload the page."]
        )
    # The error's own message stays out of page and log: it may quote a prompt.
    except Exception as error:  # noqa: BLE001
        states.problem(
            f"{what} can't be drawn",
            [
                f"An unexpected {type(error).__name__} happened; logs/worker.jsonl says where, under id "
                f"{_log(error, page)}. Please report it with that entry.",
                f"The stored runs are unchanged. {advice}",
            ],
        )


def timed(function: Callable[..., None], every: float | None) -> Callable[..., None]:
    """A fragment that is drawn again every so many seconds (None: never); after an error it is tried again."""

    @functools.wraps(function)
    def guarded(*arguments: Any) -> None:
        page = function.__module__.split(".")[-2:][0]  # "__main__" of the script that Streamlit runs
        with boundary("This part of the page", page, "It is tried again by itself."):
            function(*arguments)

    return st.fragment(guarded, run_every=every)


def _log(error: Exception, page: str) -> str:
    """The id of the error's line in the log; a fragment that fails every second writes one line a session."""
    failure = (page, type(error).__name__, *frames(error))
    known: dict[tuple[str, ...], str] = st.session_state.setdefault("failures", {})
    if failure not in known:
        known[failure] = secrets.token_hex(4)
        JobLog(paths.home(), "web").write(
            "page_failed", page=page, log_id=known[failure], error=failure[1], frames=failure[2:]
        )
    return known[failure]
