"""The page of error messages quotes existing messages."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import hwnas

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
QUOTED = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)


def _texts() -> Iterator[str]:
    """Yield the text constants of the package; values in them are ``…``."""
    for path in Path(hwnas.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = [*_texts()]


def test_page_quotes_messages() -> None:
    assert len(QUOTED) > 40


@pytest.mark.parametrize("message", QUOTED)
def test_quoted_message_exists(message: str) -> None:
    parts = [part.strip(" .'") for part in message.split("…")]
    parts = [part for part in parts if len(part) > 2]
    assert any(all(part in text for part in parts) for text in TEXTS), parts
