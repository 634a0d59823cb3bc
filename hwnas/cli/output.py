"""Printed results: lines, tables, files, and JSON documents."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from rich.console import Console
from rich.text import Text

from hwnas.core import database
from hwnas.core.errors import printable

if TYPE_CHECKING:
    from rich.table import Table

    from hwnas.core.run_folder import Row, RunFolder
    from hwnas.workflows.result_folders import FolderResult


@dataclass(frozen=True)
class Display:
    """Options of the printed output, which are not recorded in runs."""

    everything: bool = False  #: ``--all``: members that are not on the front, too
    as_json: bool = False  #: ``json=true``: one JSON document on stdout


#: The options of the running command.
DISPLAY: ContextVar[Display] = ContextVar("DISPLAY", default=Display())  # noqa: B039


@final
class Terminal(Console):
    """A console that escapes control characters of names and texts, as they are in files."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its styles, and with control characters escaped."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Leave the error to ``main``, which has an exit code for it."""
        raise


def print_lines(console: Console, lines: Sequence[str], style: str | None = None) -> None:
    """Print lines, in a terminal wrapped between words; empty lines are left out."""
    for line in filter(None, lines):
        wrapped = _wrap(line, console.width) if console.is_terminal else line
        console.print(wrapped, style=style, highlight=False, markup=False, soft_wrap=True)


_LABEL = re.compile(r" *(?:\w+ {2,})?")  # before the text of a line


_COMMAND = re.compile(r"  (hwnas|open) ")  # is copied whole


def _wrap(line: str, width: int) -> str:
    """Return a line wrapped between words, with the indentation of its text."""
    label = _LABEL.match(line)
    if label is None or _COMMAND.match(line):
        return line
    indent = " " * (label.end() or 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_json(row: Row) -> None:
    """Print a result as one JSON document on stdout; NaN and infinity become ``null``."""
    sys.stdout.write(json.dumps(_json_value(row), indent=1, ensure_ascii=False) + "\n")


def _json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def folder_row(result: FolderResult) -> Row:
    """Return a result for JSON, with the keys ``path``, ``messages``, ``files`` and ``tables``."""
    return {
        "path": result.path,
        "messages": result.messages,
        "files": result.files,
        "tables": result.rows,
    }


def print_result(
    console: Console, result: FolderResult, table: Callable[[FolderResult], Table] | None = None
) -> None:
    """Print the messages and files of a result, after ``table(result)`` if that has rows."""
    if table is not None and (rows := table(result)).row_count:
        console.print(rows)
    page = f"Open in a browser: {result.path / 'report.html'}" * ("report.html" in result.files)
    files = f"Files in {result.path}: {' '.join(result.files)}"
    print_lines(console, [*result.messages, files, page])


def stored_option(storage: str | None) -> str:
    """Return a space and ``study.storage=URL``, to append to a command; ``""`` for ``None``.

    Commands need it to find the study again: they do not take the URL from the run folder. The URL
    has no password.
    """
    if storage is None:
        return ""
    return f" {shlex.quote(f'study.storage={database.redact(storage)}')}"


def print_files(
    console: Console, storage: str | None, folder: RunFolder, names: Sequence[str]
) -> None:
    """Print the files of a search that exist, and the next commands.

    Args:
        console: The console.
        storage: URL of the study's database; ``None``: a file in the folder.
        folder: The run folder.
        names: Names of files, which may have text after a space.
    """
    run, study = str(folder.path), database.redact(storage or database.sqlite_url(folder.study))
    existing = [name for name in names if (folder.path / name.partition(" ")[0]).exists()]
    page = (
        [f"Open in a browser: {folder.path / 'report.html'}"] if "report.html" in existing else []
    )
    stored = stored_option(storage)
    commands = {
        f"hwnas why {shlex.quote(f'run={run}')} id=front{stored}": "why these networks",
        f"hwnas compare {shlex.quote(f'runs=[{run}, OTHER]')}{stored}": "with another run",
        f"optuna-dashboard {shlex.quote(study)}": "all trials; pip install optuna-dashboard",
    }
    lines = [
        *page,
        f"Files in {run}: {' '.join(existing)}",
        "To go on:",
        *(f"  {command}  # {description}" for command, description in commands.items()),
    ]
    print_lines(console, lines)
