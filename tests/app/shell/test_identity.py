"""Who the owner of a session is, and who may enter where a login is configured. No GPU, no browser."""

from __future__ import annotations

import pytest
from streamlit import config
from streamlit.runtime.secrets import Secrets

from routesparse.app.shell import guard, identity
from tests.app.conftest import LOGIN

ISSUER = "https://login.example"
ANN = {"is_logged_in": True, "iss": ISSUER, "sub": "4711", "email": "ann@example.org", "name": "<b>Ann</b>"}


def owner_of(login, monkeypatch, claims):
    login()
    monkeypatch.setattr(identity.st, "user", type("User", (), {"to_dict": staticmethod(lambda: claims)}))
    return identity.owner()


def test_without_a_login_there_is_one_person(monkeypatch):
    monkeypatch.setattr(identity.auth_util, "secrets_singleton", Secrets())
    monkeypatch.setattr(identity.st, "get_option", lambda _: [])
    assert identity.owner() is None


def test_issuer_and_subject_are_the_identity_and_nothing_else_is(login, monkeypatch):
    known = owner_of(login, monkeypatch, ANN)
    assert len(known) == 32 and int(known, 16)
    assert owner_of(login, monkeypatch, {**ANN, "email": "new@example.org", "name": "Ann B."}) == known
    for other in ({"sub": "4712"}, {"iss": "https://other.example"}):
        assert owner_of(login, monkeypatch, {**ANN, **other}) != known
    # Parts that only meet when joined don't collide.
    assert owner_of(login, monkeypatch, {**ANN, "iss": ISSUER + "4", "sub": "711"}) != known


def test_address_counts_only_without_a_subject_and_verified(login, monkeypatch):
    plain = {"is_logged_in": True, "email": "Ann@example.org", "email_verified": True}
    known = owner_of(login, monkeypatch, plain)
    assert owner_of(login, monkeypatch, {**plain, "email": "ann@example.org"}) == known
    assert owner_of(login, monkeypatch, {**ANN, "email_verified": True}) != known


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {**ANN, "is_logged_in": False},
        {"is_logged_in": True},
        {"is_logged_in": True, "sub": "4711"},
        {"is_logged_in": True, "email": "ann@example.org"},
        {"is_logged_in": True, "email": "ann@example.org", "email_verified": False},
        {"is_logged_in": True, "email": "ann@example.org", "email_verified": "false"},
    ],
)
def test_nobody_becomes_the_local_person_by_saying_nothing(login, monkeypatch, claims):
    with pytest.raises(identity.IdentityError):
        owner_of(login, monkeypatch, claims)


def test_login_is_asked_for_on_loopback_too_where_it_is_configured(filled, login, open_dashboard):
    login()
    page = open_dashboard({"is_logged_in": False})
    assert not page.exception and not page.dataframe
    assert "Please log in" in page.told
    assert [button.label for button in page.button] == ["Log in"]


def test_login_without_an_identity_is_told_why(filled, login, open_dashboard):
    login()
    page = open_dashboard({"is_logged_in": True, "email": "ann@example.org"})
    assert not page.exception and not page.dataframe
    assert "names neither issuer and subject" in page.told
    assert [button.label for button in page.button] == ["Log out"]


def test_half_a_login_is_no_open_door_on_loopback(filled, login, open_dashboard):
    login({"cookie_secret": "x"})
    page = open_dashboard(ANN)
    assert not page.exception and not page.dataframe
    assert "mend the [auth] section" in page.told


def test_whoever_logged_in_is_named_as_text_and_can_leave(filled, login, open_dashboard):
    login()
    page = open_dashboard(ANN)
    assert [text.value for text in page.sidebar.text] == ["<b>Ann</b>"]
    assert [button.label for button in page.sidebar.button] == ["Log out"]
    assert "No runs yet" in page.told, "the runs of the local person are not hers"


@pytest.fixture
def save(monkeypatch, tmp_path):
    """save(text): the only secrets file is saved, and read by Streamlit as after a change; None removes it."""
    file = tmp_path / "secrets.toml"
    option = config.get_option

    def asked(name):
        return {"secrets.files": [str(file)], "server.address": "127.0.0.1"}.get(name) or option(name)

    for place in (config, identity.st):
        monkeypatch.setattr(place, "get_option", asked)

    def write(text):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        monkeypatch.setattr(identity.auth_util, "secrets_singleton", Secrets())

    return write


@pytest.mark.parametrize("text", [None, "", "[database]\nuser = 'x'\n"], ids=["none", "empty", "others"])
def test_a_secrets_file_that_speaks_of_no_login_leaves_one_person(save, text):
    save(text)
    assert not identity.login_configured() and guard.refusal() is None


@pytest.mark.parametrize(
    "text",
    ["[auth]\n", "[auth]\noops = [\n", "[Auth]\nclient_id = 'x'\n", LOGIN + "oops = [\n", "[auth.google]\n"],
    ids=["no keys", "broken", "capital", "broken at the end", "a provider without keys"],
)
def test_a_login_that_is_meant_and_does_not_work_is_refused_on_loopback_too(save, text):
    save(text)
    assert "mend the [auth] section" in guard.refusal()


@pytest.mark.parametrize("later", [None, "", LOGIN + "oops = [\n"], ids=["removed", "cut short", "broken"])
def test_a_login_once_seen_is_asked_for_until_the_process_ends(save, later):
    save(LOGIN)
    assert guard.refusal() is None and identity.login_configured()
    save(later)
    assert guard.refusal() is not None
    with pytest.raises(identity.IdentityError):
        identity.owner()
