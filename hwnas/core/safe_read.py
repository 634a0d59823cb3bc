"""Files of strangers: their bytes, JSON and YAML, within bounds that are checked beforehand."""

import contextlib
import json
import os
import stat
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import yaml

MOST_JSON = 64 << 20  #: bytes
MOST_YAML = 1 << 18
_NODES = 100_000  # of YAML, aliases counted as often as they are said; a longer text may say more
_ENDLESS = 1 << 62


class CorruptFileError(ValueError):
    """What a file holds is not what it should be, in words."""


def content(path: Path, most: int) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file; a device, a pipe or a folder is none.
        most: Bytes that it may have.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is no file, too large, or cannot be read.
    """
    try:
        # Or opening a pipe would wait for somebody who writes into it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CorruptFileError("it is no file")
            found = file.read(most + 1)
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise CorruptFileError("it is a folder") from None
    except (OSError, ValueError) as error:
        raise CorruptFileError(getattr(error, "strerror", None) or str(error)) from None
    if len(found) > most:
        raise CorruptFileError(f"it has more than {most / (1 << 20):g} MiB")
    return found


def text(path: Path, most: int) -> str:
    """Return the text of a file, as ``content``.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is not text, or as ``content``.
    """
    try:
        return content(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CorruptFileError("it is not text in UTF-8") from None


def from_json(said: str) -> Any:
    """Return what JSON says.

    Raises:
        Damaged: it is none, names a key twice, holds a number that is none, or is nested too deep.
    """
    try:
        return json.loads(said, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise CorruptFileError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise CorruptFileError(f"not JSON: {error}") from None
    except CorruptFileError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise CorruptFileError(str(error).partition(";")[0]) from None


def from_yaml(said: str) -> Any:
    """Return what YAML says, by its safe subset.

    Raises:
        Damaged: it is none, has tags, names a key twice, or says more than it may.
    """
    try:
        with contextlib.closing(_Loader(said)) as loader:
            return loader.get_single_data()
    except RecursionError:
        raise CorruptFileError("it is nested too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise CorruptFileError(
            f"not YAML as it is read here: {' '.join(str(error).split())}"
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CorruptFileError(f"'{_twice(name for name, _ in pairs)}' is there twice")
    return found


def _twice(names: Iterable[str]) -> str | None:
    """Return the first name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _no_number(said: str) -> Any:
    raise CorruptFileError(f"{said} is no number of JSON")


class _Loader(yaml.SafeLoader):
    """The safe loader, without keys that are there twice and aliases that multiply."""

    def __init__(self, said: str):
        super().__init__(said)
        self.most = max(_NODES, len(said))

    def close(self) -> None:
        """Free what the parser holds."""
        self.dispose()

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _weight(node, {}) > self.most:
            raise CorruptFileError(
                f"it says more than {self.most} values, aliases counted as often as said"
            )
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if (name := _twice(keys)) is not None:
            raise CorruptFileError(
                f"'{name}' is there twice, below line {node.start_mark.line + 1}"
            )
        return super().construct_mapping(node, deep)


def _weight(node: Any, known: dict[int, int]) -> int:
    """Return how many values a node says; one that says itself has infinitely many."""
    if id(node) not in known:
        known[id(node)] = _ENDLESS  # while it is being counted
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_weight(part, known) for part in parts)
    return known[id(node)]
