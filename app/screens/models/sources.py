"""Where models come from: a folder or GGUF file put into the models folder, an upload, or the hub's cache."""

from __future__ import annotations

import shlex

import streamlit as st

from routesparse.app.shell import identity
from routesparse.app.ui import elements, states
from routesparse.engine import paths
from routesparse.engine.errors import InputError
from routesparse.engine.models import gguf
from routesparse.engine.models.files import HUB_ID, adopt, downloaded, folders


def card() -> None:
    """Draw the card; the page opens no folder but the models folder, and asks no network."""
    st.html('<div class="rs-h">Add a model</div>')
    place = shlex.quote(str(paths.models()))
    elements.note(
        "A folder or a GGUF file: link or copy it into the models folder, then reload. The page opens no other "
        "folder; ROUTESPARSE_HOME moves it."
    )
    st.code(f"mkdir -p {place} && ln -s /path/to/model {place}/", language=None, wrap_lines=True)
    if identity.owner() is None:  # behind a login the models folder is the operator's
        st.file_uploader(
            "Or drop a GGUF file here",
            type=["gguf"],
            key="gguf-file",
            on_change=_keep,
            help=f"It is copied into the models folder. One of more than {st.get_option('server.maxUploadSize')} MB: "
            "link it there, or start the dashboard with STREAMLIT_SERVER_MAX_UPLOAD_SIZE=2048 (MB), which a page then "
            "holds in memory.",
        )
    wanted = st.text_input(
        "A hub id",
        key="hub-id",
        placeholder="org/name",
        help="Of a model on the Hugging Face hub: where it is downloaded on this machine, a button adds it; where not, "
        "the command is shown that downloads it. The page itself asks no network.",
    ).strip()
    try:
        cached = downloaded()
    except InputError as error:
        states.field_error(f"{error}.")
        return
    if wanted and not HUB_ID.fullmatch(wanted):
        states.field_error(f"{wanted[:80]!r} is not a hub id; write it as org/name.")
    elif wanted and wanted not in cached:
        states.note(
            f"{wanted} is not on this machine. Download it with the command below, which needs the network, then "
            "reload; offline, copy its folder from a machine that has it."
        )
        st.code(f"hf download {shlex.quote(wanted)}", language=None, wrap_lines=True)
    elif wanted:
        st.button("Add it", key="add-typed", on_click=_add, args=(wanted,))
    there = folders()
    waiting = [name for name in cached if name.replace("/", "--") not in there and name != wanted]
    if waiting:
        elements.note("Downloaded on this machine already:")
    for name in waiting:
        st.button(f"Add {name}", key=f"add-{name}", on_click=_add, args=(name,))
    for problem in st.session_state.pop("add-problems", []):
        states.field_error(f"{problem}.")


def _keep() -> None:
    """Put what was uploaded into the models folder, whole or not at all."""
    uploaded = st.session_state["gguf-file"]
    if uploaded is None:
        return
    try:
        st.session_state["added-model"] = gguf.keep(uploaded.name, uploaded)
    except InputError as error:
        st.session_state["add-problems"] = [str(error)]


def _add(hub_id: str) -> None:
    try:
        st.session_state["added-model"] = adopt(hub_id)
    except InputError as error:
        st.session_state["add-problems"] = [str(error)]
