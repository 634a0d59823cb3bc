"""The searched front: what no other candidate of a search dominates."""

from collections.abc import Iterable, Sequence

import numpy as np

from hwnas.metrics import maximised, paid
from hwnas.pareto import Array, ParetoFront
from hwnas.results import Candidate


def pareto_front(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the non-dominated feasible candidates, each genotype once, fastest first.

    Only what was read whole is on it. Where no latency is known, the first cost stands in for it.
    """
    scored = [c for c in candidates if c.state == "complete"]
    feasible = distinct([c for c in scored if all(name in c.figures for name in objectives)])
    front, cost = ParetoFront[Candidate](maximised(objectives)), paid(objectives)[0]
    front.add(feasible, points(feasible, objectives))
    return sorted(
        front.members, key=lambda c: (c.figures.get("latency_ms", c.figures[cost]).value, c.id)
    )


def distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return each candidate as it came first, in order of trials."""
    first: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: c.trial):
        first.setdefault(candidate.id, candidate)
    return list(first.values())


def points(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Array:
    """Return the objectives of candidates ``(n, objectives)``."""
    values = [[c.figures[name].value for name in objectives] for c in candidates]
    return np.array(values, np.float64).reshape(len(candidates), len(objectives))
