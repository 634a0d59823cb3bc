"""Headroom: how much more the pools of a plan take than their goodputs say, as simulations see it.

Goodputs hold for any pool of a size to which all requests of a kind go. In a plan pools share them,
and take those of several classes, whose bursts do not come together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hwnas.planning.hours import Flow, sent
from hwnas.planning.plan import Plan
from hwnas.planning.simulation import WARY, Scene, Seen, simulate_hour
from hwnas.planning.solving import Solution
from hwnas.planning.task import Task
from hwnas.progress import Progress

_LOADS = (1.04, 1.08, 1.15, 1.25, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0)  # times what comes
_MORE = 1.01  # a station that takes hardly more stays as it is

Scale = dict[tuple[int, int], float]  #: of goodputs, by place of the hour and station


def looser(found: Solution, plan: Plan, scene: Scene, seed: int, progress: Progress) -> Scale:
    """Return higher goodputs of stations that a plan uses, where simulations see that they hold.

    Args:
        found: The solution.
        plan: The same as a plan: as many hours, in their order.
        scene: How requests come.
        seed: Of the simulations.
        progress: Is told of the phase.
    """
    scale: Scale = {}
    with progress.phase("Headroom", len(plan.hours)) as advance:
        for i, of in enumerate(plan.hours):
            borne = _borne(plan, of.hours[0], scene, seed)
            scale |= _of_hour(found, i, borne)
            advance(1)
    return scale


def _borne(plan: Plan, hour: int, scene: Scene, seed: int) -> dict[str, float]:
    def seen(load: float) -> Mapping[str, Seen]:
        heavier = replace(scene, load=load, spike=plan.spikes(hour))
        return simulate_hour(plan, hour, heavier, seed).classes

    return loads_borne(seen)


def loads_borne(seen: Callable[[float], Mapping[str, Seen]]) -> dict[str, float]:
    """Return how many times its demand each class bears, all together; as far as was looked.

    Args:
        seen: Gives what a simulation sees of classes at so many times what comes.
    """
    borne: dict[str, float] = {}
    late: set[str] = set()
    for load in _LOADS:
        classes = seen(load)
        late |= {name for name, c in classes.items() if c.late > WARY}
        borne |= dict.fromkeys({*classes} - late, load)
        if late == {*classes}:
            break
    return borne


def _of_hour(found: Solution, i: int, borne: Mapping[str, float]) -> Scale:
    """Return higher goodputs of the stations of an hour: of what its replicas were seen to take.

    Args:
        found: The solution.
        i: The place of the hour.
        borne: Times what comes that each class bears.
    """
    task, hour, scale = found.task, found.hours[i], Scale()
    loads, rates = _loads(task, hour.flows, borne), sent(task, hour.flows)[0]
    for row in hour.pools:
        q = row.station
        takes = loads.get(q, 1.0) * rates[q] / row.replicas
        more = takes / task.goodput(i, q, row.variant)
        if more > _MORE:
            scale[i, q] = task.scale.get((i, q), 1.0) * more
    return scale


def _loads(task: Task, flows: Sequence[Flow], borne: Mapping[str, float]) -> dict[int, float]:
    """Return how many times what comes stations bear: what all classes do that they serve."""
    o, loads = task.choices.options, dict[int, float]()
    names = [name for name, _ in task.problem.classes]
    for s, option, _ in flows:
        load = borne.get(names[o.klass[option]], 1.0)
        for q in (int(o.first[option]), int(o.second[option])):
            if q >= 0 and s == 0:
                loads[q] = min(loads.get(q, np.inf), load)
    return loads
