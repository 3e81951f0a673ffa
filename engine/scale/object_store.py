"""Where a lake's rows lie in an object store instead of the shared folder: ROUTESPARSE_LAKE, an address s3://BUCKET/FOLDER.

Bundles, spool and trash stay in the shared folder: they are moved by renaming, which an object store has no word for.
Credentials are read from the variables that AWS's own tools read, and leave this process in requests alone.
"""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from routesparse.engine.errors import ConfigError

EXTENSION = "httpfs"
_ADDRESS = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)+/?")


def folder(address: str) -> str:
    """The address with the slash that ends a folder. Errors: ConfigError."""
    if not _ADDRESS.fullmatch(address):
        raise ConfigError(
            "ROUTESPARSE_LAKE must be s3://BUCKET/FOLDER, with a folder that no other lake uses, or not set; it is "
            "written otherwise"
        )
    return address.rstrip("/") + "/"


def secret(address: str) -> str:
    """SQL that lets this process read and write below ``address``. Errors: ConfigError for a missing variable."""
    values = {"TYPE": "s3", "SCOPE": _quoted(address)}
    for option, names in (
        ("KEY_ID", ("AWS_ACCESS_KEY_ID",)),
        ("SECRET", ("AWS_SECRET_ACCESS_KEY",)),
        ("SESSION_TOKEN", ("AWS_SESSION_TOKEN",)),
        ("REGION", ("AWS_REGION", "AWS_DEFAULT_REGION")),
    ):
        found = next((os.environ[name] for name in names if os.environ.get(name)), None)
        if found:
            values[option] = _quoted(found)
        elif option in ("KEY_ID", "SECRET"):
            raise ConfigError(
                f"ROUTESPARSE_LAKE is set and {names[0]} is not; set it to the object store's key"
            )
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError("AWS_ENDPOINT_URL must begin with http:// or https:// and name a host")
        values |= {
            "ENDPOINT": _quoted(parts.netloc + parts.path.rstrip("/")),
            "URL_STYLE": "'path'",
            "USE_SSL": str(parts.scheme == "https").lower(),
        }
    told = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"CREATE SECRET object_store ({told})"


def failed(text: str) -> str | None:
    """What an error of the object store means, and what to do; None where it is another's, or of one file of rows."""
    if "s3://" not in text and "HTTP" not in text:
        return None
    if "HTTP 404" in text and ".parquet" in text:
        return None  # a file of the lake is gone: store_errors.damaged_in_lake names it
    for mark, meaning in (
        ("Could not connect", "can't be reached"),
        ("Could not resolve", "can't be reached"),
        ("HTTP 403", "refuses the credentials"),
        ("HTTP 404", "has no such bucket or file"),
    ):
        if mark in text:
            return f"the object store {meaning}; check ROUTESPARSE_LAKE and the variables AWS_..."
    return None


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
