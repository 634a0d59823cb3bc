import random

import numpy as np
import pytest

from hwnas.core.quantity import Quantity
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.search_progress import SearchProgress

OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")


def candidates(space: SearchSpace, n: int, seed: int, scale: float = 1.0) -> list[Candidate]:
    """Return random candidates, some of them equal, infeasible or stopped."""
    rng, candidate_list = random.Random(seed), []
    for trial in range(n):
        values = (scale * rng.randrange(100) / 100, rng.randrange(1, 30), rng.randrange(1, 30))
        figures = {
            name: Quantity(float(value), "modelled")
            for name, value in zip(OBJECTIVES, values, strict=True)
        }
        reason, stopped = rng.choice(["", "", "", "too slow"]), rng.random() < 0.1
        candidate = Candidate(trial, space.sample(rng), figures, {}, reason, stopped)
        candidate_list.append(candidate)
    return candidate_list


@pytest.mark.parametrize("objectives", [OBJECTIVES[:2], OBJECTIVES])
@pytest.mark.parametrize("step", [1, 7, 200])
def test_front_is_independent_of_batches(
    small: SearchSpace, objectives: tuple[str, ...], step: int
) -> None:
    candidate_list, search_progress = candidates(small, 200, 1), SearchProgress(objectives, {})
    for i in range(0, 200, step):
        search_progress.add(candidate_list[i : i + step])
    members, snapshot = pareto_front(candidate_list, objectives), search_progress.snapshot()
    assert snapshot.n == 200
    assert snapshot.n_feasible == sum(not c.reason for c in candidate_list)
    assert snapshot.n_front == len(members)
    assert snapshot.newest == max(c.trial for c in members)
    assert snapshot.highest in members
    accuracies = [c.figures["accuracy"].value for c in members]
    assert snapshot.highest is not None
    assert snapshot.highest.figures["accuracy"].value == max(accuracies)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_hypervolume_is_dominated_fraction_of_box(small: SearchSpace, scale: float) -> None:
    candidate_list = [
        c for c in candidates(small, 60, 2, scale) if c.figures["latency_ms"].value <= 20
    ]
    objectives = OBJECTIVES[:2]
    search_progress = SearchProgress(objectives, {"latency_ms": 20.0})
    search_progress.add(candidate_list)
    members = pareto_front(candidate_list, objectives)
    scored = [c for c in candidate_list if c.state == "complete"]
    worst = min(c.figures["accuracy"].value for c in scored)
    rng = np.random.default_rng(0)
    points = rng.uniform([worst, 0], [scale, 20], (20_000, 2))
    dominated = np.zeros(len(points), bool)
    for member in members:
        accuracy, latency = (member.figures[name].value for name in objectives)
        dominated |= (points[:, 0] <= accuracy) & (points[:, 1] >= latency)
    assert search_progress.snapshot().hypervolume == pytest.approx(dominated.mean(), abs=0.015)


def test_no_hypervolume_without_front_or_for_five_objectives(small: SearchSpace) -> None:
    search_progress = SearchProgress(OBJECTIVES, {})
    assert np.isnan(search_progress.snapshot().feasible)
    search_progress.add([c for c in candidates(small, 50, 3) if c.reason])
    nothing = search_progress.snapshot()
    assert (nothing.n_front, nothing.newest, nothing.hypervolume, nothing.highest) == (
        0, None, None, None,
    )  # fmt: skip
    assert nothing.feasible == 0
    many = ("accuracy", "latency_ms", "energy_mj", "sram_kib", "flash_kib")
    figures = {name: Quantity(0.5, "modelled") for name in many}
    five = SearchProgress(many, {})
    five.add([Candidate(0, small.smallest(), figures)])
    assert (five.snapshot().n_front, five.snapshot().hypervolume) == (1, None)


def test_box_of_maximised_objective_ends_at_highest_value(tiny: SearchSpace) -> None:
    search_progress = SearchProgress(("accuracy", "throughput_ips"), {})
    for trial, (accuracy, speed) in enumerate([(0.5, 4.0), (0.75, 2.0)]):
        genotype = (tiny.smallest(), tiny.largest())[trial]
        figures = {
            "accuracy": Quantity(accuracy, "measured"),
            "throughput_ips": Quantity(speed, "modelled"),
        }  # fmt: skip
        search_progress.add([Candidate(trial, genotype, figures)])
    snapshot = search_progress.snapshot()
    assert snapshot.n_front == 2
    assert snapshot.hypervolume == 0.0  # each has the worst value of one objective
    limited = SearchProgress(("accuracy", "throughput_ips"), {"throughput_ips": 1.0})
    figures = {"accuracy": Quantity(0.5, "measured"), "throughput_ips": Quantity(4.0, "modelled")}
    limited.add([Candidate(0, tiny.smallest(), figures)])
    limited.add([Candidate(1, tiny.largest(), figures | {"accuracy": Quantity(0.75, "measured")})])
    assert limited.snapshot().hypervolume == 0.5  # accuracy 0.5 to 0.75 of 0.5 to 1, all the speed
