"""A member of a front with what verification found of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hwnas import backends, metrics
from hwnas.budget import side
from hwnas.cost.in_float import is_outrun, words
from hwnas.figure import Figure, Figures
from hwnas.results import Candidate, Row
from hwnas.space import Space

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
    return metrics.quality(name.rpartition("_")[0] for name in figures)


@dataclass(frozen=True)
class Member:
    """A member of the front with what its compiled artefact showed."""

    candidate: Candidate
    figures: Figures  #: by ``verified_names``
    details: Mapping[str, float]  #: components of the energy, utilisation, cycles
    files: Mapping[str, str]  #: sha256 by the suffix of a file
    over_budget: tuple[str, ...] = ()  #: limits that it leaves after verification
    on_front: bool = True  #: whether it fits, and no other that fits dominates it
    #: whether it fits, and none dominates it at the better end of its metric's 95 % interval
    near_front: bool = False
    segments: Sequence[Figures] = ()  #: of a network with exits: what each segment costs

    @property
    def metric(self) -> str:
        """Column of the figure that says how well networks answer."""
        return metric_of(self.figures)

    @property
    def quality(self) -> Figure:
        """How well the artefact itself answers, on the test split."""
        return self.figures[own(self.metric, self.figures)]

    def dtype(self, of_target: str) -> str:
        """Return in which dtype the artefact computes, given that of the target."""
        if own(self.metric, self.figures).endswith("_int8"):
            return "int8"
        return "float32" if of_target == "int8" else of_target

    @property
    def is_outrun(self) -> bool:
        """Whether it computes in int8 and was not measured to be faster than in float32."""
        return is_outrun(self.details)

    @property
    def is_deliverable(self) -> bool:
        """Whether it is within the budget, and not outrun by itself in float32."""
        return not self.over_budget and not self.is_outrun

    @property
    def refusal(self) -> str:
        """Why it is not delivered though it fits, in a sentence; empty if it is."""
        if not self.is_outrun:
            return ""
        told = f"{self.candidate.id} is not delivered: in int8 it takes {words(self.details)}."
        foretold = self.candidate.figures["latency_ms"].source != "measured"
        return told + " cost=measured finds that out in the search." * foretold

    @property
    def label(self) -> str:
        """What verification changed, in words; empty if nothing."""
        if self.over_budget:
            return "; ".join(f"{side(name)} budget.{name}" for name in self.over_budget)
        if self.is_outrun:
            return "no faster than in float32"
        if self.on_front:
            return ""
        return NEAR if self.near_front else "left the front"

    def row(self, space: Space) -> Row:
        """Return searched and verified figures as one row."""
        row = self.candidate.row(space, self.metric)
        for name in verified_names(self.metric):
            if name in self.figures:
                row |= self.figures[name].columns(f"verified_{name}")
        row |= {f"verified_{name}": value for name, value in self.details.items()}
        row["verified_fits_budget"] = not self.over_budget
        row["verified_on_front"] = self.on_front
        row["verified_near_front"] = self.near_front
        columns = backends.columns()
        for suffix, digest in self.files.items():
            if suffix not in columns:  # of a segment
                continue
            column = columns[suffix]
            path = f"models/{self.candidate.id}{suffix}"
            row |= {column: path, f"{column}_sha256": digest}
        return row
