"""Reading of untrusted files: bytes, JSON, YAML and numpy archives, with limits on size."""

import contextlib
import json
import math
import os
import stat
import zipfile
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_JSON_BYTES = 64 << 20
MAX_YAML_BYTES = 1 << 18
MAX_ARRAY_BYTES = 8 << 30  #: of all arrays of a file together
_MAX_NODES = 100_000  # of YAML, with aliases expanded; a text of more characters may have more
_INFINITE = 1 << 62


class CorruptFileError(ValueError):
    """The content of a file is invalid; the message says why."""


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it is a device, pipe or folder, larger than ``max_bytes``, or
            unreadable.
    """
    try:
        # Opening a pipe would otherwise block until something writes to it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CorruptFileError("it is not a regular file")
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise CorruptFileError("it is a folder") from None
    except (OSError, ValueError) as error:
        raise CorruptFileError(getattr(error, "strerror", None) or str(error)) from None
    if len(data) > max_bytes:
        raise CorruptFileError(f"it is larger than {max_bytes / (1 << 20):g} MiB")
    return data


def read_text(path: Path, max_bytes: int) -> str:
    """Return the UTF-8 text of a regular file.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it is not a regular file, larger than ``max_bytes``, unreadable, or
            not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CorruptFileError("it is not UTF-8 text") from None


def parse_json(text: str) -> Any:
    """Return the content of a JSON text as Python objects, as ``json.loads`` does.

    Raises:
        CorruptFileError: if it is not JSON, has duplicate keys, NaN, infinity or an integer of
            thousands of digits, or is nested too deep.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except RecursionError:
        raise CorruptFileError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise CorruptFileError(f"not JSON: {error}") from None
    except CorruptFileError:
        raise
    except ValueError:
        raise CorruptFileError("it has an integer of thousands of digits") from None


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text as Python objects, as ``yaml.safe_load`` does.

    Raises:
        CorruptFileError: if it is not YAML, has tags or duplicate keys, is nested too deep, or its
            aliases expand to too many values.
    """
    try:
        with contextlib.closing(_Loader(text)) as loader:
            return loader.get_single_data()
    except RecursionError:
        raise CorruptFileError("it is nested too deep") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise CorruptFileError(f"not YAML: {' '.join(str(error).split())}") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise CorruptFileError(f"duplicate key '{_first_duplicate(name for name, _ in pairs)}'")
    return content


def _first_duplicate(names: Iterable[str]) -> str | None:
    """Return the first name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _refuse_constant(constant: str) -> Any:
    raise CorruptFileError(f"{constant} is not a JSON number")


class _Loader(yaml.SafeLoader):
    """The safe loader; it refuses duplicate keys and aliases that expand to too many values."""

    def __init__(self, text: str):
        super().__init__(text)
        self.max_nodes = max(_MAX_NODES, len(text))

    def close(self) -> None:
        """Free the resources of the parser."""
        self.dispose()

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > self.max_nodes:
            raise CorruptFileError(
                f"it has more than {self.max_nodes} values when aliases are expanded"
            )
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = (key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if (name := _first_duplicate(keys)) is not None:
            line = node.start_mark.line + 1
            raise CorruptFileError(
                f"duplicate key '{name}' in the mapping that starts in line {line}"
            )
        return super().construct_mapping(node, deep)


def _count_values(node: Any, known: dict[int, int]) -> int:
    """Return the number of values of a node; infinite if it contains itself."""
    if id(node) not in known:
        known[id(node)] = _INFINITE  # while it is being counted
        parts = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_count_values(part, known) for part in parts)
    return known[id(node)]


def read_npz(
    path: Path, names: Collection[str], max_bytes: int = MAX_ARRAY_BYTES
) -> "dict[str, NDArray[Any]]":
    """Return arrays of a numpy archive (``.npz``) by name; names that it lacks are left out.

    Args:
        path: The file.
        names: Names of the arrays; others are not read.
        max_bytes: Limit on the size of the named arrays together, in bytes.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it is not a valid archive, has Python objects or two arrays of the
            same name, or its arrays are too large.
    """
    if path.exists() and not path.is_file():
        raise CorruptFileError("it is not a regular file")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info.filename for info in archive.infolist()]
            if len(members) > len({*members}):
                raise CorruptFileError("it has two arrays of the same name")
            present = [name for name in names if f"{name}.npy" in members]
            size = sum(_check_size(archive, f"{name}.npy") for name in present)
            if size > max_bytes:
                raise CorruptFileError(
                    f"its arrays have {size} bytes; allowed: at most {max_bytes}"
                )
            return {name: _array(archive, f"{name}.npy") for name in present}
    except (FileNotFoundError, CorruptFileError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many types on corrupt files
        raise CorruptFileError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays of a numpy archive (``.npz``), in the order of the file.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it is not a valid archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise CorruptFileError(str(error)) from None


def _check_size(archive: zipfile.ZipFile, name: str) -> int:
    """Return the size of an array in bytes by its header, which the file must contain."""
    from numpy.lib import format as npy  # imported here: most files are read without numpy

    with archive.open(name) as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        raise CorruptFileError(f"'{name}' has Python objects; allowed: numbers and text")
    if min(shape, default=1) < 0 or size > archive.getinfo(name).file_size:
        raise CorruptFileError(f"'{name}' is too short for {dtype} of shape {shape}")
    return size


def _array(archive: zipfile.ZipFile, name: str) -> "NDArray[Any]":
    from numpy.lib import format as npy

    with archive.open(name) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array
