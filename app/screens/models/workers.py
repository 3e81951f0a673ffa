"""Where a job would run: the workers that live, their devices, and how to start one more or one on a GPU host."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import jobs_view
from routesparse.app.ui import elements, numbers, states
from routesparse.engine import paths
from routesparse.engine.jobs.job import WorkerSeen


def memory_bytes() -> int:
    """All memory of this machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def card(alive: list[WorkerSeen]) -> None:
    """The live workers, and how to start others."""
    if not alive:
        elements.note(
            "A worker runs on this machine, or on each host that shares its queue. None has "
            "reported lately, so the device is not known."
        )
    for worker in alive:
        device = worker.device
        what = "device not known yet"
        if device is not None:
            kind, size = "GPU" if device.on_gpu else "CPU", numbers.size(device.memory_bytes)
            what = f"{kind} {numbers.device(device.name)}, {size}, {device.dtype}"
        st.html(f'<div><b>{escape(what)}</b> <span class="rs-note">worker {escape(worker.id)}</span></div>')
    if len(alive) > 1:
        elements.note("A job runs on the first of them that is free.")
    with st.expander("Start another worker", key="another-worker"):
        elements.note("On this machine, such as for its second GPU:")
        st.code(
            f"CUDA_VISIBLE_DEVICES=1 {states.here(jobs_view.START_WORKER)}", language=None, wrap_lines=True
        )
        if paths.queue() is not None:
            st.html(
                '<div class="rs-note">On another host, such as one with a GPU: the same command, with that host’s own '
                "<code>ROUTESPARSE_HOME</code> and with this dashboard’s <code>ROUTESPARSE_QUEUE</code> and "
                "<code>ROUTESPARSE_SHARED</code>.</div>"
            )
            return
        elements.note(
            "On a GPU host, run the dashboard and its worker there, and look at it from here. The "
            "queue is a file that two machines can’t write at once, not even in a shared folder."
        )
        st.code(
            "ssh -L 8501:127.0.0.1:8501 GPU_HOST 'cd routesparse && make run'", language=None, wrap_lines=True
        )
