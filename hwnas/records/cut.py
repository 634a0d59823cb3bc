"""``split.json``: where a network was cut, and what its parts are called."""

from pathlib import Path
from typing import Annotated, TypedDict

from hwnas.errors import RunError
from hwnas.records import read_json
from hwnas.records.schema import Bound, Fraction

FILE, PROFILE = "split.json", "profile.csv"
FORMAT = 1

_Name = Annotated[str, Bound(1, 200)]


class Cut(TypedDict):
    """A way to cut a network."""

    name: _Name  #: of the folder with its parts
    model: _Name  #: as plans call it
    head: _Name
    tail: _Name
    activation_kib: Annotated[float, Bound(0, 1e6)]  #: from one to the other, an image
    after: _Name  #: the operator whose result that is
    shape: Annotated[list[int], Bound(3, 3)]
    dtype: _Name
    head_macs: Fraction  #: of the work that is the head's


class _File(TypedDict):
    format: int
    export: str
    cuts: Annotated[list[Cut], Bound(1, 100)]


def read_cuts(folder: Path) -> list[Cut]:
    """Return the cuts of a folder that ``split`` made.

    Raises:
        RunError: it is none, or damaged.
    """
    try:
        return read_json(_File, folder / FILE, RunError, newest=FORMAT)["cuts"]
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"{folder} is no folder of a split: make one with: python -m hwnas split EXPORT"
        ) from None
