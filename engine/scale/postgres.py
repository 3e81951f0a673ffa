"""PostgreSQL as our environment variables name it, and the folder that `make ducklake` fills with what reaches it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from routesparse.engine.errors import ConfigError

FOLDER = Path(sys.prefix, "ducklake")  # DuckDB's extensions for the store, psycopg for the job queue
_PAIR = re.compile(r"\s*(\w+)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s']+)")
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


def words(address: str, prefix: str, variable: str) -> str:
    """PostgreSQL's key=value words of an address that begins with a prefix, as an environment variable holds it.

    Errors: ConfigError, without what may be a password.
    """
    if not address.startswith(prefix):
        raise ConfigError(
            f"{variable} must be {prefix}host=HOST dbname=NAME user=NAME, or not set; it begins otherwise"
        )
    found = address.removeprefix(prefix)
    pairs = list(_PAIR.finditer(found))
    if not pairs or _PAIR.sub("", found).strip():
        raise ConfigError(
            f"what follows {prefix} in {variable} must be words such as host=HOST dbname=NAME user=NAME"
        )
    if any(pair[1] in _SECRETS for pair in pairs):
        raise ConfigError(
            f"{variable} holds a password or a key, which messages could show; put a password into ~/.pgpass or "
            "PGPASSWORD, a key into a section of ~/.pg_service.conf and service=SECTION here"
        )
    return found.strip()
