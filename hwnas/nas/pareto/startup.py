"""The first candidates of ``sampler=pareto``: spread over costs, choices and branches."""

import bisect
import itertools
import random
from collections.abc import Container, Hashable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.nas.pareto.expectation import CostedCandidates, History
from hwnas.nas.pareto.features import Assignment, ProposalSpace
from hwnas.nas.pareto.selection import CostedSpace
from hwnas.nas.trial_attributes import Proposal

Array = NDArray[np.float64]


def of_branch(
    space: ProposalSpace, assignments: Sequence[Assignment], free: Sequence[int], number: int
) -> tuple[int, list[int]]:
    """Return which of the first trials of its branch a trial is, and what is free there.

    Branches take turns; where nothing is left of one, the next has its turn.
    """
    branches = space.branches()
    for branch in (branches[(number + i) % len(branches)] for i in range(len(branches))):
        if own := [i for i in free if space.branch(assignments[i]) == branch]:
            return number // len(branches), own
    raise AssertionError("nothing is free")


def logarithmic(costs: Array, share: float, width: int) -> int:
    """Return where in ascending costs those are that lie so far up their range, in logarithms.

    Costs below zero are of something maximised: logarithms of that.
    """
    signs = np.where(costs < 0, -1.0, 1.0)
    logs = signs * np.log(np.maximum(np.abs(costs), 1e-300))
    at = int(np.searchsorted(logs, logs[0] + share * (logs[-1] - logs[0])))
    return max(0, min(at - width // 2, len(costs) - width))


def least_alike(rows: Array, before: Array) -> int:
    """Return the row that is farthest from all earlier ones; without these, the most central."""
    if len(before) == 0:
        distances = -((rows - rows.mean(axis=0)) ** 2).sum(axis=1)
    else:
        distances = ((rows[:, None] - before[None]) ** 2).sum(axis=2).min(axis=1)
    return int(np.argmax(distances))


def window_position(number: int) -> float:
    """Return how far up a range the first trials are: its ends, then what halves the widest gap."""
    return float(number) if number < 2 else radical_inverse(number - 1)


def radical_inverse(n: int) -> float:
    """Return the n-th of numbers that fill [0, 1) evenly, whenever they are cut off."""
    value, digit = 0.0, 0.5
    while n:
        value, n, digit = value + digit * (n & 1), n >> 1, digit / 2
    return value


_POOL = 200  # candidates that are drawn where there are too many to look at all
_DRAWN = 100  # where nothing is known to fit
_COMPARED = 400  # of the first candidates' part of the range of costs
_SHARES = 0.0, 0.25, 0.5, 0.75  # of choices of what is drawn that are the smallest, or largest
_OF_EACH = 40  # that are drawn with each share
_HALVINGS = 10  # that a search for the largest that fits may take, and some to choose from
_CHANCE = 0.1  # that what is larger breaks limits for another reason
_ALIKE = 24  # of what is drawn, nearest to a size: the one least like all before is taken


def propose(
    costed: CostedSpace,
    history: History,
    taken: Container[Hashable],
    n_startup: int,
    rng: random.Random,
) -> tuple[Assignment, Proposal]:
    """Return one of the first candidates: each from another part of the range of costs.

    Of this part, the one that is least like all before it. Where costs are not computed of all, and
    it is known how large networks are, the range is that of sizes: they tell more before anything
    is learned, at no cost.

    Args:
        costed: The candidates.
        history: What is known.
        taken: Keys of what is not to be proposed again.
        n_startup: How many first candidates there are.
        rng: Draws.
    """
    space = costed.space
    if space.features.n_known and not costed.are_computed:
        found = _by_size(costed, history, taken, rng)
        if found is not None:
            return found
    known = costed.all() if costed.are_computed else _drawn(costed, rng)
    free = [i for i, a in enumerate(known.assignments) if space.key(a) not in taken]
    if not free:  # nothing fits, as far as is known; if anything does, it is small
        for smallest, _ in space.ends():
            if space.key(smallest) not in taken:
                return smallest, Proposal("smallest")
        return other(space, taken, rng), Proposal("random")
    if known.costs.shape[1] == 0:
        return known.assignments[rng.choice(free)], Proposal("startup", len(free))
    number, free = of_branch(space, known.assignments, free, _number(history))
    by_cost = np.argsort(known.costs[free, 0], kind="stable")
    width = max(1, len(free) * len(space.branches()) // n_startup)
    share = window_position(number)
    start = round(share * max(0, len(free) - width))
    if not costed.are_computed:  # what is drawn gathers where most of the space is: spread
        start = logarithmic(known.costs[free, 0][by_cost], share, width)
    part: list[int] = by_cost[start : start + width].tolist()
    rows = [free[i] for i in rng.sample(part, min(len(part), _COMPARED))]
    chosen = rows[least_alike(known.features[rows], _before(costed, history))]
    return known.assignments[chosen], Proposal("startup", len(free), len(free))


def _by_size(
    costed: CostedSpace, history: History, taken: Container[Hashable], rng: random.Random
) -> tuple[Assignment, Proposal] | None:
    """Return one of the first candidates, by the logarithm of its size; none where nothing fits."""
    space = costed.space
    pool = [end for both in space.ends() for end in both]
    for end, share in itertools.product(space.ends()[0], _SHARES):
        pool += [_nearer(space.draw(rng), end, share, space.root, rng) for _ in range(_OF_EACH)]
    pool = [*{key: a for a in pool if (key := space.key(a)) not in taken}.values()]
    if not pool:
        return None
    number, own = of_branch(space, pool, range(len(pool)), _number(history))
    pool = [pool[i] for i in own]
    features = space.vectors(pool)
    sizes = features[:, -space.features.n_known]
    too_large = _too_large(history, space.features.n_known) if costed.are_told else np.inf
    order = [i for i in np.argsort(sizes, kind="stable").tolist() if sizes[i] < too_large]
    fitting = _Fitting(costed, pool)
    if costed.n_costs is None:
        order = [i for i, fits in zip(order, fitting.are(order), strict=True) if fits]
    else:  # what is smaller mostly fits as well, but for choices that never do
        n_alike = max(1, costed.n_costs // _HALVINGS)  # of which one has to fit
        some = [order[k : k + n_alike] for k in range(len(order))]
        n = bisect.bisect_left(some, x=True, key=lambda rows: not any(map(fitting.is_, rows)))
        order = order[:n]
    if not order:
        return None
    target = sizes[order[0]] + window_position(number) * (sizes[order[-1]] - sizes[order[0]])
    near = sorted(order, key=lambda i: abs(float(sizes[i] - target)))[:_ALIKE]
    before = _before(costed, history)
    while near:
        i = near.pop(least_alike(features[near], before) if len(before) else 0)
        if fitting.is_(i):
            return pool[i], Proposal("startup", len(pool), fitting.n_costed)
    return None


@final
class _Fitting:
    """Which of a pool fit all limits; each is costed once."""

    def __init__(self, costed: CostedSpace, pool: Sequence[Assignment]):
        self._costed, self._pool = costed, pool
        self._known: dict[int, bool] = {}
        self.n_costed = 0

    def are(self, rows: Sequence[int]) -> list[bool]:
        """Return whether each fits."""
        if new := [i for i in rows if i not in self._known]:
            key = self._costed.space.key
            found = self._costed.of([self._pool[i] for i in new])
            kept = {key(assignment) for assignment in found.assignments}
            self._known |= {i: key(self._pool[i]) in kept for i in new}
            self.n_costed += len(new) * (found.costs.shape[1] > 0)
        return [self._known[i] for i in rows]

    def is_(self, row: int) -> bool:
        """Return whether one fits."""
        return self.are([row])[0]


def _too_large(history: History, n_known: int) -> float:
    """Return the size from which on none is to be tried, as all that were broke a limit.

    Unless that may be chance: if they broke it as often as smaller ones do.
    """
    tried, fitted = history.tried
    sizes = np.array([features[-n_known] for features in tried])
    above = sizes > sizes[fitted].max(initial=-np.inf)
    usual = (np.count_nonzero(~fitted & ~above) + 1) / (np.count_nonzero(~above) + 2)
    if usual ** np.count_nonzero(above) > _CHANCE:
        return np.inf
    return float(sizes[above].min(initial=np.inf))


def _number(history: History) -> int:
    return len(history.tried[0]) + len(history.pending) + history.n_ahead


def _before(costed: CostedSpace, history: History) -> NDArray[np.float64]:
    """Return the features of all candidates that were chosen before."""
    tried, _ = history.tried
    chosen = [*tried, *costed.space.vectors(history.pending)]
    return np.vstack(chosen) if chosen else history.features


def _nearer(
    drawn: Assignment, end: Assignment, share: float, root: str, rng: random.Random
) -> Assignment:
    """Return an assignment that shares so many of its choices, but for the root, with an end."""
    return {
        name: end[name] if rng.random() < share and name != root else option
        for name, option in drawn.items()
    }


def _drawn(costed: CostedSpace, rng: random.Random) -> CostedCandidates:
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
        mixed = [_nearer(a, smallest, share, space.root, rng) for a in pool]
        known = costed.of(mixed)
        if 4 * len(known.assignments) >= len(pool):
            break
    return known


def other(space: ProposalSpace, taken: Container[Hashable], rng: random.Random) -> Assignment:
    """Return a random candidate, preferably one that was not proposed yet."""
    drawn = [space.draw(rng) for _ in range(_DRAWN)]
    return next((a for a in drawn if space.key(a) not in taken), drawn[0])
