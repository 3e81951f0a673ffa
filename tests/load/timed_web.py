"""The dashboard with its pages timed from within: ``python timed_web.py FILE [options of routesparse.app]``.

For each page drawn, one JSON line in FILE: the seconds of every query that it asked of the store, the seconds that its
script took, and the CPU seconds of its own thread among them. A query's time is what the page waits for it, waiting
for Python's lock included: query and page run in one process with every other reader's.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from streamlit.navigation.page import StreamlitPage

from routesparse.app.__main__ import main
from routesparse.engine.store.owner_view import OwnerView

_drawing = threading.local()


def timed_query(read: Callable[..., Any]) -> Callable[..., Any]:
    """A read of the store whose seconds are noted for the page that asks; nothing where no page does."""

    @functools.wraps(read)
    def timed(*arguments: Any, **options: Any) -> Any:
        noted = getattr(_drawing, "queries", None)
        if noted is None:
            return read(*arguments, **options)
        began = time.perf_counter()
        try:
            return read(*arguments, **options)
        finally:
            noted.append(time.perf_counter() - began)

    return timed


def timed_page(run: Callable[[StreamlitPage], None], descriptor: int) -> Callable[[StreamlitPage], None]:
    """A page's script that writes its line when it ends, however it ends."""

    @functools.wraps(run)
    def timed(page: StreamlitPage) -> None:
        _drawing.queries = queries = []
        began, cpu = time.perf_counter(), time.thread_time()
        try:
            run(page)
        finally:
            _drawing.queries = None
            told = {
                "page": page.url_path,
                "queries": [round(seconds, 6) for seconds in queries],
                "script_s": time.perf_counter() - began,
                "cpu_s": time.thread_time() - cpu,
            }
            os.write(descriptor, f"{json.dumps(told)}\n".encode())

    return timed


if __name__ == "__main__":
    file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    OwnerView.frame = timed_query(OwnerView.frame)  # type: ignore[method-assign]
    OwnerView.rows = timed_query(OwnerView.rows)  # type: ignore[method-assign]
    StreamlitPage.run = timed_page(StreamlitPage.run, file)  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
