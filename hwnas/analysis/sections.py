"""Sections of a run's page: cascades, early exits and the audit of the supernet."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure

from hwnas.analysis.figures import FOR_ALL, SEARCHED, VERIFIED
from hwnas.analysis.page.data import PageTable, SvgFigure
from hwnas.analysis.page.html import with_section
from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantities, Quantity
from hwnas.nas.cascades import ENERGY, EXPECTED, LATENCY, Cascade, CascadeStage
from hwnas.nas.early_exits import EarlyExits, ExitNetworkResults
from hwnas.tasks.base import Confusion
from hwnas.tasks.intervals import ClassScores
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.predictions import NEVER

if TYPE_CHECKING:
    from hwnas.training.evaluation.rank_audit import AuditFinding, AuditVerdict

_MAX_ROWS = 24
_MATRICES = "Confusion matrices"
_SVG_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hwnas", "font.size": 9}
_COMMON_HEADS = (
    "accuracy", "95 %", "expected ms", "predicted ms", "worst ms", "expected mJ",
)  # fmt: skip
_PREDICTED = (
    "Predicted: from the half of the validation split that was not used to choose thresholds."
)
LatencyAccuracy = tuple[float, float]  #: latency in ms, accuracy
AdaptiveNetwork = Cascade | EarlyExits  #: its costs depend on the image
Adaptive = TypeVar("Adaptive", Cascade, EarlyExits)


def class_tables(
    images: Mapping[str, Mapping[str, int]], matrices: Mapping[str, Confusion]
) -> list[PageTable]:
    """Return a table of the images and recalls of each class, and one per confusion matrix.

    For more than 24 classes, a table has the 24 most frequent errors instead of the matrix. The
    list is empty without matrices.

    Args:
        images: Number of images by split and class.
        matrices: Confusion matrices of verified networks, by name of the network.
    """
    if not matrices:  # members verified by earlier versions have none
        return []
    scores = [ClassScores.of(confusion) for confusion in matrices.values()]
    recalls = [of_network.recalls for of_network in scores]
    names = next(iter(images.values()))
    rows = [
        [name, *(str(counts[name]) for counts in images.values()), *map(_interval, of_class)]
        for name, of_class in zip(names, zip(*recalls, strict=True), strict=True)
    ]
    means = (
        ("balanced accuracy", [of_network.balanced_accuracy for of_network in scores]),
        ("macro-F1", [of_network.macro_f1 for of_network in scores]),
    )
    rows += [[name, *[""] * len(images), *map(_interval, figures)] for name, figures in means]
    note = (
        "Images of each split; recall of each verified network on the test split, with 95 %, "
        "then the mean over classes of its recall and of its F1."
    )
    heads = ("class", *images, *(f"recall of {name}" for name in matrices))
    classes = PageTable("Classes", heads, rows, note, is_folded=True)
    return [classes, *(_confusion_table(name, matrix) for name, matrix in matrices.items())]


def _confusion_table(name: str, confusion: Confusion) -> PageTable:
    """Return a confusion matrix, or for many classes the most frequent errors."""
    title = f"Confusion matrix of {name}"
    if len(confusion) <= _MAX_ROWS:
        rows = [[c, *(str(row.get(a, 0)) for a in confusion)] for c, row in confusion.items()]
        note = "Test images by class (rows) and answer (columns)."
        return PageTable(title, ("class", *confusion), rows, note, group=_MATRICES)
    errors = [(n, c, a) for c, row in confusion.items() for a, n in row.items() if a != c]
    largest = sorted(errors, key=lambda error: -error[0])[:_MAX_ROWS]
    note = f"The {len(largest)} most frequent errors of {len(confusion)} classes; all: front.json."
    rows = [[c, a, str(n)] for n, c, a in largest]
    return PageTable(title, ("class", "answer", "test images"), rows, note, group=_MATRICES)


def _interval(figure: Quantity | None) -> str:
    if figure is None:
        return "no images"
    return f"{figure.value:.3f} ({figure.lower:.3f} to {figure.upper:.3f})"


def cascades_table(cascades: Sequence[Cascade]) -> PageTable:
    """Return a table of at most 24 cascades with ``on_front``, evenly chosen, fastest first."""
    heads = ("first", "second", "threshold", "escalated", "predicted", *_COMMON_HEADS, "flash KiB")
    rows = [
        [
            cascade.first.id,
            cascade.second.id + (f" ({cascade.link.target})" if cascade.link is not None else ""),
            f"{cascade.threshold:.3f}",
            f"{cascade.verified.share.value:.1%}",
            f"{cascade.predicted.share.value:.1%}",
            *_common_cells(cascade, cascade.worst),
            _number(cascade.worst.get("flash_kib")),
        ]
        for cascade in _front_sample(cascades)
    ]
    note = (
        f"{_counts(cascades, 'cascades.csv')} The second network reads an image if the largest "
        f"probability of the first is below the threshold. {_PREDICTED}"
    )
    return PageTable("Cascades", heads, rows, note)


def exits_table(networks: Sequence[EarlyExits]) -> PageTable:
    """Return a table of at most 24 thresholds of networks with early exits, fastest first.

    They are chosen evenly from those with ``on_front``.
    """
    heads = ("network", "thresholds", "leave at", "accuracy at the end", *_COMMON_HEADS)
    rows = [
        [
            exits.network.id,
            ", ".join("never" if t >= NEVER else f"{t:.3f}" for t in exits.thresholds),
            ", ".join(f"{share.value:.1%}" for share in exits.verified.left),
            f"{exits.network.accuracy('test'):.4f}",
            *_common_cells(exits, exits.network.costs),
        ]
        for exits in _front_sample(networks)
    ]
    note = (
        f"{_counts(networks, 'exits.csv')} An image leaves at the first exit whose largest "
        f"probability reaches its threshold. {_PREDICTED}"
    )
    return PageTable("Early exits", heads, rows, note)


def _common_cells(network: AdaptiveNetwork, worst: Quantities) -> list[str]:
    verified = network.verified
    return [
        f"{verified.accuracy.value:.4f}",
        f"{verified.accuracy.lower:.3f} to {verified.accuracy.upper:.3f}",
        _number(verified.costs.get(EXPECTED)),
        _number(network.predicted.costs.get(EXPECTED)),
        _number(worst.get(LATENCY)),
        _number(verified.costs.get(f"expected_{ENERGY}")),
    ]


def _front_sample(networks: Sequence[Adaptive]) -> list[Adaptive]:
    """Return at most ``_MAX_ROWS`` networks of the front, evenly over it, with both ends."""
    front = [network for network in networks if network.on_front]
    front.sort(key=lambda network: network.verified.costs[EXPECTED].value)
    if len(front) <= _MAX_ROWS:
        return front
    return [front[round(i * (len(front) - 1) / (_MAX_ROWS - 1))] for i in range(_MAX_ROWS)]


def _counts(networks: Sequence[AdaptiveNetwork], file: str) -> str:
    n = sum(network.on_front for network in networks)
    return f"{min(n, _MAX_ROWS)} of {n} on the front of the test split; all: {file}."


def _number(figure: Quantity | None) -> str:
    return "" if figure is None else f"{figure.value:.4g}"


def cascades_figure(stages: Sequence[CascadeStage], cascades: Sequence[Cascade]) -> SvgFigure:
    """Return a figure of accuracy over expected latency on the test split.

    It has cascades on and off the front, and single networks (``stages``).
    """
    single = [(s.latency_ms, float(s.predictions["test"].correct.mean())) for s in stages]
    labels = ("predicted on the front", "cascades on the front", "single networks")
    return _figure("Cascades and single networks", cascades, single, labels)


def exits_figure(networks: Sequence[ExitNetworkResults], exits: Sequence[EarlyExits]) -> SvgFigure:
    """Return a figure of accuracy over expected latency on the test split.

    It has networks without (``networks``) and with early exits, these on and off the front.
    """
    ends = [(n.costs[LATENCY].value, n.accuracy("test")) for n in networks]
    labels = ("early exits", "early exits, on the front", "without early exits")
    return _figure("With and without early exits", exits, ends, labels)


def _figure(
    title: str,
    networks: Sequence[AdaptiveNetwork],
    single: Sequence[LatencyAccuracy],
    labels: tuple[str, str, str],
) -> SvgFigure:
    """Draw adaptive networks, off and on the front, and single networks."""
    with mpl.rc_context(_SVG_STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for on_front, label in zip((False, True), labels[:2], strict=True):
            shown = [network.verified for network in networks if network.on_front is on_front]
            axes.scatter(
                [v.costs[EXPECTED].value for v in shown], [v.accuracy.value for v in shown], s=14,
                edgecolors=SEARCHED, facecolors=SEARCHED if on_front else "none", label=label,
            )  # fmt: skip
        axes.scatter(
            [x for x, _ in single], [y for _, y in single], s=34, marker="s", color=VERIFIED,
            edgecolors=FOR_ALL, label=labels[2],
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel(f"expected {metric_of(LATENCY).title}")
        axes.set_ylabel("accuracy, test split")
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right")
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return SvgFigure(title, buffer.getvalue())


# The audit of a supernet.

_GROUP_STYLES = (
    ("front", VERIFIED, "members of the front"),
    ("space", SEARCHED, "random networks"),
)


def audit_png(
    findings: "Sequence[AuditFinding]", verdict: "AuditVerdict", epochs: int, metric: str
) -> bytes:
    """Return a PNG file: the metric of networks trained alone over that in the supernet.

    Both are of the validation split.

    Args:
        findings: Audited networks.
        verdict: Rank correlations, for the title.
        epochs: Number of epochs of the separate training, for the label.
        metric: Name of the metric.
    """
    label = metric_of(metric).title
    figure = Figure(figsize=(7, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for group, colour, name in _GROUP_STYLES:
        chosen = [f for f in findings if f.subject.group == group]
        x = [f.supernet.value for f in chosen]
        y = [f.mean_alone for f in chosen]
        axes.errorbar(
            x, y, xerr=_ends([f.supernet for f in chosen]),
            yerr=_ends([f.alone[0] for f in chosen]), fmt="o", ms=5, lw=0.8, capsize=2,
            color=colour, label=name, zorder=3,
        )  # fmt: skip
        for f in chosen:
            for other in f.alone[1:]:
                axes.plot(f.supernet.value, other.value, "x", ms=5, color=colour, zorder=4)
    low = min(*axes.get_xlim(), *axes.get_ylim())
    high = max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([low, high], [low, high], color="#999999", lw=0.8, ls="--", zorder=1)
    axes.annotate("equal", (low, low), xytext=(4, 12), textcoords="offset points", color="#777777")
    axes.set_xlabel(f"{label} in the supernet (validation split)")
    axes.set_ylabel(f"{label} trained alone, {epochs} epochs (validation split)")
    axes.set_title(
        f"Kendall's tau {verdict.kendall}, Spearman's rho {verdict.spearman}", fontsize=10
    )
    axes.legend(loc="lower right", frameon=False, title="bars: 95 %; crosses: another seed")
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _ends(figures: Sequence[Quantity]) -> list[list[float]]:
    return [[f.value - f.lower for f in figures], [f.upper - f.value for f in figures]]


def with_audit(page: str, png: bytes, sentences: Sequence[str]) -> str:
    """Return the HTML of a search's page with a section on an audit, in place of an earlier one.

    Args:
        page: HTML of the page; the file is not changed.
        png: Content of a PNG file, as of ``audit_png``.
        sentences: Paragraphs above the picture.

    Raises:
        RunError: ``page`` has no place for sections, as it was not written by a search.
    """
    picture = base64.b64encode(png).decode()
    lines = "".join(f'<p class="note">{html.escape(line)}</p>' for line in sentences)
    section = (
        f"<h2>Audit of the supernet</h2>{lines}"
        f'<img alt="trained alone over in the supernet" width="760" '
        f'src="data:image/png;base64,{picture}">'
    )
    audited = with_section(page, "audit", section)
    if audited is None:
        raise RunError(
            "report.html was not written by a search or is damaged, so the audit was not added to "
            "it; its figures are in the files in audit/."
        )
    return audited
