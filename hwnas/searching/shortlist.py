"""The candidates that are expected to gain most, and what is said of the one that is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.searching.choices import Bred, Choices
from hwnas.searching.expectation import CostedCandidates, Expectation
from hwnas.searching.history import Scale
from hwnas.searching.proposal import Proposal

Array = NDArray[np.float64]
Scored = tuple[float, Bred, Array]  #: what it is chosen by, candidate, its costs ``(m,)``


@dataclass(frozen=True)
class Chosen:
    """The candidate that is proposed."""

    bred: Bred
    costs: Array  #: ``(m,)``, by which its gain was computed
    n_candidates: int  #: whose gains were computed
    n_costed: int  #: of these, by computed costs


def ranked(space: Choices, best: Sequence[Scored], model: Expectation) -> list[Scored]:
    """Return candidates by what another model chooses them by, the best first."""
    assignments = [bred.assignment for _, bred, _ in best]
    costs = np.stack([costs for _, _, costs in best])
    merits = model.merits(CostedCandidates(assignments, space.vectors(assignments), costs)).tolist()
    rows = [(merit, bred, costs) for merit, (_, bred, costs) in zip(merits, best, strict=True)]
    return sorted(rows, key=lambda row: -row[0])


def account(space: Choices, chosen: Chosen, model: Expectation, scale: Scale) -> Proposal:
    """Return what was expected of a candidate."""
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
