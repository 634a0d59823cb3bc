"""A member of a front with what verification found of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas import backends, metrics
from hwnas.budget import side
from hwnas.figure import Figure, Figures
from hwnas.results import Candidate, Row
from hwnas.space import Space


def verified_names() -> tuple[str, ...]:
    """Return the names of verified figures, in the order of the columns ``verified_<name>``.

    ``accuracy_int8`` is there where the artefact computes in int8; where it computes in fp32,
    ``accuracy_fp32`` is its own.
    """
    return ("accuracy_fp32", "accuracy_int8", *metrics.costs())


@dataclass(frozen=True)
class Member:
    """A member of the front with what its compiled artefact showed."""

    candidate: Candidate
    figures: Figures  #: by ``verified_names``
    details: Mapping[str, float]  #: components of the energy, utilisation, cycles
    files: Mapping[str, str]  #: sha256 by the suffix of a file
    over_budget: tuple[str, ...] = ()  #: limits that it leaves after verification
    on_front: bool = True  #: whether it fits, and no other that fits dominates it
    #: whether it fits, and none dominates it at the upper end of its accuracy's 95 % interval
    near_front: bool = False

    @property
    def accuracy(self) -> Figure:
        """The accuracy of the artefact itself, on the test split."""
        name = "accuracy_int8" if "accuracy_int8" in self.figures else "accuracy_fp32"
        return self.figures[name]

    @property
    def label(self) -> str:
        """What verification changed, in words; empty if nothing."""
        if self.over_budget:
            return "; ".join(f"{side(name)} budget.{name}" for name in self.over_budget)
        if self.on_front:
            return ""
        return "within its interval of the front" if self.near_front else "left the front"

    def row(self, space: Space) -> Row:
        """Return searched and verified figures as one row."""
        row = self.candidate.row(space)
        for name in verified_names():
            if name in self.figures:
                row |= self.figures[name].columns(f"verified_{name}")
        row |= {f"verified_{name}": value for name, value in self.details.items()}
        row["verified_fits_budget"] = not self.over_budget
        row["verified_on_front"] = self.on_front
        row["verified_near_front"] = self.near_front
        columns = backends.columns()
        for suffix, digest in self.files.items():
            column = columns[suffix]
            path = f"models/{self.candidate.id}{suffix}"
            row |= {column: path, f"{column}_sha256": digest}
        return row
