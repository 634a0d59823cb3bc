"""Test cases: an input and its requirements."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def prepare_nothing(folder: Path) -> None:
    """Leave the working directory empty."""


@dataclass(frozen=True)
class Case:
    """A command that must fail with a one-line message and leave no files."""

    mechanism: str  #: the kind of invalid input
    option: str  #: the option under test
    arguments: Sequence[str]  #: arguments of the command line, the verb first
    names: Sequence[str] = ()  #: texts of which the message must contain one; default: the option
    secret: str = ""  #: text that no output may contain
    prepare: Callable[[Path], None] = prepare_nothing  #: creates files in the working directory
    codes: tuple[int, ...] = (2,)  #: allowed exit codes


@dataclass(frozen=True)
class Chain:
    """Commands on an unusual path that must all succeed, one after another in one folder."""

    mechanism: str
    option: str
    steps: Sequence[Sequence[str]]  #: ``{id}`` stands for the id of the first model of the run
