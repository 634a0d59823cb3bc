"""Content of a report page; ``html.render`` writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hwnas.core.quantity import Quantities
from hwnas.models.spaces import Option
from hwnas.tasks.metrics import Metric


@dataclass(frozen=True, slots=True)
class PagePoint:
    """A network with its figures by the names of the columns of its explorer."""

    id: str
    figures: Quantities  #: as searched, or of a CSV file
    options: Sequence[tuple[str, Option]] = ()  #: choices of the genotype
    trial: int | None = None
    on_front: bool = False  #: a member of the searched front
    verified: Quantities = field(default_factory=dict)  #: from the compiled artefact
    note: str = ""  #: of a member that verification removed
    stopped: bool = False  #: evaluation was stopped early as dominated


@dataclass(frozen=True)
class RunData:
    """A run, or a front of a CSV file."""

    name: str
    points: Sequence[PagePoint]  #: different networks without the rejected ones
    group: str = ""  #: runs of a group share a colour; default: one group per run
    n_refused: int = 0  #: networks rejected by target or budget, not scored


@dataclass(frozen=True)
class OverlaidFront:
    """Networks of another run, drawn in a muted colour."""

    label: str
    points: Sequence[Quantities]  #: known figures by column


@dataclass(frozen=True)
class FrontExplorer:
    """Linked plots of runs with the same objectives."""

    title: str
    objectives: Sequence[str]  #: the first is plotted over each of the others
    columns: Mapping[str, Metric]  #: of all shown figures, including objectives
    runs: Sequence[RunData]
    limits: Mapping[str, float] = field(default_factory=dict)  #: budget limits, by column
    notes: Sequence[str] = ()
    marked: tuple[str, frozenset[str]] = ("", frozenset())  #: label and ids of framed points
    link: tuple[str, str] = ("", "")  #: address and text of a link
    beside: OverlaidFront | None = None


@dataclass(frozen=True)
class PageTable:
    """A table of text cells."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class SvgFigure:
    """An SVG figure."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class DecisionRow:
    """A line of the decision log."""

    when: str  #: a trial, a phase or a time
    kind: str  #: filter: ``front``, ``refused`` or ``verified``
    text: str


@dataclass(frozen=True)
class Page:
    """A report page."""

    title: str
    explorers: Sequence[FrontExplorer]
    notes: Sequence[str] = ()
    tables: Sequence[PageTable] = ()
    pictures: Sequence[SvgFigure] = ()
    log: Sequence[DecisionRow] = ()
    facts: Sequence[tuple[str, str]] = ()
    findings: Sequence[str] = ()  #: verdicts, shown first
