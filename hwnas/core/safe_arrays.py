"""Arrays of strangers, in files of numpy's (``.npz``), within bounds checked beforehand."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from hwnas.core.safe_read import CorruptFileError

MOST = 8 << 30  #: bytes of all arrays


def read_npz(path: Path, names: Collection[str], most: int = MOST) -> dict[str, NDArray[Any]]:
    """Return arrays by name; those that are not there are left out, others are not read.

    Args:
        path: The file.
        names: Of the arrays.
        most: Bytes that they may have together.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it is no such file, or its arrays are larger than that.
    """
    if path.exists() and not path.is_file():
        raise CorruptFileError("it is no file")
    try:
        with zipfile.ZipFile(path) as archive:
            said = [info.filename for info in archive.infolist()]
            if len(said) > len({*said}):
                raise CorruptFileError("an array is there twice")
            there = [name for name in names if f"{name}.npy" in said]
            sizes = [_bytes(archive, f"{name}.npy") for name in there]
            if sum(sizes) > most:
                raise CorruptFileError(
                    f"its arrays have {sum(sizes)} bytes; allowed: at most {most}"
                )
            return {name: _read(archive, f"{name}.npy") for name in there}
    except (FileNotFoundError, CorruptFileError):
        raise
    except Exception as error:  # zipfile, zlib and numpy raise what they like on damaged files
        raise CorruptFileError(" ".join(str(error).split())[:200] or type(error).__name__) from None


def _bytes(archive: zipfile.ZipFile, name: str) -> int:
    """Return how many bytes an array says that it has; refuse one that its file does not hold."""
    with archive.open(name) as file:
        version = npy.read_magic(file)
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = header(file)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=1) < 0 or size > archive.getinfo(name).file_size:
        raise CorruptFileError(
            f"'{name}' says that it is {dtype} of shape {shape}, which it is not"
        )
    return size


def _read(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as file:
        found: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return found
