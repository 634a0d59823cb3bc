"""The searched front: what no other candidate of a search dominates."""

from collections.abc import Sequence

import numpy as np

from hwnas.metrics import column, paid
from hwnas.pareto import non_dominated
from hwnas.results import Candidate


def pareto_front(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the non-dominated feasible candidates, each genotype once, fastest first.

    Only what was read whole is on it. Where no latency is known, the first cost stands in for it.
    """
    scored = [c for c in candidates if c.state == "complete"]
    distinct = {c.id: c for c in reversed(scored) if all(name in c.figures for name in objectives)}
    feasible = sorted(distinct.values(), key=lambda c: c.trial)
    points = np.array([[c.figures[name].value for name in objectives] for c in feasible])
    mask = non_dominated(points, [column(name).maximise for name in objectives])
    members = [c for c, on_front in zip(feasible, mask, strict=True) if on_front]
    cost = paid(objectives)[0]
    return sorted(members, key=lambda c: (c.figures.get("latency_ms", c.figures[cost]).value, c.id))
