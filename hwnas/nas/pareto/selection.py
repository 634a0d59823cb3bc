"""Selection of the candidate with the highest expected gain, among all or by evolution."""

import random
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.core.pareto import non_dominated
from hwnas.nas.pareto.expectation import CostedCandidates, Expectation, History
from hwnas.nas.pareto.features import Assignment, Offspring, ProposalSpace
from hwnas.nas.pareto.history import ObjectiveScale
from hwnas.nas.pareto.models import LARGEST, ModelledCost
from hwnas.nas.trial_attributes import Proposal

# Candidates of a space with their costs.

Array = NDArray[np.float64]
#: Maps assignments to costs ``(n, m)``: all objectives except the expensive one, in the study's
#: order, to be minimised. Costs of infeasible candidates are NaN, or of a magnitude above
#: ``LARGEST``; they are not proposed.
Costs = Callable[[Sequence[Assignment]], Array]

ENUMERATED = 50_000  #: maximum size of a space that is enumerated


@final
class CostedSpace:
    """Computes the costs and the feasibility of candidates.

    Args:
        space: Space of the candidates.
        costs: Returns costs of assignments; ``None`` if costs are known only after a trial.
        n_costs: Maximum number of candidates with computed costs per proposal; ``None``: no limit.
        n_objectives: Number of objectives of the study.
    """

    def __init__(
        self, space: ProposalSpace, costs: Costs | None, n_costs: int | None, n_objectives: int
    ):
        self.space, self.n_costs = space, n_costs
        self._costs, self._width = costs, n_objectives - 1
        self._all: CostedCandidates | None = None

    def of(
        self, assignments: Sequence[Assignment], modelled: Sequence[ModelledCost] = ()
    ) -> CostedCandidates:
        """Return the feasible candidates with their features and costs.

        Args:
            assignments: Assignments of candidates.
            modelled: Models that replace computed costs. Without models and computed costs, all
                candidates are returned, with costs ``(n, 0)``.

        Raises:
            ConfigError: The function of costs returned an array of another shape.
        """
        features = self.space.vectors(assignments)
        if modelled:
            costs = np.column_stack([cost.predict(features) for cost in modelled])
        elif self._costs is not None:
            costs = self._computed_costs(self._costs, assignments)
        else:
            costs = np.zeros((len(assignments), 0))
        fits = np.asarray((np.abs(costs) <= LARGEST).all(axis=1))  # False for NaN
        feasible = [a for a, fit in zip(assignments, fits.tolist(), strict=True) if fit]
        return CostedCandidates(feasible, features[fits], costs[fits])

    def _computed_costs(self, costs: Costs, assignments: Sequence[Assignment]) -> Array:
        """Return the costs of candidates, ``(n, m)``.

        Raises:
            ConfigError: The function returned an array of another shape.
        """
        values, shape = np.asarray(costs(assignments), np.float64), (len(assignments), self._width)
        if values.shape != shape:
            raise ConfigError(
                f"ParetoSampler: costs() returned an array of shape {values.shape} for {shape[0]} "
                f"candidates. Expected: {shape}, one row for each candidate and one column for "
                "each objective except the expensive one"
            )
        return values

    @property
    def are_observed(self) -> bool:
        """Whether costs are known only after a trial."""
        return self._costs is None

    @property
    def are_computed(self) -> bool:
        """Whether the costs of all candidates are computed, which are 50,000 or fewer."""
        return self._is_small and not self.are_modelled

    @property
    def are_modelled(self) -> bool:
        """Whether candidates are compared by costs that models of earlier trials predict.

        True if costs are known only after a trial, or ``n_costs`` is set. With ``n_costs``, exact
        costs of the best candidates are then computed before one is proposed.
        """
        return self.are_observed or self.n_costs is not None

    @property
    def are_listed(self) -> bool:
        """Whether gains are computed for all candidates, which are 50,000 or fewer."""
        return self._is_small and self.n_costs is None

    @property
    def _is_small(self) -> bool:
        return self.space.size <= ENUMERATED

    def all(self, modelled: Sequence[ModelledCost] = ()) -> CostedCandidates:
        """Return all feasible candidates of the space, with their features and costs.

        Computed costs are cached; models are used only if costs are known after a trial.
        """
        if self._costs is None:
            return self.of(self.space.all(), modelled)
        if self._all is None:
            self._all = self.of(self.space.all())
        return self._all


# Selection of candidates by expected gain, and the record of a proposal.

Scored = tuple[float, Offspring, Array]  #: merit, candidate, its costs ``(m,)``


@dataclass(frozen=True)
class ShortlistedCandidate:
    """The candidate that is proposed."""

    bred: Offspring  #: its assignment and parents
    costs: Array  #: computed or modelled, ``(m,)``
    n_candidates: int  #: number of candidates with computed gains
    n_costed: int  #: number of these with computed costs


def ranked(space: ProposalSpace, best: Sequence[Scored], model: Expectation) -> list[Scored]:
    """Return candidates with the merits of another model, highest merit first."""
    assignments = [bred.assignment for _, bred, _ in best]
    costs = np.stack([costs for _, _, costs in best])
    merits = model.merits(CostedCandidates(assignments, space.vectors(assignments), costs)).tolist()
    rows = [(merit, bred, costs) for merit, (_, bred, costs) in zip(merits, best, strict=True)]
    return sorted(rows, key=lambda row: -row[0])


