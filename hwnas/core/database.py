"""Database URLs: creation, validation and removal of secrets."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.core.errors import ConfigError

if TYPE_CHECKING:  # most runs have no database URL and need not load sqlalchemy
    from sqlalchemy.engine import URL

_SECRET = re.compile(r"pass|pwd|secret|token|odbc_connect", re.IGNORECASE)
_OPTION = "study.storage"
_FIX = f"write {_OPTION}=postgresql://USER@HOST/NAME."


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file; special characters in the path are escaped."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def sqlite_file(url: str) -> Path | None:
    """Return the path of the file that an SQLite URL names.

    ``None`` for databases in memory, SQLite ``file:`` URIs, other databases and invalid URLs.
    """
    parsed = _parse(url)
    if parsed is None or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return None if parsed.database.startswith((":memory:", "file:")) else Path(parsed.database)


def check_storage_url(url: str) -> str:
    """Return the URL of ``study.storage`` with special characters escaped, as Optuna expects it.

    Raises:
        ConfigError: if it is not a database URL, or has an unescaped ``@`` before its host. The
            message does not quote the URL, which may contain a password.
    """
    if (parsed := _parse(url)) is None:
        raise ConfigError(f"{_OPTION} is not a database URL; {_FIX}")
    if _is_ambiguous(parsed):
        raise ConfigError(
            f"{_OPTION} has more than one @ before its host: write the @ of a password as %40, "
            "or leave the password out and set PGPASSWORD."
        )
    return parsed.render_as_string(hide_password=False)


def connect_options(url: str, timeout_s: int) -> dict[str, Any]:
    """Return SQLAlchemy engine options that limit the time to connect to PostgreSQL.

    They are empty for other databases, for other drivers than psycopg and psycopg2, and if the URL
    has a ``connect_timeout`` of its own.

    Args:
        url: URL of the database.
        timeout_s: Seconds before connecting fails; at least 2 are used.
    """
    parsed = _parse(url)
    if parsed is None or parsed.get_backend_name() != "postgresql":
        return {}
    if "connect_timeout" in parsed.query or "psycopg" not in parsed.get_driver_name():
        return {}
    return {"connect_args": {"connect_timeout": max(2, timeout_s)}}


def redact(text: str) -> str:
    """Return a URL without its password and secret query parameters.

    Texts without ``://`` are unchanged. Of a URL that is invalid or has an unescaped ``@`` in its
    password, all between ``://`` and the last ``@`` is removed.
    """
    if "://" not in text:
        return text
    if (parsed := _parse(text)) is None or _is_ambiguous(parsed):
        return re.sub(r"://.*@", "://", text, flags=re.DOTALL)
    secret = [name for name in parsed.query if _SECRET.search(name)]
    if parsed.password is None and not secret:
        return text
    shown = parsed._replace(password=None).difference_update_query(secret)
    return shown.render_as_string(hide_password=False)


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Return ``OPTION=VALUE`` arguments without passwords in values, see :func:`redact`."""
    return [_redact_argument(*argument.partition("=")) for argument in arguments]


def _redact_argument(key: str, sign: str, value: str) -> str:
    quote = value[:1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else ""
    return f"{key}{sign}{quote}{redact(value.strip(quote) if quote else value)}{quote}"


def redact_config(content: Any) -> Any:
    """Return a copy of nested dicts and lists without passwords in URLs, see :func:`redact`."""
    if isinstance(content, dict):
        return {key: redact_config(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [redact_config(value) for value in content]
    return redact(content) if isinstance(content, str) else content


def _parse(url: str) -> "URL | None":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def _is_ambiguous(url: "URL") -> bool:
    return bool(url.host) and "@" in f"{url.host}{url.database}"
