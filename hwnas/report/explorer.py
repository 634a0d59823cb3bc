"""What a page of fronts says, as data. ``page.py`` makes HTML of it.

``search`` writes such a page for one run or for several targets, ``compare`` for many runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwnas.figure import Figures
from hwnas.metrics import Metric
from hwnas.space import Option


@dataclass(frozen=True, slots=True)
class Point:
    """A network on the page: what is known of it, by the names of the columns of its explorer."""

    id: str
    figures: Figures  #: as searched, or as another tool gives them
    options: Sequence[tuple[str, Option]] = ()  #: of a genotype: its choices
    trial: int | None = None
    on_front: bool = False  #: a member of its run's front as searched
    verified: Figures = field(default_factory=dict)  #: from the compiled artefact
    note: str = ""  #: of a member that left the front or its budget: what verification changed
    stopped: bool = False  #: found to be dominated before all images were read


@dataclass(frozen=True)
class RunData:
    """A run, or a front of another tool."""

    name: str
    points: Sequence[Point]  #: different networks, without those that were refused
    group: str = ""  #: runs of a group share a colour; default: each run has its own
    n_refused: int = 0  #: networks that the target or the budget refused: they were not scored


@dataclass(frozen=True)
class Beside:
    """Networks of another run that are drawn beside a front, in a muted colour."""

    label: str
    points: Sequence[Figures]  #: those that are known, by the names of columns


@dataclass(frozen=True)
class Explorer:
    """Linked views of runs that have the same objectives."""

    title: str
    objectives: Sequence[str]  #: the first is drawn over each of the others
    columns: Mapping[str, Metric]  #: of all figures that are shown; of objectives at least
    runs: Sequence[RunData]
    limits: Mapping[str, float] = field(default_factory=dict)  #: a budget: upper ends, by column
    notes: Sequence[str] = ()
    marked: tuple[str, frozenset[str]] = ("", frozenset())  #: a label, and ids that are framed
    link: tuple[str, str] = ("", "")  #: address and words of a page with more
    beside: Beside | None = None


@dataclass(frozen=True)
class Table:
    """A table that is ready: cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure that is ready, as SVG."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of the decision log."""

    when: str  #: a trial, a phase or a time
    kind: str  #: by which lines can be hidden: ``front``, ``refused``, ``verified``
    text: str


@dataclass(frozen=True)
class Page:
    """All that is on a page, from its top to its end."""

    title: str
    explorers: Sequence[Explorer]
    notes: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    log: Sequence[Line] = ()
    facts: Sequence[tuple[str, str]] = ()
    findings: Sequence[str] = ()  #: what it all means, in sentences; they come first
