"""Which candidate is expected to gain most: among all of a space, or among bred ones."""

import random
from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import replace

import numpy as np

from hwnas.pareto import non_dominated
from hwnas.searching.choices import Assignment, Bred
from hwnas.searching.costed import Costed
from hwnas.searching.expectation import Expectation, History
from hwnas.searching.shortlist import Chosen, Scored

_POOL, _GENERATIONS = 200, 3  # where there are too many to look at all
_LONG_S, _MORE = 10.0, 6  # what trials take, from which more generations are worth their second
_SHORTLIST = 40  # parents of a generation; candidates of which all that can be known is asked


def of_all(
    costed: Costed, taken: Container[Hashable], model: Expectation
) -> tuple[list[Scored], int]:
    """Return the best of all candidates that were not proposed yet, and of how many."""
    space, known = costed.space, costed.all(model.costs)
    merits = model.merits(known)
    order: list[int] = np.argsort(-merits, kind="stable").tolist()
    free = [i for i in order if space.key(known.assignments[i]) not in taken]
    best = free[:_SHORTLIST]
    rows = [(float(merits[i]), Bred(known.assignments[i]), known.costs[i]) for i in best]
    return rows, len(free)


def evolved(
    costed: Costed,
    history: History,
    taken: Container[Hashable],
    model: Expectation,
    rng: random.Random,
) -> tuple[list[Scored], int]:
    """Return the best of some generations: children of the front, of the best of these, ...

    And of how many candidates these are the best.
    """
    space = costed.space
    points = np.column_stack([history.errors, history.costs])
    front = np.flatnonzero(non_dominated(points, [False] * points.shape[1])).tolist()
    parents = [Bred(history.assignments[i], frozenset({history.numbers[i]})) for i in front]
    pool: dict[Hashable, Bred] = {}
    best: list[Scored] = []
    n_known = 0
    are_long = model.pace is not None and model.pace.usual_s >= _LONG_S
    for generation in range(_MORE if are_long else _GENERATIONS):
        drawn = [space.child(parents, rng) for _ in range(_POOL)]
        if generation == 0:
            drawn += [Bred(space.draw(rng)) for _ in range(_POOL // 2)]
        keys = ((space.key(bred.assignment), bred) for bred in drawn)
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
    costed: Costed,
    best: Sequence[Scored],
    n_candidates: int,
    model: Expectation,
    others: Callable[[], tuple[Sequence[Assignment], int]],
) -> Chosen:
    """Return the best by computed costs, some at a time until one fits all limits.

    Where others choose from the same, each takes another one: all this takes a while, so that they
    are looked for at its end.

    Args:
        costed: What computes costs.
        best: What is chosen from, the best first.
        n_candidates: How many were looked at.
        model: What is expected.
        others: Returns what others chose by now, and how many choose before this one does.
    """
    space = costed.space

    def place(keys: Sequence[Hashable]) -> int | None:
        pending, n_ahead = others()
        taken = {space.key(assignment) for assignment in pending}
        free = [i for i, key in enumerate(keys) if key not in taken]
        return free[min(n_ahead, len(free) - 1)] if free else None

    keys = [space.key(bred.assignment) for _, bred, _ in best]
    _, bred, costs = best[place(keys) or 0]
    first = Chosen(bred, costs, n_candidates, 0 if model.costs else n_candidates)
    if not costed.n_costs:
        return first
    by_key = dict(zip(keys, (bred for _, bred, _ in best), strict=True))
    for start in range(0, len(best), costed.n_costs):
        part = [bred.assignment for _, bred, _ in best[start : start + costed.n_costs]]
        known = costed.of(part)
        merits = model.merits(known) if known.assignments else np.zeros(0)
        order: list[int] = np.argsort(-merits, kind="stable").tolist()
        keys = [space.key(known.assignments[i]) for i in order]
        if (i := place(keys)) is not None:
            bred, n_costed = by_key[keys[i]], start + len(part)
            return replace(first, bred=bred, costs=known.costs[order[i]], n_costed=n_costed)
    return replace(first, n_costed=len(best))
