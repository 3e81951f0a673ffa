"""What the pages read of certificates: one row a certificate, and its claims by head, by layer and of the pass.

Column names are those of engine/certificate_rows.py; NULL (not measured) arrives as NaN or None.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import pandas as pd

from routesparse.engine.certificate_rows import CertificateRow, ClaimRow, NamedRow
from routesparse.engine.errors import InputError
from routesparse.engine.store import tables
from routesparse.engine.store.owner_view import OwnerView

_ALL = "SELECT c.* EXCLUDE (bundle_id, owner), p.* EXCLUDE (run_key, scope, batch_index, layer, head, worst_position)"
Kind = TypeVar("Kind")
_OF_ONE = "run_key = (SELECT run_key FROM certificate WHERE run_id = ?)"
_PASS = "FROM certificate c JOIN claim p ON p.run_key = c.run_key AND p.scope = 'pass'"


def certificates(store: OwnerView) -> pd.DataFrame:
    """All certificates, newest first, each with what it claims of the whole pass."""
    return _without_key(store.frame(f"{_ALL} {_PASS} ORDER BY created_at DESC, c.run_key DESC"))


def of_same_prompt(store: OwnerView, run_id: str) -> pd.DataFrame:
    """The certificates of a run's prompt and weights, newest first, as ``certificates`` has them; ``same_router``:
    whether our router was certified with that run's settings, break-even and seed aside."""
    found = _without_key(
        store.frame(
            f"{_ALL}, r.config_json AS run_config {_PASS} JOIN run r ON r.prompt_sha256 = c.prompt_sha256 "
            "AND r.model_revision = c.model_revision WHERE r.run_id = ? ORDER BY c.created_at DESC, c.run_key DESC",
            [run_id],
        )
    )
    pairs = zip(found["config_json"], found.pop("run_config"), strict=True)
    return found.assign(
        same_router=[
            _router(json.loads(mine).get("router")) == _router(json.loads(run)) for mine, run in pairs
        ]
    )


def certificate(store: OwnerView, certificate_id: str) -> CertificateRow | None:
    """One certificate by its full id; None if it isn't stored."""
    found = _records(store, CertificateRow, "certificate", "run_id = ?", certificate_id)
    return found[0] if found else None


def claims(store: OwnerView, certificate_id: str, scope: str) -> pd.DataFrame:
    """The claims of a scope: "pass" (one row), "layer" or "head", by layer and head."""
    return _without_key(
        store.frame(
            "SELECT l.* FROM claim l JOIN certificate c USING (run_key) WHERE c.run_id = ? AND l.scope = ? "
            "ORDER BY l.layer, l.head, l.batch_index",
            [certificate_id, scope],
        )
    )


def whole(store: OwnerView, certificate_id: str) -> ClaimRow | None:
    """What is claimed of the whole pass; None for a certificate that isn't stored."""
    found = _records(store, ClaimRow, "claim", f"scope = 'pass' AND {_OF_ONE}", certificate_id)
    return found[0] if found else None


def named_rows(store: OwnerView, certificate_id: str) -> list[NamedRow]:
    """The tokens that somebody named, by label and position; none where nothing was named."""
    where = f"{_OF_ONE} ORDER BY label, position, batch_index"
    return _records(store, NamedRow, "named_row", where, certificate_id)


def _records(store: OwnerView, kind: type[Kind], table: str, where: str, certificate_id: str) -> list[Kind]:
    """Rows of a table as its record class."""
    names = [name for name in tables.arrow_schema(table).names if name != "run_id"]
    columns = ", ".join(f'"{name}"' for name in names)
    found = store.rows(f"SELECT {columns} FROM {table} WHERE {where}", [certificate_id])
    make: Any = kind
    return [make(run_id=certificate_id, **dict(zip(names, row, strict=True))) for row in found]


def newest(store: OwnerView) -> str | None:
    """The id of the newest certificate; None if there is none."""
    found = store.rows("SELECT run_id FROM certificate ORDER BY created_at DESC, run_key DESC LIMIT 1")
    return found[0][0] if found else None


def resolve(store: OwnerView, text: str) -> str | None:
    """The certificate that a link means: its id, or the end or beginning of it, of 4 characters or more; None: none.

    Errors: InputError when several are meant.
    """
    found = store.rows(
        "SELECT run_id FROM certificate WHERE starts_with(run_id, $1) OR ends_with(run_id, $1) "
        "ORDER BY run_id LIMIT 6",
        [text],
    )
    ids = [row[0] for row in found]
    if text in ids:
        return text
    if len(ids) > 1 and len(text) >= 4:
        raise InputError(f"certificate {text!r} could be any of {', '.join(ids)}; use more of the id")
    return str(ids[0]) if ids and len(text) >= 4 else None


def _router(config: Any) -> Any:
    """A router's settings that decide what is read."""
    if not isinstance(config, dict):
        return None
    aside = ("break_even_tokens", "seed", "served", "cached_tokens")
    return {name: value for name, value in config.items() if name not in aside}


def _without_key(found: pd.DataFrame) -> pd.DataFrame:
    return found.drop(columns="run_key")
