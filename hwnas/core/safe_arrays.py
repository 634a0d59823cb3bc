"""Reading of untrusted numpy archives (``.npz``) with a limit on their size."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from hwnas.core.safe_read import CorruptFileError

MAX_BYTES = 8 << 30  #: of all arrays together


def read_npz(
    path: Path, names: Collection[str], max_bytes: int = MAX_BYTES
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive by name, without those that are missing.

    Args:
        path: The file.
        names: Names of the arrays; others are not read.
        max_bytes: Limit on the size of the named arrays together, in bytes.

    Raises:
        FileNotFoundError: if there is no such file.
        CorruptFileError: if it is not a valid archive, or its arrays are too large.
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
            return {name: _read(archive, f"{name}.npy") for name in present}
    except (FileNotFoundError, CorruptFileError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise many types on corrupt files
        raise CorruptFileError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays of an archive.

    Raises:
        CorruptFileError: if it is not a valid archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise CorruptFileError(str(error)) from None


def _check_size(archive: zipfile.ZipFile, name: str) -> int:
    """Return the size of an array in bytes by its header, which the file must contain."""
    with archive.open(name) as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=1) < 0 or size > archive.getinfo(name).file_size:
        raise CorruptFileError(f"'{name}' does not contain {dtype} of shape {shape}")
    return size


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array