def account(
    space: ProposalSpace, chosen: ShortlistedCandidate, model: Expectation, scale: ObjectiveScale
) -> Proposal:
    """Return the record of a proposal with the predictions of the model."""
    assignment = chosen.bred.assignment
    known = CostedCandidates([assignment], space.vectors([assignment]), chosen.costs[None])
    *errors, std = model.intervals(known)[0].tolist()
    median, low, high = (scale.value(error) for error in errors)
    modelled = [float(cost.predict(known.features)[0]) for cost in model.costs]
    return Proposal(
        "gain",
        chosen.n_candidates,
        chosen.n_costed,
        expected=(median, min(low, high), max(low, high)),
        std=std,
        costs=scale.costs(np.array(modelled)) if modelled else (),
        gain=float(replace(model, curiosity=1.0).gains(known)[0]) if model.volume else None,
        parents=tuple(sorted(chosen.bred.ancestors)),
        by_ratio=model.by_ratio,
        curiosity=model.curiosity,
        seconds=None if model.pace is None else float(model.pace([assignment])[0]),
    )


_POOL, _GENERATIONS = 200, 3  # of an evolution, if the space is not enumerated
_LONG_S, _MORE_GENERATIONS = 10.0, 6  # duration of trials from which more generations pay off
_SHORTLIST = 40  # number of parents of a generation, and of candidates for exact costs


def of_all(
    costed: CostedSpace, taken: Container[Hashable], model: Expectation
) -> tuple[list[Scored], int]:
    """Return the best candidates not proposed yet, and the number of all candidates not proposed.

    Best first, at most 40.
    """
    space, known = costed.space, costed.all(model.costs)
    merits = model.merits(known)
    order: list[int] = np.argsort(-merits, kind="stable").tolist()
    free = [i for i in order if space.key(known.assignments[i]) not in taken]
    best = free[:_SHORTLIST]
    rows = [(float(merits[i]), Offspring(known.assignments[i]), known.costs[i]) for i in best]
    return rows, len(free)


def evolved(
    costed: CostedSpace,
    history: History,
    taken: Container[Hashable],
    model: Expectation,
    rng: random.Random,
) -> tuple[list[Scored], int]:
    """Return the best candidates of an evolution that starts at the front, best first, at most 40.

    The second value is the number of candidates that were compared.
    """
    space = costed.space
    points = np.column_stack([history.errors, history.costs])
    front = np.flatnonzero(non_dominated(points, [False] * points.shape[1])).tolist()
    parents = [Offspring(history.assignments[i], frozenset({history.numbers[i]})) for i in front]
    pool: dict[Hashable, Offspring] = {}
    best: list[Scored] = []
    n_known = 0
    are_long = model.pace is not None and model.pace.usual_s >= _LONG_S
    for generation in range(_MORE_GENERATIONS if are_long else _GENERATIONS):
        children = [space.child(parents, rng) for _ in range(_POOL)]
        if generation == 0:
            children += [Offspring(space.draw(rng)) for _ in range(_POOL // 2)]
        keys = ((space.key(bred.assignment), bred) for bred in children)
        new = {key: bred for key, bred in keys if key not in taken and key not in pool}
        if not new:
            continue
        pool |= new
        known = costed.of([bred.assignment for bred in new.values()], model.costs)
        n_known += len(known.assignments)
        merits = model.merits(known).tolist()
        rows = zip(merits, known.assignments, known.costs, strict=True)
        best += [(merit, pool[space.key(a)], costs) for merit, a, costs in rows]
        best = sorted(best, key=lambda row: -row[0])[:_SHORTLIST]
        parents = [bred for _, bred, _ in best] or parents
    return best, n_known


def exact(
    costed: CostedSpace,
    best: Sequence[Scored],
    n_candidates: int,
    model: Expectation,
    others: Callable[[], tuple[Sequence[Assignment], int]],
) -> ShortlistedCandidate:
    """Return the best of ``n_costs`` feasible candidates by computed costs.

    If other workers evaluate all of them, it is the best of the next ones. Without a limit of
    computed costs, or if no candidate is feasible, it is the first of ``best``. Candidates of other
    workers are avoided. They are read last, as the selection takes time.

    Args:
        costed: Returns the costs of candidates.
        best: Candidates to choose from, best first.
        n_candidates: Number of compared candidates, for the record.
        model: Returns the merits of candidates.
        others: Returns the pending candidates of other workers, and the number of earlier trials
            without a choice.
    """
    space = costed.space

    def place(keys: Sequence[Hashable]) -> int | None:
        pending, n_ahead = others()
        taken = {space.key(assignment) for assignment in pending}
        free = [i for i, key in enumerate(keys) if key not in taken]
        return free[min(n_ahead, len(free) - 1)] if free else None

    keys = [space.key(bred.assignment) for _, bred, _ in best]
    _, bred, costs = best[place(keys) or 0]
    first = ShortlistedCandidate(bred, costs, n_candidates, 0 if model.costs else n_candidates)
    if not costed.n_costs:
        return first
    by_key = dict(zip(keys, (bred for _, bred, _ in best), strict=True))
    feasible: list[tuple[float, Hashable, Array]] = []
    n_costed, n_wanted = 0, costed.n_costs
    while n_costed < len(best):
        part = best[n_costed : n_costed + n_wanted - len(feasible)]
        known = costed.of([bred.assignment for _, bred, _ in part])
        merits = model.merits(known).tolist() if known.assignments else []
        feasible += zip(merits, map(space.key, known.assignments), known.costs, strict=True)
        n_costed += len(part)
        if len(feasible) < n_wanted and n_costed < len(best):
            continue
        order = sorted(feasible, key=lambda row: -row[0])
        if (i := place([key for _, key, _ in order])) is not None:
            _, key, costs = order[i]
            return replace(first, bred=by_key[key], costs=costs, n_costed=n_costed)
        n_wanted += costed.n_costs
    return replace(first, n_costed=n_costed)
