"""One input, and what is asked of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def nothing(folder: Path) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Case:
    """A command that must be refused in one line, with nothing left behind."""

    mechanism: str  #: what is odd about it
    option: str  #: at which option
    arguments: Sequence[str]  #: of the command line, the verb first
    names: Sequence[str] = ()  #: of which the line must say one; default: the option
    secret: str = ""  #: what no output may hold
    prepare: Callable[[Path], None] = nothing  #: the folder that it is run in
    codes: tuple[int, ...] = (2,)  #: of which it must end with one


@dataclass(frozen=True)
class Chain:
    """Commands on an odd path that must all end well, one after the other in one folder."""

    mechanism: str
    option: str
    steps: Sequence[Sequence[str]]  #: ``{id}`` stands for the id of the first model of the run
