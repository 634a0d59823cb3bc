"""Data of an explorer as JSON for the scripts of a page."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.analysis.page.names import is_share, natural_order
from hwnas.core.quantity import Quantities, Quantity
from hwnas.models.spaces import Option
from hwnas.tasks.metrics import Metric, quality_names


@dataclass(frozen=True, slots=True)
class PagePoint:
    """A network with its figures by column of its plots."""

    id: str  #: id of the genotype, or of the row of a CSV file
    figures: Quantities  #: figures of the search or of a CSV file, by column
    options: Sequence[tuple[str, Option]] = ()  #: names and values of the genotype's choices
    trial: int | None = None  #: number of the trial; ``None``: it is of a CSV file
    on_front: bool = False  #: True for members of the front shown
    #: figures of the compiled artefact, by column; empty if it is not verified
    verified: Quantities = field(default_factory=dict)
    note: str = ""  #: why a member is not on the verified front; empty: it is, or it is no member
    stopped: bool = False  #: True if evaluation was stopped early as dominated


@dataclass(frozen=True)
class RunData:
    """A run, or a front of a CSV file, in the plots of a page."""

    name: str  #: label of the run
    points: Sequence[PagePoint]  #: each network once, without rejected ones
    group: str = ""  #: runs of a group share a colour; default: one group per run
    n_refused: int = 0  #: networks rejected by target or budget, not scored


@dataclass(frozen=True)
class OverlaidFront:
    """Networks of another run, drawn in a muted colour."""

    label: str  #: text in the legend
    points: Sequence[Quantities]  #: figures of each network, by column; some may be missing


@dataclass(frozen=True)
class FrontExplorer:
    """A section of linked interactive plots of runs with the same objectives."""

    title: str
    objectives: Sequence[str]  #: the first is plotted over each of the others
    columns: Mapping[str, Metric]  #: metrics of all shown figures, including objectives, by column
    runs: Sequence[RunData]
    limits: Mapping[str, float] = field(default_factory=dict)  #: budget limits, by column
    notes: Sequence[str] = ()  #: paragraphs below the title
    marked: tuple[str, frozenset[str]] = ("", frozenset())  #: label and ids of framed points
    link: tuple[str, str] = ("", "")  #: address and text of a link; empty: none
    beside: OverlaidFront | None = None  #: a baseline, drawn in a muted colour


@dataclass(frozen=True)
class PageTable:
    """A table of a page; cells are text."""

    title: str
    columns: Sequence[str]  #: headers
    rows: Sequence[Sequence[str]]
    note: str = ""  #: paragraph above it
    is_folded: bool = False  #: shown after a click only, as every table of more than 12 rows
    group: str = ""  #: title of a folded section that successive tables share


@dataclass(frozen=True)
class SvgFigure:
    """A figure of a page."""

    title: str
    svg: str  #: text of the SVG file
    note: str = ""  #: paragraph above it
    is_folded: bool = False  #: shown after a click only, as every table of more than 12 rows


@dataclass(frozen=True)
class DecisionRow:
    """A line of the decision log."""

    when: str  #: a trial, a phase or a time
    kind: str  #: filter: ``front``, ``refused`` or ``verified``
    text: str


@dataclass(frozen=True)
class ResultRow:
    """A network in the table of the first section of a page."""

    #: texts of the columns of ``ResultSection`` except the last, which has the files
    cells: Sequence[str]
    command: str  #: command that exports it
    files: Sequence[tuple[str, str]]  #: addresses and names of its model files
    architecture: str  #: its genotype as text
    is_recommended: bool = False  #: True for the network of the headline


@dataclass(frozen=True)
class ResultSection:
    """The recommended network and the front; the first section of a page."""

    title: str
    headline: Sequence[str]  #: paragraphs on the recommended network, the first one in bold
    facts: Sequence[tuple[str, str]]  #: name and text
    columns: Sequence[str]  #: headers of the table of networks
    rows: Sequence[ResultRow]  #: networks on the front
    tied: Sequence[ResultRow] = ()  #: networks that are not significantly off the front


@dataclass(frozen=True)
class VerdictSection:
    """The result of a comparison in a sentence and a small table; the first section of a page."""

    sentence: str
    table: PageTable


@dataclass(frozen=True)
class Page:
    """Content of an HTML page; sections without content are left out."""

    title: str
    explorers: Sequence[FrontExplorer]  #: sections of interactive plots
    notes: Sequence[str] = ()  #: how to read the plots
    tables: Sequence[PageTable] = ()
    pictures: Sequence[SvgFigure] = ()
    log: Sequence[DecisionRow] = ()  #: decision log
    facts: Sequence[tuple[str, str]] = ()  #: name and value of options and versions
    findings: Sequence[str] = ()  #: sentences on the results
    results: Sequence[ResultSection] = ()  #: first sections of the page of a search
    verdict: VerdictSection | None = None  #: first section of the page of a comparison


# Typed arrays, which a browser reads without parsing.

Packed = dict[str, Any]


def floats(values: NDArray[np.float64]) -> Packed | None:
    """Return values ``(n,)`` as base64 of 32-bit floats: ``{"type": "f4", "data": ...}``.

    ``{"constant": value}`` if all are finite and equal; ``None`` if all are NaN or there are none.
    """
    if np.isnan(values).all():
        return None
    if np.isfinite(values[0]) and (values == values[0]).all():
        return {"constant": float(values[0])}
    return _typed_array("f4", values.astype("<f4"))


def counts(values: NDArray[np.intp]) -> Packed:
    """Return non-negative integers as base64: ``{"type": "u1", "data": ...}``.

    The type is the smallest of ``u1``, ``u2`` and ``u4`` (bytes) that holds the largest value.
    """
    largest = int(values.max(initial=0))
    kind = "u1" if largest < 1 << 8 else "u2" if largest < 1 << 16 else "u4"
    return _typed_array(kind, values.astype(f"<{kind}"))


def ids(texts: Sequence[str]) -> Packed | list[str]:
    """Return ids of 12 lower-case hexadecimal digits as base64 of 6 bytes each.

    If any id has another form, return all of them as a list.
    """
    joined = "".join(texts)
    if set(map(len, texts)) == {12} and set(joined) <= set("0123456789abcdef"):
        return _typed_array("u1", np.frombuffer(bytes.fromhex(joined), np.uint8))
    return list(texts)


def _typed_array(kind: str, values: NDArray[Any]) -> Packed:
    return {"type": kind, "data": base64.b64encode(values.tobytes()).decode()}


# Downsampling of points.

Array = NDArray[np.float64]

_CELLS = 2_000_000  # points times members in a block


def thinned(points: Array, front: Array, most: int) -> NDArray[np.intp]:
    """Return the indices of at most ``most`` points, ascending.

    Half of them are the nearest to the front, by additive epsilon; the others are taken evenly from
    the rest. If there are at most ``most`` points, all are returned.

    Args:
        points: Values of ``m`` objectives to be minimised ``(n, m)``.
        front: Values of the points of the front ``(k, m)``.
        most: Maximum number of points.
    """
    if len(points) <= most:
        return np.arange(len(points))
    order = np.argsort(_distances(points, front), kind="stable")
    n_near = most // 2 if len(front) else 0
    rest = np.sort(order[n_near:])
    even = rest[np.linspace(0, len(rest) - 1, most - n_near).astype(np.intp)]
    return np.sort(np.concatenate([order[:n_near], even]))


def _distances(points: Array, front: Array) -> Array:
    """Return the additive epsilon of each point to the front, ``(n,)``, in ranges of objectives."""
    scale = np.maximum(np.ptp(points, axis=0), 1e-300)
    points, front = points / scale, front / scale
    nearest = np.full(len(points), np.inf)
    step = max(1, _CELLS // max(1, len(front)))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        worst = np.full((len(part), len(front)), -np.inf)
        for mine, theirs in zip(part.T, front.T, strict=True):
            np.maximum(worst, mine[:, None] - theirs, out=worst)
        nearest[start : start + step] = worst.min(axis=1, initial=np.inf)
    return nearest


_MAX_POINTS = 100_000  # of a page
_UNKNOWN = Quantity(float("nan"), "measured")
Content = dict[str, Any]


def content(explorer: FrontExplorer, n_runs: int) -> Content:
    """Return the data of a section of plots as the page's scripts read it, for JSON.

    Args:
        explorer: The section.
        n_runs: Number of runs on the page, which share a maximum of 100,000 points; members of
            fronts are always shown.
    """
    choices = _Choices([point for run in explorer.runs for point in run.points])
    limit = _MAX_POINTS // max(1, n_runs)
    indices = [_thinned_indices(run.points, explorer, limit) for run in explorer.runs]
    points = [
        run.points[i] for run, which in zip(explorer.runs, indices, strict=True) for i in which
    ]
    front = [i for i, point in enumerate(points) if point.on_front]
    members = [points[i] for i in front]
    exact = {*explorer.objectives, *explorer.limits}
    label, marked = explorer.marked
    return {
        "n": len(points),
        "columns": [
            {
                "name": name,
                "label": column.label,
                "unit": column.unit,
                "maximise": column.maximise,
                "percent": _is_share(name, points),
                "quality": name in quality_names(),
                "objective": name in explorer.objectives,
                "limit": explorer.limits.get(name),
                "searched": _column([p.figures for p in points], name, ends=name in exact),
                "verified": _column([p.verified for p in members], name, ends=True),
            }
            for name, column in explorer.columns.items()
        ],
        "plots": [_plot(explorer.objectives[0], x, explorer.columns)
                  for x in explorer.objectives[1:]],
        "runs": [_run(run, len(which)) for run, which in zip(explorer.runs, indices, strict=True)],
        "ids": ids([point.id for point in points]),
        "trials": floats(
            np.array([np.nan if p.trial is None else p.trial for p in points], np.float64)
        ),
        "stopped": counts(np.array([point.stopped for point in points], np.intp)),
        "front": front,
        "notes": [member.note for member in members],
        "marked": [i for i, member in enumerate(members) if member.id in marked],
        "marks": label,
        "choices": choices.content(explorer.runs, indices),
        "beside": explorer.beside and _overlay_content(explorer.beside, explorer.columns),
    }  # fmt: skip


def _overlay_content(beside: OverlaidFront, columns: Mapping[str, Metric]) -> Content:
    """Return the columns of the networks of another run."""
    return {
        "label": beside.label,
        "n": len(beside.points),
        "columns": [_column(beside.points, name, ends=True) for name in columns],
    }


def _is_share(name: str, points: Sequence[PagePoint]) -> bool:
    """Return whether a column is shown in per cent: accuracies up to 1 and probabilities."""
    if is_share(name):
        return not any(point.figures[name].value > 1 for point in points if name in point.figures)
    return name.rpartition(".")[2].startswith("p_on_")


def _plot(y: str, x: str, columns: Mapping[str, Metric]) -> Content:
    """Return the columns of a plot; a target may have its own verified accuracy."""
    target, _, _ = x.rpartition(".")
    target_metric = f"{target}.{y}"
    names = list(columns)
    verified = target_metric if target and target_metric in columns else y
    return {"x": names.index(x), "y": names.index(y), "verified": names.index(verified)}


def _run(run: RunData, n_shown: int) -> Content:
    n = len(run.points)
    return {"name": run.name, "group": run.group or run.name, "n": n_shown, "all": n,
            "refused": run.n_refused, "choices": any(p.options for p in run.points)}  # fmt: skip


def _thinned_indices(
    points: Sequence[PagePoint], explorer: FrontExplorer, n_max: int
) -> NDArray[np.intp]:
    """Return the indices of the shown points of a run: its front and others."""
    if len(points) <= n_max:
        return np.arange(len(points))
    on_front = np.array([point.on_front for point in points])
    sign = [-1.0 if explorer.columns[name].maximise else 1.0 for name in explorer.objectives]
    values = np.array(
        [[point.figures[name].value for name in explorer.objectives] for point in points]
    ) * np.array(sign)
    others = np.flatnonzero(~on_front)
    n_others = max(0, n_max - int(on_front.sum()))
    near = others[thinned(values[others], values[on_front], n_others)]
    return np.sort(np.concatenate([np.flatnonzero(on_front), near]))


def _column(figures: Sequence[Quantities], name: str, *, ends: bool) -> Content:
    """Return a column of figures, with intervals if ``ends``."""
    quantities = [by_name.get(name, _UNKNOWN) for by_name in figures]
    sources = list(dict.fromkeys(f.source for f in quantities if f is not _UNKNOWN))
    column: Content = {
        "value": floats(np.array([f.value for f in quantities], np.float64)),
        "low": floats(np.array([f.low for f in quantities], np.float64)) if ends else None,
        "high": floats(np.array([f.high for f in quantities], np.float64)) if ends else None,
        "sources": sources,
    }
    if len(sources) > 1:
        codes = {source: code for code, source in enumerate(sources)}
        column["source"] = counts(
            np.array([codes.get(figure.source, 0) for figure in quantities], np.intp)
        )
    return column


class _Choices:
    """The options of each choice, and the option of each network."""

    def __init__(self, points: Sequence[PagePoint]):
        pairs = [pair for point in points for pair in point.options]
        self.options = _options(pairs)
        codes = [
            (name, option, j, code)
            for j, (name, options) in enumerate(self.options.items())
            for code, option in enumerate(options, 1)
        ]
        index = {(name, option): k for k, (name, option, _, _) in enumerate(codes)}
        pair_ids = np.fromiter(map(index.__getitem__, pairs), np.intp, len(pairs))
        columns = np.array([j for _, _, j, _ in codes], np.intp)[pair_ids]
        rows = np.repeat(np.arange(len(points)), [len(point.options) for point in points])
        #: ``(n, choices)``: the option from 1, or 0 where the choice is inactive
        self.codes = np.zeros((len(points), len(self.options)), np.intp)
        self.codes[rows, columns] = np.array([code for _, _, _, code in codes], np.intp)[pair_ids]

    def content(
        self, runs: Sequence[RunData], indices: Sequence[NDArray[np.intp]]
    ) -> list[Content]:
        """Return, for each choice, the options of shown points and the counts of all points."""
        starts = np.cumsum([0, *(len(run.points) for run in runs)])
        shown_rows = [which + start for which, start in zip(indices, starts, strict=False)]
        rows = np.concatenate([*shown_rows, np.zeros(0, np.intp)])
        return [
            {
                "name": name,
                "options": options,
                "codes": counts(self.codes[rows, j]),
                "all": [
                    np.bincount(self.codes[a:b, j], minlength=len(options) + 1)[1:].tolist()
                    for a, b in itertools.pairwise(starts)
                ],
            }
            for j, (name, options) in enumerate(self.options.items())
        ]


def _options(pairs: Sequence[tuple[str, Option]]) -> dict[str, list[Option]]:
    """Return the options of each choice: numbers ascending, then text."""
    options: dict[str, list[Option]] = {}
    for name, option in dict.fromkeys(pairs):
        options.setdefault(name, []).append(option)
    return {
        name: sorted(options[name], key=lambda o: (isinstance(o, str), o))
        for name in sorted(options, key=natural_order)
    }
