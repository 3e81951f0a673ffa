"""Who may enter: whoever has logged in, where a login is configured; without one, everybody on a loopback address."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import streamlit as st
from streamlit import auth_util
from streamlit.errors import StreamlitAuthError

from routesparse.app.shell import identity
from routesparse.app.ui import states

_SECRET_CHARACTERS = 32  # whoever guesses the secret can sign anybody's cookie


def may_enter() -> bool:
    """Whether to draw the dashboard; what to do instead is on the page when not."""
    problem = refusal()
    if problem is not None:
        states.problem("This dashboard has no working login", [problem])
        return False
    if not identity.login_configured():
        return True
    if not st.user.is_logged_in:
        states.empty("Please log in", ["This dashboard is shared; your runs are shown after the login."])
        st.button("Log in", type="primary", on_click=st.login)
        return False
    try:
        identity.owner()
    except identity.IdentityError as error:
        states.problem("This login can't be used", [str(error)])
        st.button("Log out", on_click=st.logout)
        return False
    return True


def refusal() -> str | None:
    """Why a dashboard with this configuration must not be served, and what to do; None when it may."""
    address = st.get_option("server.address")
    local = is_loopback(address)
    if local and not identity.login_configured():
        return None
    missing = _missing_login()
    if missing is None:
        return None
    if local:
        return f"{missing}; mend the [auth] section in .streamlit/secrets.toml, or remove it to use no login"
    return (
        f"the dashboard is bound to {address or 'all addresses'}, so that whoever reaches this machine could read the "
        f"prompts, and {missing}; bind it to this machine alone with --server.address 127.0.0.1, or configure a login: "
        "an [auth] section in .streamlit/secrets.toml, as Streamlit's st.login describes"
    )


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


def is_loopback_origin(origin: str, port: int) -> bool:
    """Whether a page's origin is this machine's at this port: "http://localhost:8501"."""
    try:
        parsed = urlsplit(origin)
        found = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
    except ValueError:
        return False
    return found == port and is_loopback(parsed.hostname)


def _missing_login() -> str | None:
    """What keeps people from logging in, or would let anybody in; None where nothing does."""
    try:
        section = auth_util.get_secrets_auth_section()
    except OSError as error:
        return f"secrets.toml can't be read ({error.strerror})"
    if not section:
        if identity.login_configured():
            return "secrets.toml can't be read, or its [auth] section is empty, gone or spelled otherwise"
        return "no login is configured"
    if not auth_util.is_authlib_installed():
        return "the login can't work without the package authlib"
    try:
        auth_util.validate_auth_credentials("default")
    except StreamlitAuthError as error:
        return f"the login can't work ({' '.join(str(error).split())})"
    if len(str(section["cookie_secret"])) < _SECRET_CHARACTERS:
        return f"the login's cookie_secret has fewer than {_SECRET_CHARACTERS} characters"
    return None
