"""What a page of fronts says, as data. ``page.py`` makes HTML of it.

``search`` writes such a page for one run or for several targets, ``compare`` for many runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwnas.core.quantity import Quantities
from hwnas.models.spaces import Option
from hwnas.tasks.metrics import Metric


@dataclass(frozen=True, slots=True)
class PagePoint:
    """A network on the page: what is known of it, by the names of the columns of its explorer."""

    id: str
    figures: Quantities  #: as searched, or as another tool gives them
    options: Sequence[tuple[str, Option]] = ()  #: of a genotype: its choices
    trial: int | None = None
    on_front: bool = False  #: a member of its run's front as searched
    verified: Quantities = field(default_factory=dict)  #: from the compiled artefact
    note: str = ""  #: of a member that left the front or its budget: what verification changed
    stopped: bool = False  #: found to be dominated before all images were read


@dataclass(frozen=True)
class RunData:
    """A run, or a front of another tool."""

    name: str
    points: Sequence[PagePoint]  #: different networks, without those that were refused
    group: str = ""  #: runs of a group share a colour; default: each run has its own
    n_refused: int = 0  #: networks that the target or the budget refused: they were not scored


@dataclass(frozen=True)
class OverlaidFront:
    """Networks of another run that are drawn beside a front, in a muted colour."""

    label: str
    points: Sequence[Quantities]  #: those that are known, by the names of columns


@dataclass(frozen=True)
class FrontExplorer:
    """Linked views of runs that have the same objectives."""

    title: str
    objectives: Sequence[str]  #: the first is drawn over each of the others
    columns: Mapping[str, Metric]  #: of all figures that are shown; of objectives at least
    runs: Sequence[RunData]
    limits: Mapping[str, float] = field(default_factory=dict)  #: a budget: upper ends, by column
    notes: Sequence[str] = ()
    marked: tuple[str, frozenset[str]] = ("", frozenset())  #: a label, and ids that are framed
    link: tuple[str, str] = ("", "")  #: address and words of a page with more
    beside: OverlaidFront | None = None


@dataclass(frozen=True)
class PageTable:
    """A table that is ready: cells are text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class SvgFigure:
    """A figure that is ready, as SVG."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class DecisionRow:
    """A line of the decision log."""

    when: str  #: a trial, a phase or a time
    kind: str  #: by which lines can be hidden: ``front``, ``refused``, ``verified``
    text: str


@dataclass(frozen=True)
class Page:
    """All that is on a page, from its top to its end."""

    title: str
    explorers: Sequence[FrontExplorer]
    notes: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    pictures: Sequence[SvgFigure] = ()
    log: Sequence[DecisionRow] = ()
    facts: Sequence[tuple[str, str]] = ()
    findings: Sequence[str] = ()  #: what it all means, in sentences; they come first
