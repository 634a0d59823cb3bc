"""Members of verified fronts, on one target or on several."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware import backends
from hwnas.hardware.derived_metrics import describe_ratio, int8_is_slower
from hwnas.models.spaces import Space
from hwnas.nas.candidates import Candidate
from hwnas.tasks import metrics
from hwnas.tasks.base import Confusion
from hwnas.tasks.metrics.budget import violated_side

T = TypeVar("T")
#: Label of a member that is dominated, but not significantly.
NEAR = "not significantly off the front"


def verified_names(metric: str) -> tuple[str, ...]:
    """Return the names of verified quantities, in the order of the columns ``verified_<name>``.

    The metric of the compiled file is ``<metric>_int8`` if it computes in int8, else
    ``<metric>_fp32``. Other metrics are those of the compiled file. A member may lack some names.
    """
    others = (name for name in metrics.quality_names() if name != metric)
    return (f"{metric}_fp32", f"{metric}_int8", *others, *metrics.cost_names())


def artefact_metric(metric: str, figures: Collection[str]) -> str:
    """Return the name of the compiled file's metric among the names ``figures``.

    It is ``<metric>_int8`` if this is one of them, else ``<metric>_fp32``.
    """
    return f"{metric}_int8" if f"{metric}_int8" in figures else f"{metric}_fp32"


def metric_of(figures: Iterable[str]) -> str:
    """Return the name of the metric among names of verified quantities.

    It has neither target nor dtype: ``accuracy`` for ``npu.accuracy_int8``.
    """
    return metrics.quality_in(name.rpartition(".")[2].rpartition("_")[0] for name in figures)


@dataclass(frozen=True)
class Member:
    """A candidate with the verified quantities of its compiled files.

    Names of quantities of a network for all of several targets have a prefix: ``npu.latency_ms``.
    """

    candidate: Candidate
    figures: Quantities  #: verified metric and costs, by the names of ``verified_names``
    details: Mapping[str, float]  #: other numbers by column: parts of the energy, cycles, ...
    files: Mapping[str, str]  #: SHA-256 of each compiled file, by its suffix
    over_budget: tuple[str, ...] = ()  #: names of limits that are exceeded after verification
    #: whether it is deliverable and non-dominated; ``None``: not determined yet
    on_front: bool | None = True
    #: whether it is deliverable and not dominated significantly
    near_front: bool = False
    segments: Sequence[Quantities] = ()  #: costs of each segment between exits, if it has exits
    confusion: Confusion | None = None  #: of the compiled file on the test split, with classes only

    @property
    def metric(self) -> str:
        """Name of the metric, for example ``accuracy``."""
        return metric_of(self.figures)

    @property
    def quality_text(self) -> str:
        """The metric with its 95 % interval, as ``0.9972 (0.984-1.000)``."""
        value = metrics.format_value(self.metric, self.quality.value)
        to = "-" if metrics.metric_of(self.metric).perfect == 1 else " to "
        interval = metrics.format_interval(self.metric, self.quality, ".3f", to)
        return f"{value} ({interval})" if interval else value

    @property
    def is_for_all(self) -> bool:
        """Whether its quantities are of several targets, such as ``npu.latency_ms``."""
        return any("." in name for name in self.figures)

    @property
    def parts(self) -> "dict[str, Member]":
        """The member on each target, by name of the target; ``{"": self}`` for one target."""
        if not self.is_for_all:
            return {"": self}
        return {
            target: replace(
                self,
                figures=without_prefix(f"{target}.", self.figures),
                details=without_prefix(f"{target}.", self.details),
                files=without_prefix(f"{target}.", self.files),
                over_budget=(*without_prefix(f"{target}.", dict.fromkeys(self.over_budget)),),
            )
            for target in dict.fromkeys(name.rpartition(".")[0] for name in self.figures)
        }

    @property
    def quality(self) -> Quantity:
        """The compiled file's metric on the test split; the worst one of several targets."""
        metric = self.metric
        parts = self.parts.values()
        figures = [part.figures[artefact_metric(metric, part.figures)] for part in parts]
        worst = min if metrics.metric_of(metric).maximise else max
        return worst(figures, key=lambda figure: figure.value)

    @property
    def all_figures(self) -> Quantities:
        """The verified quantities, and ``quality`` by the metric's name, such as ``accuracy``.

        For several targets, also that of each: ``npu.accuracy``.
        """
        of_parts = {f"{t}.{self.metric}": part.quality for t, part in self.parts.items() if t}
        return {**self.figures, **of_parts, self.metric: self.quality}

    def dtype(self, of_target: str) -> str:
        """Return the number format of the compiled file: ``int8``, or a format of floats.

        Args:
            of_target: Number format of the target; for ``int8``, floats are ``float32``.
        """
        if artefact_metric(self.metric, self.figures).endswith("_int8"):
            return "int8"
        return "float32" if of_target == "int8" else of_target

    @property
    def int8_is_slower(self) -> bool:
        """Whether it computes in int8, and was measured to be no faster than in float32."""
        return any(int8_is_slower(part.details) for part in self.parts.values())

    @property
    def int8_slowdown(self) -> str:
        """The latency in int8 relative to float32 as text, on targets where it is no faster."""
        return " and ".join(
            describe_ratio(part.details) + f" on {target}" * bool(target)
            for target, part in self.parts.items()
            if int8_is_slower(part.details)
        )

    @property
    def is_deliverable(self) -> bool:
        """Whether it meets the budget, and ``int8_is_slower`` is false."""
        return not self.over_budget and not self.int8_is_slower

    @property
    def refusal(self) -> str:
        """Sentence on why a network for one target is not delivered, or empty.

        It is empty unless ``int8_is_slower``.
        """
        if not self.int8_is_slower:
            return ""
        text = f"{self.candidate.id} is not delivered: in int8 it takes {self.int8_slowdown}."
        was_predicted = self.candidate.figures["latency_ms"].source != "measured"
        return text + " With cost=measured the search measures this." * was_predicted

    @property
    def label(self) -> str:
        """Why it is not on the front (limits, int8 or dominance) as text for tables, or empty."""
        if self.over_budget:
            prefix = "" if self.is_for_all else "budget."
            return "; ".join(f"{violated_side(name)} {prefix}{name}" for name in self.over_budget)
        if self.int8_is_slower and not self.is_for_all:
            return "no faster than in float32"
        if self.on_front:
            return ""
        return NEAR if self.near_front else "left the front"

    def row(self, space: Space) -> Row:
        """Return the quantities of the search and of verification as one row, by column.

        Those of verification have the prefix ``verified_``.
        """
        row = self.candidate.row(space, self.metric)
        names = self.figures if self.is_for_all else verified_names(self.metric)
        for name in names:
            if name in self.figures:
                row |= self.figures[name].columns(f"verified_{name}")
        fits = not self.over_budget
        status: Row = {"verified_fits_budget": fits, "verified_on_front": self.on_front}
        status["verified_near_front"] = self.near_front
        if self.is_for_all:  # the fronts of its targets have the details
            return row | status
        row |= {f"verified_{name}": value for name, value in self.details.items()}
        return row | status | self._files()

    def _files(self) -> Row:
        """Return the columns of files, without the files of segments."""
        row, columns = Row(), backends.columns()
        for suffix, digest in self.files.items():
            if suffix in columns:
                path = f"models/{self.candidate.id}{suffix}"
                row |= {columns[suffix]: path, f"{columns[suffix]}_sha256": digest}
        return row


def without_prefix(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return the values whose names begin with ``prefix``, by name without it."""
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
