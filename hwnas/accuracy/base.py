"""How well a candidate classifies."""

from typing import Protocol

from hwnas.figure import Figure
from hwnas.space import Genotype


class Evaluator(Protocol):
    """Says how accurate a genotype is."""

    def accuracy(self, genotype: Genotype) -> Figure:
        """Return the fraction of the validation split that is classified rightly."""
        ...
