"""URLs of databases: of a file, as drivers take them, and without what is secret in them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.core.errors import ConfigError

if TYPE_CHECKING:  # it loads where there is such a URL: most runs have none
    from sqlalchemy.engine import URL

_SECRET = re.compile(r"pass|pwd|secret|token|odbc_connect", re.IGNORECASE)
_OPTION = "study.storage"
_CURE = f"write {_OPTION}=postgresql://USER@HOST/NAME."


def of_file(path: Path) -> str:
    """Return the URL of a database in a file, whatever characters its path has."""
    from sqlalchemy.engine import URL

    return URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)


def file(url: str) -> Path | None:
    """Return the file of a database of SQLite; ``None`` of any other."""
    parsed = _parsed(url)
    if parsed is None or parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return None if parsed.database.startswith((":memory:", "file:")) else Path(parsed.database)


def checked(url: str) -> str:
    """Return a URL of the user's with its special characters escaped, as Optuna takes it.

    Raises:
        ConfigError: it is none, or one whose password might be taken for a host. The message says
            nothing of it, as it may hold the password anywhere.
    """
    if (parsed := _parsed(url)) is None:
        raise ConfigError(f"{_OPTION} is no URL of a database; {_CURE}")
    if _is_ambiguous(parsed):
        raise ConfigError(
            f"{_OPTION} has more than one @ before its host: write the @ of a password as %40, "
            "or leave the password out and set PGPASSWORD."
        )
    return parsed.render_as_string(hide_password=False)


def waiting(url: str, patience_s: int) -> dict[str, Any]:
    """Return options of an engine that gives up a database which accepts and never answers.

    Args:
        url: Of the database.
        patience_s: For how long it is waited for; libpq waits 2 s at least, and for 0 without end.
    """
    parsed = _parsed(url)
    if parsed is None or parsed.get_backend_name() != "postgresql":
        return {}
    if "connect_timeout" in parsed.query or "psycopg" not in parsed.get_driver_name():
        return {}
    return {"connect_args": {"connect_timeout": max(2, patience_s)}}


def public(text: str) -> str:
    """Return a text that may be written into files: of a URL, without what is secret in it."""
    if "://" not in text:
        return text
    if (parsed := _parsed(text)) is None or _is_ambiguous(parsed):
        return re.sub(r"://.*@", "://", text, flags=re.DOTALL)
    secret = [name for name in parsed.query if _SECRET.search(name)]
    if parsed.password is None and not secret:
        return text
    shown = parsed._replace(password=None).difference_update_query(secret)
    return shown.render_as_string(hide_password=False)


def public_arguments(arguments: Sequence[str]) -> list[str]:
    """Return arguments that may be written into files."""
    return [_public_argument(*argument.partition("=")) for argument in arguments]


def _public_argument(key: str, sign: str, value: str) -> str:
    quote = value[:1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else ""
    return f"{key}{sign}{quote}{public(value.strip(quote) if quote else value)}{quote}"


def public_config(content: Any) -> Any:
    """Return a configuration of plain types that may be written into files."""
    if isinstance(content, dict):
        return {key: public_config(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [public_config(value) for value in content]
    return public(content) if isinstance(content, str) else content


def _parsed(url: str) -> "URL | None":
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def _is_ambiguous(url: "URL") -> bool:
    return bool(url.host) and "@" in f"{url.host}{url.database}"
