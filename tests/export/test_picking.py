from typing import Any

import pytest

from hwnas.errors import ConfigError, RunError
from hwnas.export.expression import ExpressionError
from hwnas.export.picking import Front, Offer, knee, pick, read


def offer(name: str, accuracy: float, latency: float, flash: float, stays: bool = True) -> Offer:
    figures = {"accuracy": accuracy, "latency_ms": latency, "flash_kib": flash}
    return Offer(name, figures, stays)


#: The chord leads from a to e; c is farthest above it.
FRONT = Front(
    [
        offer("a", 0.70, 0.1, 30.0),
        offer("b", 0.80, 0.4, 20.0),
        offer("c", 0.90, 0.5, 40.0),
        offer("d", 0.92, 0.8, 50.0),
        offer("e", 0.94, 1.1, 60.0),
        offer("gone", 0.99, 0.1, 1.0, stays=False),
    ],
    ("accuracy", "latency_ms"),
)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ("knee", ["c"]),
        ("most_accurate", ["e"]),
        ("fastest", ["a"]),
        ("smallest", ["b"]),
        ("all", ["a", "b", "c", "d", "e"]),
        ("accuracy max where latency_ms <= 0.8", ["d"]),
        ("accuracy max where latency_ms <= 0.8 and flash_kib < 50", ["c"]),
        ("flash_kib min where accuracy >= 0.9", ["c"]),
        ("where accuracy >= 0.9 and not latency_ms > 1", ["c", "d"]),
        ("latency_ms max", ["e"]),
    ],
)
def test_what_is_asked_for_is_picked_and_stayed_on_the_front(wanted: str, ids: list[str]) -> None:
    assert pick(FRONT, wanted) == ids


def test_knee_is_where_the_distance_from_the_chord_is_largest() -> None:
    points = {o.id: (o.figures["latency_ms"], o.figures["accuracy"]) for o in FRONT.standing}
    (x0, y0), (x1, y1) = points["a"], points["e"]

    def distance(name: str) -> float:
        x, y = (points[name][0] - x0) / (x1 - x0), (points[name][1] - y0) / (y1 - y0)
        return (y - x) / 2**0.5

    assert knee(FRONT.standing, FRONT.objectives).id == max(points, key=distance)


def test_knee_weighs_all_costs_alike_and_any_units() -> None:
    both = ("accuracy", "latency_ms", "flash_kib")
    first = knee(FRONT.standing, both).id
    scaled = [
        offer(o.id, o.figures["accuracy"], o.figures["latency_ms"] * 1e3, o.figures["flash_kib"])
        for o in FRONT.standing
    ]
    assert knee(scaled, both).id == first
    assert knee(FRONT.standing[:1], both).id == "a"  # of a front of one


def test_equals_are_told_apart_by_accuracy_costs_and_id() -> None:
    front = Front(
        [offer("z", 0.8, 0.5, 9.0), offer("y", 0.8, 0.5, 9.0), offer("x", 0.7, 0.5, 1.0)],
        ("accuracy", "latency_ms"),
    )
    assert pick(front, "fastest") == ["y"]
    assert pick(front, "accuracy max") == ["y"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("fastestt", "Unknown pick 'fastestt'. Did you mean 'fastest'"),
        ("accuracy max where latency_ms < 0.05", "On the front: accuracy 0.7 to 0.94, latency_ms"),
        ("accuracy max where latency <= 0.8", "Unknown column 'latency'"),
    ],
)
def test_what_cannot_be_picked_is_refused(wanted: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pick(FRONT, wanted)


def test_nothing_left_after_verification_is_said() -> None:
    with pytest.raises(RunError, match="No member of the front fits the budget"):
        pick(Front([offer("gone", 0.9, 0.1, 1.0, stays=False)], ("accuracy",)), "knee")
    with pytest.raises(RunError, match=r"No network was verified for all targets: .*only=TARGET"):
        pick(Front([], ("accuracy",)), "knee")


def row(name: str, prefix: str, figures: dict[str, float]) -> dict[str, Any]:
    found: dict[str, Any] = {"id": name, "verified_on_front": True, "accuracy": 0.5}
    for key, value in figures.items():
        found |= {f"verified_{prefix}{key}": value, f"verified_{prefix}{key}_source": "measured"}
    return found


def test_accuracy_is_that_of_the_artefact() -> None:
    figures = {"accuracy_fp32": 0.9, "accuracy_int8": 0.8, "latency_ms": 1.0}
    front = read({"objectives": {"accuracy": "max"}, "members": [row("a", "", figures)]})
    assert front.offers[0].figures["accuracy"] == 0.8
    assert front.objectives == ("accuracy",)


def test_models_for_all_targets_have_the_figures_of_each() -> None:
    npu = row("a", "npu.", {"accuracy_fp32": 0.9, "accuracy_int8": 0.7, "latency_ms": 1.0})
    cpu = row("a", "cpu.", {"accuracy_fp32": 0.9, "latency_ms": 4.0})
    front = read(
        {
            "objectives": {"accuracy": "max", "npu.latency_ms": "min", "cpu.latency_ms": "min"},
            "members": [npu | cpu],
        }
    )
    (only,) = front.offers
    assert only.figures["npu.accuracy"] == only.figures["accuracy"] == 0.7
    assert only.figures["cpu.accuracy"] == 0.9
    assert only.cost("latency_ms") == pytest.approx(2.0)
    assert pick(front, "accuracy max where npu.latency_ms <= 1 and cpu.accuracy > 0.8") == ["a"]
    with pytest.raises(ExpressionError, match=r"cpu\.latency_ms, npu\.accuracy"):
        pick(front, "accuracy max where latency_ms <= 1")
