"""Who is here: the owner of what a session sees and makes.

Without a login there is one person, and the owner is None. With one, the owner is what the identity provider promises
to keep: the issuer and its ``sub``, which OpenID Connect never gives to a second person. An e-mail address may change,
and be given to somebody else, so it counts only where a provider names no subject, and only a verified one. What is
stored is a digest. With a login configured everybody logs in, on a loopback address too: a proxy may stand before it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

import streamlit as st
from streamlit import auth_util

from routesparse.engine.errors import RouteSparseError


class IdentityError(RouteSparseError):
    """A login is configured, but this session has not logged in, or its provider does not say who it is."""


# Set when a login was once seen. A secrets file that is broken or cut short later must not turn visitors into the
# local person: the login then fails (guard.py), until the process is started again.
_seen = threading.Event()


def login_configured() -> bool:
    """Whether people of this dashboard log in: it then has owners, on loopback too (a proxy may stand before it).

    A secrets file that can't be read may hold a login, and an [auth] section is meant as one, however it is written.
    """
    if not _seen.is_set() and _mentions_login():
        _seen.set()
    return _seen.is_set()


def _mentions_login() -> bool:
    secrets = auth_util.secrets_singleton
    try:
        if secrets.load_if_toml_exists():
            return any(str(key).strip().lower() == "auth" for key in secrets)
        return any(Path(file).exists() for file in st.get_option("secrets.files"))
    except OSError:
        return True


def owner() -> str | None:
    """The owner of this session's runs and jobs; None without a login. Errors: IdentityError."""
    if not login_configured():
        return None
    claims = st.user.to_dict()
    if not claims.get("is_logged_in"):
        raise IdentityError("please log in; nothing is shown before")
    if claims.get("iss") and claims.get("sub"):
        return digest("sub", str(claims["iss"]), str(claims["sub"]))
    if claims.get("email") and claims.get("email_verified") is True:
        return digest("email", str(claims["email"]).lower())
    raise IdentityError(
        "the login provider names neither issuer and subject (iss, sub) nor a verified e-mail address, so runs "
        "can't be told apart by person; ask whoever set up the login for the scopes openid and email"
    )


def name() -> str:
    """What to call the person who logged in, for the page; never a key."""
    claims = st.user.to_dict()
    return str(claims.get("name") or claims.get("email") or "you")


def digest(*parts: str) -> str:
    """32 hex digits: the owner goes into bundles, which people hand on, and is not named there. No secret: whoever
    knows the issuer can try subjects.
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
