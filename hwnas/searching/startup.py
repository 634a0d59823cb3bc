"""The first candidates of ``sampler=pareto``, before there is anything to learn from."""

import random
from collections.abc import Container, Hashable

import numpy as np

from hwnas.searching import spread
from hwnas.searching.choices import Assignment, Choices
from hwnas.searching.costed import Costed
from hwnas.searching.expectation import CostedCandidates, History
from hwnas.searching.proposal import Proposal

_POOL = 200  # candidates that are drawn where there are too many to look at all
_DRAWN = 100  # where nothing is known to fit
_COMPARED = 400  # of the first candidates' part of the range of costs


def propose(
    costed: Costed,
    history: History,
    taken: Container[Hashable],
    n_startup: int,
    rng: random.Random,
) -> tuple[Assignment, Proposal]:
    """Return one of the first candidates: each from another part of the range of costs.

    Of this part, the one that is least like all before it.

    Args:
        costed: The candidates.
        history: What is known.
        taken: Keys of what is not to be proposed again.
        n_startup: How many first candidates there are.
        rng: Draws.
    """
    space = costed.space
    known = costed.all() if costed.are_computed else _drawn(costed, rng)
    free = [i for i, a in enumerate(known.assignments) if space.key(a) not in taken]
    if not free:  # nothing fits, as far as is known; if anything does, it is small
        for smallest, _ in space.ends():
            if space.key(smallest) not in taken:
                return smallest, Proposal("smallest")
        return other(space, taken, rng), Proposal("random")
    if known.costs.shape[1] == 0:
        return known.assignments[rng.choice(free)], Proposal("startup", len(free))
    number = len(history.errors) + len(history.pending) + history.n_ahead
    number, free = spread.of_branch(space, known.assignments, free, number)
    by_cost = np.argsort(known.costs[free, 0], kind="stable")
    width = max(1, len(free) * len(space.branches()) // n_startup)
    # The cheapest, the dearest, and then always the middle of what is widest.
    share = float(number) if number < 2 else spread.radical_inverse(number - 1)
    start = round(share * max(0, len(free) - width))
    if not costed.are_computed:  # what is drawn gathers where most of the space is: spread
        start = spread.logarithmic(known.costs[free, 0][by_cost], share, width)
    part: list[int] = by_cost[start : start + width].tolist()
    rows = [free[i] for i in rng.sample(part, min(len(part), _COMPARED))]
    before = history.features
    if history.pending:
        before = np.vstack([*before, *space.vectors(history.pending)])
    chosen = rows[spread.least_alike(known.features[rows], before)]
    return known.assignments[chosen], Proposal("startup", len(free), len(free))


def _drawn(costed: Costed, rng: random.Random) -> CostedCandidates:
    """Return candidates that fit all limits, before anything was evaluated.

    Random ones; where they don't fit, those between the smallest options and random ones; where
    these don't, what is found by taking smaller and smaller options.
    """
    space = costed.space
    pool = [space.draw(rng) for _ in range(costed.n_costs or _POOL)]
    ends = [end for both in space.ends() for end in both]
    pool[-len(ends) :] = ends
    smallest = space.smallest()
    for share in (0.0, 0.5, 0.75, 0.9, 0.97):
        mixed = [
            {
                n: smallest[n] if rng.random() < share and n != space.root else option
                for n, option in a.items()
            }
            for a in pool
        ]
        known = costed.of(mixed)
        if 4 * len(known.assignments) >= len(pool):
            break
    return known


def other(space: Choices, taken: Container[Hashable], rng: random.Random) -> Assignment:
    """Return a random candidate; in all likelihood, one that was not proposed yet."""
    drawn = [space.draw(rng) for _ in range(_DRAWN)]
    return next((a for a in drawn if space.key(a) not in taken), drawn[0])
