"""Renders a report page as one self-contained interactive HTML file without network access.

Plots are plain JavaScript on canvases (``assets/``), fast for 100,000 points. Numbers are typed
arrays, see ``data``.
"""

import base64
import hashlib
import html
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hwnas.analysis.page import data as view
from hwnas.analysis.page.data import (
    DecisionRow,
    FrontExplorer,
    Page,
    PageTable,
    ResultRow,
    ResultSection,
    SvgFigure,
    VerdictSection,
)
from hwnas.core.errors import counted

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    "data.js", "elements.js", "beside.js", "scatter.js", "parallel.js", "preferences.js",
    "members.js", "tables.js", "page.js"
)  # fmt: skip
_MAX_LOG = 3_000  # lines
_MAX_OPEN = 12  # rows of a table that is open at first
#: Insertion point of ``with_section``.
_LATER = "<!-- further sections -->"


def render(page: Page) -> str:
    """Return the page as one self-contained HTML document."""
    script = "(() => {\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    style = _asset("page.css")
    n_runs = sum(len(explorer.runs) for explorer in page.explorers)
    parts = [
        f"<h1>{html.escape(page.title)}</h1>",
        *map(_result, page.results),
        "" if page.verdict is None else _verdict(page.verdict),
        _findings(page.findings),
        "<noscript><p>The plots of this page need JavaScript.</p></noscript>",
        *(_explorer(explorer, n_runs) for explorer in page.explorers),
        _fold("How to read this page", "".join(map(_note, page.notes))) if page.notes else "",
        *_tables(page.tables),
        *map(_picture, page.pictures),
        _LATER,
        _log(page.log),
        _facts(page.facts),
    ]
    # The browser refuses all requests and all scripts but this one.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{_sha256(script)}'"
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(page.title)}</title>
<style>{style}</style></head><body>
{"".join(parts)}
<script>{script}</script>
</body></html>
"""


def with_section(page: str, key: str, section: str) -> str | None:
    """Return a rendered page with a section of HTML, in place of an earlier one with the same key.

    ``None`` if the page has no place for sections, as it was not written by ``render``.

    Args:
        page: HTML of the page.
        key: Name of the section, in comments of the page.
        section: HTML of the content of the section; not escaped.
    """
    start, end = f"<!-- {key} -->", f"<!-- end of {key} -->"
    before, marker, rest = page.partition(start)
    if marker:
        page = before + rest.partition(end)[2]
    if _LATER not in page:
        return None
    return page.replace(_LATER, f"{start}<section>{section}</section>{end}{_LATER}", 1)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>' if text else ""


def _fold(title: str, content: str, kind: str = "") -> str:
    """Return a section that is closed at first."""
    return (
        f'<section class="fold {kind}"><details><summary><h2>{html.escape(title)}</h2></summary>'
        f"{content}</details></section>"
    )


def _result(result: ResultSection) -> str:
    first, *rest = result.headline
    best = next((row for row in result.rows if row.is_recommended), None)
    actions = ""
    if best is not None:
        actions = f'<p class="actions">{_copy(best, "copy export command")} {_links(best)}</p>'
    tied = ""
    if result.tied:
        n = len(result.tied)
        noun = "network is" if n == 1 else "networks are"
        tied = (
            f"<details><summary>{n} more {noun} not significantly different from the front"
            f"</summary>{_result_table(result, result.tied)}</details>"
        )
    return (
        f'<section class="result"><h2>{html.escape(result.title)}</h2>'
        f'<div class="best"><p><b>{html.escape(first)}</b></p>'
        f"{''.join(map(_note, rest))}{actions}</div>"
        f'<table class="facts">{_fact_rows(result.facts)}</table>'
        f"<h3>Front: {counted(len(result.rows), 'network')}</h3>"
        f"{_result_table(result, result.rows)}{tied}</section>"
    )


def _verdict(verdict: VerdictSection) -> str:
    return (
        f'<section class="result"><h2>{html.escape(verdict.table.title)}</h2>'
        f'<div class="best"><p><b>{html.escape(verdict.sentence)}</b></p></div>'
        f"{_table_content(verdict.table)}</section>"
    )


def _result_table(result: ResultSection, rows: Sequence[ResultRow]) -> str:
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in result.columns[:-1])
    heads += f'<th class="left">{html.escape(result.columns[-1])}</th>'
    lines = "".join(
        f'<tr{" class=recommended" * row.is_recommended} title="{html.escape(row.architecture)}">'
        + f"<td>{html.escape(row.cells[0])} {_copy(row, 'copy')}</td>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row.cells[1:])
        + f'<td class="left">{_links(row)}</td></tr>'
        for row in rows
    )
    return (
        f'<div class="scroll"><table class="front"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _copy(row: ResultRow, text: str) -> str:
    command = html.escape(row.command)
    attributes = f'type="button" data-copy="{command}" title="{command}"'
    return f"<button {attributes}>{text}</button>"


def _links(row: ResultRow) -> str:
    return " ".join(
        f'<a href="{html.escape(quote(address))}">{html.escape(name)}</a>'
        for address, name in row.files
    )


def _findings(sentences: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    if not items:
        return ""
    return f'<section><h2>Findings</h2><ul class="findings">{items}</ul></section>'


def _explorer(explorer: FrontExplorer, n_runs: int) -> str:
    notes = "".join(map(_note, explorer.notes))
    address, text = map(html.escape, explorer.link)
    link = f'<p class="note"><a href="{address}">{text}</a></p>' if address else ""
    data = ""
    if any(run.points for run in explorer.runs):
        data = f'<script type="application/json">{_json(view.content(explorer, n_runs))}</script>'
    return (
        f'<section class="explorer"><h2>{html.escape(explorer.title)}</h2>{notes}{link}'
        f"{data}</section>"
    )


def _json(content: Any) -> str:
    """Return JSON that is safe in a script element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _tables(tables: Sequence[PageTable]) -> Iterator[str]:
    for group, members in itertools.groupby(tables, key=lambda table: table.group):
        if group:
            parts = (f"<h3>{html.escape(t.title)}</h3>{_table_content(t)}" for t in members)
            yield _fold(group, "".join(parts))
        else:
            yield from map(_table, members)


