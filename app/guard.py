"""Who may enter: everybody on a loopback address; elsewhere only with a login configured, and logged in."""

from __future__ import annotations

import ipaddress

import streamlit as st
from streamlit import auth_util

from routesparse.app import states


def may_enter() -> bool:
    """Whether to draw the dashboard; what to do instead is on the page when not."""
    address = st.get_option("server.address")
    if is_loopback(address):
        return True
    if not auth_util.get_secrets_auth_section():
        states.problem(
            "This dashboard is reachable by others and has no login",
            [
                f"It is bound to {address or 'all addresses'}, so everybody who reaches this machine could read the "
                "prompts. Nothing is shown until that changes.",
                'Bind it to this machine alone with --server.address 127.0.0.1 (or "localhost"), or configure a '
                "login: an [auth] section in .streamlit/secrets.toml, as Streamlit's st.login describes.",
            ],
        )
        return False
    if not st.user.is_logged_in:
        states.empty("Please log in", ["This dashboard is shared; its runs are shown after the login."])
        st.button("Log in", type="primary", on_click=st.login)
        return False
    return True


def is_loopback(address: str | None) -> bool:
    """Whether only this machine reaches the address; an unset one means all of them."""
    if not address:
        return False
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False
