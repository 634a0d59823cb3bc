"""A search as somebody looks at it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hwnas.results import Candidate


@dataclass(frozen=True)
class View:
    """A search as one target sees it, or all together."""

    name: str  #: empty if there is one view only
    objectives: Sequence[str]
    limits: Mapping[str, float]
    seen: Callable[[Candidate], Candidate] = lambda candidate: candidate
