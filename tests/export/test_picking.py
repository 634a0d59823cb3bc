from dataclasses import replace

import pytest

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.quantity import Quantity
from hwnas.export.picking import geometric_mean, knee, offered, pick
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.nas.targets import join_members

NAMES = {Genotype("s", (("name", name),)).id: name for name in ("a", "b", "c", "d", "e", "gone")}


def member(name: str, accuracy: float, latency: float, flash: float, stays: bool = True) -> Member:
    values = {"accuracy_int8": accuracy, "latency_ms": latency, "flash_kib": flash}
    figures = {n: Quantity(value, "measured") for n, value in values.items()}
    candidate = Candidate(0, Genotype("s", (("name", name),)), {})
    return Member(candidate, figures, {}, {}, on_front=stays)


#: The chord connects a and e; c is farthest above it.
FRONT = Front(
    ("accuracy", "latency_ms"),
    [
        member("a", 0.70, 0.1, 30.0),
        member("b", 0.80, 0.4, 20.0),
        member("c", 0.90, 0.5, 40.0),
        member("d", 0.92, 0.8, 50.0),
        member("e", 0.94, 1.1, 60.0),
        member("gone", 0.99, 0.1, 1.0, stays=False),
    ],
)
OFFERS = offered(FRONT)


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("knee", ["c"]),
        ("most_accurate", ["e"]),
        ("fastest", ["a"]),
        ("smallest", ["b"]),
        ("all", ["a", "b", "c", "d", "e"]),
        ("accuracy max where latency_ms <= 0.8", ["d"]),
        ("accuracy max where latency_ms <= 0.8 and flash_kib < 50", ["c"]),
        ("flash_kib min where accuracy >= 0.9", ["c"]),
        ("where accuracy >= 0.9 and latency_ms <= 1", ["c", "d"]),
        ("latency_ms max", ["e"]),
    ],
)
def test_pick_selects_members_on_front(query: str, ids: list[str]) -> None:
    assert [NAMES[genotype_id] for genotype_id in pick(FRONT, query)] == ids


def test_knee_has_largest_distance_from_chord() -> None:
    points = {NAMES[i]: (values["latency_ms"], values["accuracy"]) for i, values in OFFERS.items()}
    (x0, y0), (x1, y1) = points["a"], points["e"]

    def distance(name: str) -> float:
        x, y = (points[name][0] - x0) / (x1 - x0), (points[name][1] - y0) / (y1 - y0)
        return (y - x) / 2**0.5

    assert NAMES[knee(OFFERS, FRONT.objectives)] == max(points, key=distance)


def test_knee_is_independent_of_units() -> None:
    both = ("accuracy", "latency_ms", "flash_kib")
    first = knee(OFFERS, both)
    scaled = {
        i: {**values, "latency_ms": values["latency_ms"] * 1e3} for i, values in OFFERS.items()
    }
    assert knee(scaled, both) == first
    (a, *_) = OFFERS
    assert knee({a: OFFERS[a]}, both) == a  # a front of one member


def test_ties_are_broken_by_accuracy_costs_and_id() -> None:
    equals = [member("z", 0.8, 0.5, 9.0), member("y", 0.8, 0.5, 9.0)]
    front = Front(("accuracy", "latency_ms"), [*equals, member("x", 0.7, 0.5, 1.0)])
    first = min(equal.candidate.id for equal in equals)
    assert pick(front, "fastest") == [first]
    assert pick(front, "accuracy max") == [first]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("fastestt", "Unknown pick 'fastestt'. Did you mean 'fastest'"),
        ("accuracy max where latency_ms < 0.05", "on the front: accuracy 0.7 to 0.94, latency_ms"),
        ("accuracy max where latency <= 0.8", "Unknown column 'latency'"),
    ],
)
def test_invalid_pick_raises(query: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pick(FRONT, query)


def test_pick_from_empty_front_raises() -> None:
    with pytest.raises(RunError, match="No member of the front is left after verification"):
        pick(Front(("accuracy",), [member("gone", 0.9, 0.1, 1.0, stays=False)]), "knee")
    with pytest.raises(
        RunError, match=r"No network was verified for all targets: .*target_name=TARGET"
    ):
        pick(Front(("accuracy", "npu.latency_ms", "cpu.latency_ms"), []), "knee")
    with pytest.raises(RunError, match=r"No network was verified: select .* by its id\.$"):
        pick(Front(("accuracy", "latency_ms"), []), "knee")


def test_joint_offers_have_figures_of_each_target() -> None:
    npu, cpu = member("a", 0.7, 1.0, 3.0), member("a", 0.9, 4.0, 3.0)
    both = join_members(npu.candidate, {"npu": npu, "cpu": cpu})
    front = Front(("accuracy", "npu.latency_ms", "cpu.latency_ms"), [both])
    ((genotype_id, values),) = offered(front).items()
    assert values["npu.accuracy"] == values["accuracy"] == 0.7
    assert values["cpu.accuracy"] == 0.9
    assert geometric_mean(values, "latency_ms") == pytest.approx(2.0)
    assert pick(front, "accuracy max where npu.latency_ms <= 1 and cpu.accuracy > 0.8") == [
        genotype_id
    ]
    with pytest.raises(ConfigError, match=r"Unknown column 'latency_ms'.*cpu\.latency_ms"):
        pick(front, "accuracy max where latency_ms <= 1")


def test_networks_at_chance_level_are_not_offered() -> None:
    ids = {name: genotype_id for genotype_id, name in NAMES.items()}
    partial = replace(FRONT, at_chance_level=[ids["a"], ids["b"]])
    assert [NAMES[i] for i in pick(partial, "fastest")] == ["c"]
    assert [NAMES[i] for i in pick(partial, "all")] == ["c", "d", "e"]
    all_at_chance = replace(FRONT, at_chance_level=[*NAMES])
    assert all_at_chance.is_at_chance_level
    assert not offered(all_at_chance)
    assert pick(all_at_chance, "fastest", force=True) == [ids["a"]]
    assert partial.left_out == 2
    assert pick(partial, "all", force=True) == pick(FRONT, "all")