def _table(table: PageTable) -> str:
    content = _table_content(table)
    if table.is_folded or len(table.rows) > _MAX_OPEN:
        return _fold(table.title, content)
    return f"<section><h2>{html.escape(table.title)}</h2>{content}</section>"


def _table_content(table: PageTable) -> str:
    columns = [*zip(*table.rows, strict=True)] or [()] * len(table.columns)
    sides = [' class="left"' * any(map(_is_text, column)) for column in columns]
    heads = _cells("th", table.columns, sides)
    rows = "".join(f"<tr>{_cells('td', row, sides)}</tr>" for row in table.rows)
    kind = ' class="sorted"' * (len(table.rows) > 2)
    return (
        f"{_note(table.note)}"
        f'<div class="scroll"><table{kind}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cells(tag: str, texts: Sequence[str], sides: Sequence[str]) -> str:
    pairs = zip(texts, sides, strict=True)
    return "".join(f"<{tag}{side}>{html.escape(text)}</{tag}>" for text, side in pairs)


def _is_text(cell: str) -> bool:
    """Return whether a cell is text, not a number or a placeholder."""
    return cell[:1].isalpha()


def _picture(picture: SvgFigure) -> str:
    # As an image: scripts do not run, and ids do not collide.
    data = base64.b64encode(picture.svg.encode()).decode()
    title = html.escape(picture.title)
    content = f'{_note(picture.note)}<img alt="{title}" src="data:image/svg+xml;base64,{data}">'
    if picture.is_folded:
        return _fold(picture.title, content)
    return f"<section><h2>{title}</h2>{content}</section>"


def _log(lines: Sequence[DecisionRow]) -> str:
    if not lines:
        return ""
    left_out = len(lines) - _MAX_LOG
    note = (
        "Trials in order, with posterior figures at the end of the search ('why' has those at the "
        "time): changes of the front, rejected networks and results of verification."
    )
    if left_out > 0:
        note += f" The last {_MAX_LOG:,} of {len(lines):,} lines."
    kinds = "".join(
        f'<label><input type="checkbox" checked data-kind="{html.escape(kind)}"> '
        f"{html.escape(kind)}</label>"
        for kind in dict.fromkeys(line.kind for line in lines)
    )
    items = "".join(
        f'<li data-kind="{html.escape(line.kind)}"><b>{html.escape(line.when)}</b> '
        f"{html.escape(line.text)}</li>"
        for line in lines[-_MAX_LOG:]
    )
    content = f'{_note(note)}<div class="controls">{kinds}</div><ol class="lines">{items}</ol>'
    return _fold("Decision log", content, "log")


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    return _fold(
        "Run", f'<div class="scroll"><table class="facts">{_fact_rows(facts)}</table></div>'
    )


def _fact_rows(facts: Sequence[tuple[str, str]]) -> str:
    return "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in facts
    )
