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
    """Return the index of a trial within its branch, and the branch's part of ``free``.

    A branch is an option of the root choice. Branches alternate; one without free candidates is
    skipped.

    Args:
        space: Space of the candidates.
        assignments: All candidates.
        free: Indices of the candidates that are not proposed yet.
        number: Number of earlier trials.

    Raises:
        AssertionError: ``free`` is empty.
    """
    branches = space.branches()
    for branch in (branches[(number + i) % len(branches)] for i in range(len(branches))):
        if indices := [i for i in free if space.branch(assignments[i]) == branch]:
            return number // len(branches), indices
    raise AssertionError("nothing is free")


def logarithmic(costs: Array, share: float, width: int) -> int:
    """Return the start index of a window of ``width`` candidates in ascending costs ``(n,)``.

    Its centre is at the position ``share``, in [0, 1], of the range of logarithms. Negative costs
    are those of maximised objectives: the logarithm is that of the absolute value.
    """
    signs = np.where(costs < 0, -1.0, 1.0)
    logs = signs * np.log(np.maximum(np.abs(costs), 1e-300))
    centre = int(np.searchsorted(logs, logs[0] + share * (logs[-1] - logs[0])))
    return max(0, min(centre - width // 2, len(costs) - width))


def least_alike(rows: Array, before: Array) -> int:
    """Return the index of the row farthest from earlier rows; without these, the most central.

    Args:
        rows: Features of candidates, ``(n, d)``.
        before: Features of earlier candidates, ``(k, d)``.
    """
    if len(before) == 0:
        distances = -((rows - rows.mean(axis=0)) ** 2).sum(axis=1)
    else:
        distances = ((rows[:, None] - before[None]) ** 2).sum(axis=2).min(axis=1)
    return int(np.argmax(distances))


def window_position(number: int) -> float:
    """Return the relative position of a startup trial in the range of costs.

    Trials 0, 1, 2, ... have the positions 0, 1, 1/2, 1/4, 3/4, ...
    """
    return float(number) if number < 2 else radical_inverse(number - 1)


def radical_inverse(n: int) -> float:
    """Return the n-th number of the van der Corput sequence in base 2."""
    value, digit = 0.0, 0.5
    while n:
        value, n, digit = value + digit * (n & 1), n >> 1, digit / 2
    return value


_POOL = 200  # random candidates, if the space is not enumerated
_DRAWN = 100  # random candidates, if no feasible one is known
_COMPARED = 400  # maximum candidates of a cost window whose distances are compared
_SHARES = 0.0, 0.25, 0.5, 0.75  # fractions of choices set to the smallest or largest option
_N_PER_SHARE = 40  # random candidates for each fraction
_HALVINGS = 10  # steps of the bisection for the largest feasible size, with a reserve
_MIN_ALIKE = 4  # candidates of similar size at each step of the bisection
_CHANCE = 0.1  # probability that larger candidates are infeasible for another reason
_ALIKE = 24  # candidates nearest to the target size; the one farthest from earlier ones is taken


def propose(
    costed: CostedSpace,
    history: History,
    taken: Container[Hashable],
    n_startup: int,
    rng: random.Random,
) -> tuple[Assignment, Proposal]:
    """Return a startup candidate and the record of its choice.

    Each startup candidate comes from another window of the range of the first cost.

    Within the window, it is the candidate farthest from all earlier ones. If costs are not
    computed for all candidates but network sizes are known, windows are those of sizes. Without
    costs and sizes, it is a random candidate. If no feasible one is free, it is the smallest of
    the space or of a branch that is free, else a random one.

    Args:
        costed: The candidates.
        history: The trials so far.
        taken: Keys of candidates that are not proposed again.
        n_startup: Number of startup candidates.
        rng: Source of randomness.
    """
    space = costed.space
    if space.features.n_known and not costed.are_computed:
        proposal = _by_size(costed, history, taken, rng)
        if proposal is not None:
            return proposal
    known = costed.all() if costed.are_computed else _random_feasible(costed, rng)
    free = [i for i, a in enumerate(known.assignments) if space.key(a) not in taken]
    if not free:  # no feasible candidate is known; the smallest is most likely feasible
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
    if not costed.are_computed:  # random candidates cluster: spread them over log costs
        start = logarithmic(known.costs[free, 0][by_cost], share, width)
    part: list[int] = by_cost[start : start + width].tolist()
    rows = [free[i] for i in rng.sample(part, min(len(part), _COMPARED))]
    chosen = rows[least_alike(known.features[rows], _earlier_features(costed, history))]
    return known.assignments[chosen], Proposal("startup", len(free), len(free))


def _by_size(
    costed: CostedSpace, history: History, taken: Container[Hashable], rng: random.Random
) -> tuple[Assignment, Proposal] | None:
    """Return a startup candidate by the logarithm of its size; ``None`` if none is feasible."""
    space = costed.space
    pool = [end for both in space.ends() for end in both]
    for end, share in itertools.product(space.ends()[0], _SHARES):
        pool += [
            _move_towards(space.draw(rng), end, share, space.root, rng) for _ in range(_N_PER_SHARE)
        ]
    pool = [*{key: a for a in pool if (key := space.key(a)) not in taken}.values()]
    if not pool:
        return None
    number, indices = of_branch(space, pool, range(len(pool)), _number(history))
    pool = [pool[i] for i in indices]
    features = space.vectors(pool)
    sizes = features[:, -space.features.n_known]
    too_large = _too_large(history, space.features.n_known) if costed.are_observed else np.inf
    order = [i for i in np.argsort(sizes, kind="stable").tolist() if sizes[i] < too_large]
    fitting = _Fitting(costed, pool)
    if costed.n_costs is None:
        order = [i for i, fits in zip(order, fitting.are(order), strict=True) if fits]
    else:  # feasibility is mostly monotonic in size, except for some choices
        n_alike = max(_MIN_ALIKE, costed.n_costs // _HALVINGS)  # one of them must be feasible
        groups = [order[k : k + n_alike] for k in range(len(order))]
        n = bisect.bisect_left(groups, x=True, key=lambda rows: not any(map(fitting.is_, rows)))
        order = order[:n]
    if not order:
        return None
    target = sizes[order[0]] + window_position(number) * (sizes[order[-1]] - sizes[order[0]])
    near = sorted(order, key=lambda i: abs(float(sizes[i] - target)))[:_ALIKE]
    before = _earlier_features(costed, history)
    while near:
        i = near.pop(least_alike(features[near], before) if len(before) else 0)
        if fitting.is_(i):
            return pool[i], Proposal("startup", len(pool), fitting.n_costed)
    return None


@final
class _Fitting:
    """The feasibility of the candidates of a pool; the costs of each are computed once."""

    def __init__(self, costed: CostedSpace, pool: Sequence[Assignment]):
        self._costed, self._pool = costed, pool
        self._known: dict[int, bool] = {}
        self.n_costed = 0

    def are(self, rows: Sequence[int]) -> list[bool]:
        """Return whether each candidate is feasible."""
        if new := [i for i in rows if i not in self._known]:
            key = self._costed.space.key
            costed = self._costed.of([self._pool[i] for i in new])
            feasible = {key(assignment) for assignment in costed.assignments}
            self._known |= {i: key(self._pool[i]) in feasible for i in new}
            self.n_costed += len(new) * (costed.costs.shape[1] > 0)
        return [self._known[i] for i in rows]

    def is_(self, row: int) -> bool:
        """Return whether one candidate is feasible."""
        return self.are([row])[0]


def _too_large(history: History, n_known: int) -> float:
    """Return the size from which all candidates were infeasible; infinity if that may be chance.

    It may be chance if smaller candidates are infeasible about as often.
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


def _earlier_features(costed: CostedSpace, history: History) -> NDArray[np.float64]:
    """Return the features of all earlier candidates."""
    tried, _ = history.tried
    chosen = [*tried, *costed.space.vectors(history.pending)]
    return np.vstack(chosen) if chosen else history.features


def _move_towards(
    drawn: Assignment, end: Assignment, share: float, root: str, rng: random.Random
) -> Assignment:
    """Return an assignment with a random share of its choices set to an end, except the root."""
    return {
        name: end[name] if rng.random() < share and name != root else option
        for name, option in drawn.items()
    }


def _random_feasible(costed: CostedSpace, rng: random.Random) -> CostedCandidates:
    """Return random feasible candidates.

    If fewer than a quarter are feasible, a growing fraction of their choices is set to the
    smallest options.
    """
    space = costed.space
    pool = [space.draw(rng) for _ in range(costed.n_costs or _POOL)]
    ends = [end for both in space.ends() for end in both]
    pool[-len(ends) :] = ends
    smallest = space.smallest()
    for share in (0.0, 0.5, 0.75, 0.9, 0.97):
        mixed = [_move_towards(a, smallest, share, space.root, rng) for a in pool]
        known = costed.of(mixed)
        if 4 * len(known.assignments) >= len(pool):
            break
    return known


def other(space: ProposalSpace, taken: Container[Hashable], rng: random.Random) -> Assignment:
    """Return a random candidate, preferably one that was not proposed yet."""
    drawn = [space.draw(rng) for _ in range(_DRAWN)]
    return next((a for a in drawn if space.key(a) not in taken), drawn[0])
