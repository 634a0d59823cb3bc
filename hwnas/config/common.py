"""What configurations of several verbs share."""

from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.target import Target
from hwnas.union import named


@dataclass
class RunConfig:
    """Where a run keeps its files."""

    dir: str | None = None  #: default: runs/<verb>/<time>
    resume: str | None = None  #: a run folder to continue
    supernets: str = "runs/supernets"  #: trained supernets, shared by runs


SPACE = "mbconv_small"  # where neither the user nor the target names one


def spaces_of(search_space: object, target: Target) -> list[str]:
    """Return what is searched: what was given, else what suits the target."""
    return named(target.spaces or SPACE if search_space is None else search_space)


def not_several(spaces: Sequence[str]) -> str:
    """Return the end of a message that takes one search space."""
    return f", not {len(spaces)}: say search_space={spaces[0]}."
