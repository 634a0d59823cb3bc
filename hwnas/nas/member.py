"""A member of a front with what verification found of it, on one target or on several."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware import backends
from hwnas.hardware.costs.int8_speed import describe_ratio, int8_is_slower
from hwnas.models.spaces import Space
from hwnas.nas.candidates import Candidate
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import side

T = TypeVar("T")
NEAR = "not told from the front"  #: the label of a member that chance alone may have moved off it


def verified_names(metric: str) -> tuple[str, ...]:
    """Return the names of verified figures, in the order of the columns ``verified_<name>``.

    ``<metric>_int8`` is there where the artefact computes in int8; where it computes in floats,
    ``<metric>_fp32`` is its own.
    """
    return (f"{metric}_fp32", f"{metric}_int8", *metrics.costs())


def own(metric: str, figures: Collection[str]) -> str:
    """Return which of the verified figures says how well the artefact itself answers."""
    return f"{metric}_int8" if f"{metric}_int8" in figures else f"{metric}_fp32"


def metric_of(figures: Iterable[str]) -> str:
    """Return the metric that verified figures have in fp32 or int8."""
    return metrics.quality(name.rpartition(".")[2].rpartition("_")[0] for name in figures)


@dataclass(frozen=True)
class Member:
    """A member of the front with what its compiled artefact showed.

    Of a network for all targets of a search, names of what was found on one of them begin with that
    one's: ``npu.latency_ms``.
    """

    candidate: Candidate
    figures: Quantities  #: by ``verified_names``
    details: Mapping[str, float]  #: components of the energy, utilisation, cycles
    files: Mapping[str, str]  #: sha256 by the suffix of a file
    over_budget: tuple[str, ...] = ()  #: limits that it leaves after verification
    #: whether it fits, and no other that fits dominates it; ``None``: that was not said yet
    on_front: bool | None = True
    #: whether it fits, and none dominates it at the better end of its metric's 95 % interval
    near_front: bool = False
    segments: Sequence[Quantities] = ()  #: of a network with exits: what each segment costs

    @property
    def metric(self) -> str:
        """Column of the figure that says how well networks answer."""
        return metric_of(self.figures)

    @property
    def is_for_all(self) -> bool:
        """Whether it is a network for all targets of a search."""
        return any("." in name for name in self.figures)

    @property
    def parts(self) -> "dict[str, Member]":
        """What was found on each target, by its name; of one alone all of it, without a name."""
        if not self.is_for_all:
            return {"": self}
        return {
            target: replace(
                self,
                figures=_of(target, self.figures),
                details=_of(target, self.details),
                over_budget=(*_of(target, dict.fromkeys(self.over_budget)),),
            )
            for target in dict.fromkeys(name.rpartition(".")[0] for name in self.figures)
        }

    @property
    def quality(self) -> Quantity:
        """How well the artefact itself answers, on the test split; for all, where it is worst."""
        metric = self.metric
        each = [part.figures[own(metric, part.figures)] for part in self.parts.values()]
        worst = min if metrics.column(metric).maximise else max
        return worst(each, key=lambda figure: figure.value)

    @property
    def all_figures(self) -> Quantities:
        """Its figures, and by the metric's own name, too, how well the artefact answers."""
        of_parts = {f"{t}.{self.metric}": part.quality for t, part in self.parts.items() if t}
        return {**self.figures, **of_parts, self.metric: self.quality}

    def dtype(self, of_target: str) -> str:
        """Return in which dtype the artefact computes, given that of the target."""
        if own(self.metric, self.figures).endswith("_int8"):
            return "int8"
        return "float32" if of_target == "int8" else of_target

    @property
    def is_outrun(self) -> bool:
        """Whether it computes in int8 and was not measured to be faster than in float32."""
        return any(int8_is_slower(part.details) for part in self.parts.values())

    @property
    def outrun(self) -> str:
        """How long it takes in int8, in words, where that is no faster; else empty."""
        told = ""
        for target, part in self.parts.items():
            if int8_is_slower(part.details):
                told = describe_ratio(part.details) + f" on {target}" * bool(target)
        return told

    @property
    def is_deliverable(self) -> bool:
        """Whether it is within the budget, and not outrun by itself in float32."""
        return not self.over_budget and not self.is_outrun

    @property
    def refusal(self) -> str:
        """Why it is not delivered though it fits, in a sentence; empty if it is."""
        if not self.is_outrun:
            return ""
        told = f"{self.candidate.id} is not delivered: in int8 it takes {self.outrun}."
        foretold = self.candidate.figures["latency_ms"].source != "measured"
        return told + " cost=measured finds that out in the search." * foretold

    @property
    def label(self) -> str:
        """What verification changed, in words; empty if nothing."""
        if self.over_budget:
            of = "" if self.is_for_all else "budget."
            return "; ".join(f"{side(name)} {of}{name}" for name in self.over_budget)
        if self.is_outrun and not self.is_for_all:
            return "no faster than in float32"
        if self.on_front:
            return ""
        return NEAR if self.near_front else "left the front"

    def row(self, space: Space) -> Row:
        """Return searched and verified figures as one row."""
        row = self.candidate.row(space, self.metric)
        names = self.figures if self.is_for_all else verified_names(self.metric)
        for name in names:
            if name in self.figures:
                row |= self.figures[name].columns(f"verified_{name}")
        fits = not self.over_budget
        judged: Row = {"verified_fits_budget": fits, "verified_on_front": self.on_front}
        if self.is_for_all:  # the fronts of its targets say more
            return row | judged
        row |= {f"verified_{name}": value for name, value in self.details.items()}
        return row | judged | {"verified_near_front": self.near_front} | self._files()

    def _files(self) -> Row:
        """Return the columns of files, but for those of segments."""
        row, columns = Row(), backends.columns()
        for suffix, digest in self.files.items():
            if suffix in columns:
                path = f"models/{self.candidate.id}{suffix}"
                row |= {columns[suffix]: path, f"{columns[suffix]}_sha256": digest}
        return row


def _of(target: str, values: Mapping[str, T]) -> dict[str, T]:
    """Return what was found on one of several targets, by plain names."""
    prefix = f"{target}."
    return {n.removeprefix(prefix): v for n, v in values.items() if n.startswith(prefix)}
