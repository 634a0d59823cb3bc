"""Docstrings, comments and messages use standard terms of the field.

The list is short on purpose: words that only this project used instead of a standard term.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwnas

ROOT = Path(hwnas.__file__).parent
BANNED = re.compile(
    r"\b(told|foretold|foretells?|foretell|foreseen|foresees?|hurried|in haste|made by hand"
    r"|in a row|c[oa]mes? to (be )?(less|more|the same|nothing)|held against|out of reach"
    r"|on the average|anew|for good|elsewhere|said|whichever|whosever|whoever|likewise|cure)\b"
    r"|\bc[oa]mes? to (be )?\{",
    re.IGNORECASE,
)
#: Values of files that are read back: how the weights of a member came about (``models/ID.json``).
VALUES = {", in int8 in haste"}


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in (node for node in ast.walk(tree) if isinstance(node, kinds)):
        yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield strings that read like text: at least two words. Values in f-strings are ``{}``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield node.lineno, "".join(map(str, parts))


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_text_uses_standard_terms(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    places = [*_docstrings(tree), *_messages(tree), *_comments(text)]
    matches = [
        f"line {line}: '{match[0]}'"
        for line, words in places
        for match in BANNED.finditer(words)
        if words not in VALUES
    ]
    assert matches == []
