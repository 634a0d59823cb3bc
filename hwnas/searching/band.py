"""Which candidates are worth finishing: those that may be on the front.

What search reads of a candidate is noisy, and of another training than the one that is delivered.
Once some candidates are finished, what search read of the others is translated into what finishing
would make of them (``accuracy.fidelity``). ``belief`` then says how likely each is on the front.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hwnas.accuracy import fidelity
from hwnas.figure import Figure
from hwnas.graph import Graph
from hwnas.metrics import quality
from hwnas.results import Candidate
from hwnas.searching import columns
from hwnas.searching.belief import Belief, beliefs, scored
from hwnas.searching.view import View
from hwnas.space import Genotype, Space

_LEAST = 1e-9  # of what has a logarithm


@dataclass(frozen=True)
class Beliefs:
    """What is known of all candidates of a search on one target."""

    candidates: list[Candidate]  #: all, with what is believed of how well they answer
    on_front: Mapping[str, float]  #: probability, by id, of those that were scored

    def band(self, probability: float, n_least: int = 0) -> list[Candidate]:
        """Return the candidates that are at least so probable, or else the most probable ones.

        Returns:
            Each genotype once, the most probable first.
        """
        distinct = {c.id: c for c in reversed(self.candidates) if c.id in self.on_front}
        order = sorted(distinct.values(), key=lambda c: (-self.on_front[c.id], c.id))
        n = sum(self.on_front[c.id] >= probability for c in order)
        return order[: max(n, n_least)]


def known(
    space: Space,
    candidates: Sequence[Candidate],
    view: View,
    finished: Mapping[str, Figure],
    lower: Callable[[Genotype], Graph] | None = None,
) -> Beliefs:
    """Return what is believed of all candidates, given what some are after finishing.

    Args:
        space: Of the candidates.
        candidates: As search read them.
        view: Of the target.
        finished: The metric after finishing, on the validation split, by id.
        lower: Returns the operators of a network, which sum it up; none: nothing does.
    """
    seen = [view.seen(candidate) for candidate in candidates]
    of_use = scored(seen, view.objectives)
    metric = quality(view.objectives)
    pairs = [
        (c.figures[metric].value, finished[c.id].value)
        for c in {c.id: c for c in of_use}.values()
        if c.id in finished
    ]
    translated = columns.is_enough(len(pairs))

    def reading(candidate: Candidate) -> Candidate:
        figure = candidate.figures[metric]
        if translated:
            expected = fidelity.outlook(metric, figure.value, pairs)
            spread = 0.0 if candidate.state == "complete" else fidelity.log_std(metric, figure)
            figure = finished.get(candidate.id) or expected.widened(spread).figure
        return replace(candidate, figures={**candidate.figures, metric: figure})

    readings = [reading(candidate) for candidate in of_use]
    found = dict(
        zip((c.id for c in readings), beliefs(space, readings, view.objectives, lower), strict=True)
    )
    return Beliefs(
        [_believed(candidate, metric, found, finished) for candidate in seen],
        {name: belief.on_front for name, belief in found.items()},
    )


def spread(candidates: Sequence[Candidate], finished: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates in an order of which any part fills the front.

    Each is the one that is farthest from all before it and from what is finished, in the logarithm
    of its cost, times the probability that it is on the front: steps of a front are felt as ratios,
    and networks that cost little are trained in little time.
    """
    places = [_log_cost(c) for c in finished]
    left = sorted(candidates, key=lambda c: (_log_cost(c), c.id))
    found: list[Candidate] = []

    def worth(candidate: Candidate) -> float:
        own = _log_cost(candidate)
        gap = min((abs(own - place) for place in places), default=1.0)
        return gap * float(candidate.details[columns.ON_FRONT])

    while left:
        best = max(left, key=worth)
        left.remove(best)
        found.append(best)
        places.append(_log_cost(best))
    return found


def _log_cost(candidate: Candidate) -> float:
    """Return the logarithm of a candidate's latency, on the target where it is lowest."""
    figures = candidate.figures.items()
    known = [f.value for name, f in figures if name.rpartition(".")[2] == "latency_ms"]
    return math.log(max(min(known, default=1.0), _LEAST))


def _believed(
    candidate: Candidate,
    metric: str,
    found: Mapping[str, Belief],
    finished: Mapping[str, Figure],
) -> Candidate:
    """Return a candidate with what is believed of its metric beside what was read."""
    if candidate.id not in found or metric not in candidate.figures:
        return candidate
    own = found[candidate.id]
    read = candidate.figures[metric].value
    details = {**candidate.details, columns.read(metric): read, columns.ON_FRONT: own.on_front}
    if candidate.id in finished:
        details[columns.finished(metric)] = finished[candidate.id].value
    figures = {**candidate.figures, metric: own.figure}
    return replace(candidate, figures=figures, details=details)
