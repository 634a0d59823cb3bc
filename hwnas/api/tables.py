"""Tables for notebooks."""

import html
from collections.abc import Iterable

import pyarrow as pa

_SHOWN = 12  # rows of a table in a notebook


def html_table(table: pa.Table) -> str:
    """Return the first rows of a table as HTML."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
    rows = [
        "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values())
        for row in table.slice(0, _SHOWN).to_pylist()
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    left = table.num_rows - _SHOWN
    more = f"<p>{left} more rows</p>" if left > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"


def html_lines(lines: Iterable[str]) -> str:
    """Return sentences as HTML, a paragraph each."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
