"""Candidates of a space with what they cost, as far as that can be computed."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.searching.choices import Assignment, Choices
from hwnas.searching.expectation import CostedCandidates
from hwnas.searching.modelled import ModelledCost

Array = NDArray[np.float64]
#: Assignments to their costs ``(n, m)``: each objective but the expensive one, in the study's
#: order. Not finite where a candidate cannot run or breaks a limit: it is not proposed.
Costs = Callable[[Sequence[Assignment]], Array]

ENUMERATED = 50_000  #: assignments up to which all of a space are looked at


@final
class Costed:
    """Says which candidates fit all limits, and what they cost.

    Args:
        space: What is chosen among.
        costs: Computes costs; ``None`` where they are only told.
        n_costs: How many are computed for one proposal; ``None``: as many as are wanted.
    """

    def __init__(self, space: Choices, costs: Costs | None, n_costs: int | None):
        self.space, self.n_costs = space, n_costs
        self._costs = costs
        self._all: CostedCandidates | None = None

    def of(
        self, assignments: Sequence[Assignment], modelled: Sequence[ModelledCost] = ()
    ) -> CostedCandidates:
        """Return candidates that fit all limits, with their features and costs.

        Args:
            assignments: Any.
            modelled: What stands in for the costs, if anything.
        """
        features = self.space.vectors(assignments)
        if modelled:
            costs = np.column_stack([cost.predict(features) for cost in modelled])
        elif self._costs is not None:
            costs = np.asarray(self._costs(assignments), np.float64)
        else:
            costs = np.zeros((len(assignments), 0))
        fits = np.asarray(np.isfinite(costs).all(axis=1))
        kept = [a for a, fit in zip(assignments, fits.tolist(), strict=True) if fit]
        return CostedCandidates(kept, features[fits], costs[fits])

    @property
    def are_told(self) -> bool:
        """Whether nothing computes costs: they are known of what was tried."""
        return self._costs is None

    @property
    def are_computed(self) -> bool:
        """Whether the costs of all candidates are computed at once."""
        return self._is_small and not self.are_modelled

    @property
    def are_modelled(self) -> bool:
        """Whether a model stands in for the costs until a few candidates are chosen."""
        return self.are_told or self.n_costs is not None

    @property
    def are_listed(self) -> bool:
        """Whether all candidates are looked at."""
        return self._is_small and self.n_costs is None

    @property
    def _is_small(self) -> bool:
        return self.space.size <= ENUMERATED

    def all(self, modelled: Sequence[ModelledCost] = ()) -> CostedCandidates:
        """Return all candidates of the space."""
        if self._costs is None:
            return self.of(self.space.all(), modelled)
        if self._all is None:
            self._all = self.of(self.space.all())
        return self._all
