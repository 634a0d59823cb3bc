from dataclasses import replace

from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import incumbent

OBJECTIVES = ("accuracy", "latency_ms")


def _candidate(number: int, accuracy: float, latency: float) -> Candidate:
    figures = {
        "accuracy": Quantity(accuracy, "measured"),
        "latency_ms": Quantity(latency, "modelled"),
        "sram_kib": Quantity(100 - latency, "modelled"),  # no objective
    }
    return Candidate(number, Genotype("s", (("a", number),)), figures, per_image=bytes([number]))


CANDIDATES = [_candidate(i, 0.5 + 0.1 * (i % 3), float(i)) for i in range(8)]


def test_incumbent_is_the_most_accurate_of_those_that_cost_no_more_in_any_objective() -> None:
    found = incumbent(CANDIDATES, _candidate(9, 0, 4.0).figures, OBJECTIVES)
    assert found is not None
    assert found.per_image == bytes([2])
    assert found.earlier == tuple(bytes([i]) for i in range(8))
    three = incumbent(CANDIDATES, _candidate(9, 0, 4.0).figures, (*OBJECTIVES, "sram_kib"))
    assert three is not None
    assert three.per_image == bytes([4])


def test_a_incumbent_is_no_slower_where_speed_is_to_be_maximised() -> None:
    fast = [
        replace(c, figures={**c.figures, "throughput_ips": Quantity(8.0 - i, "modelled")})
        for i, c in enumerate(CANDIDATES)
    ]
    objectives = ("accuracy", "throughput_ips")
    found = incumbent(fast, {"throughput_ips": Quantity(6.5, "modelled")}, objectives)
    assert found is not None
    assert found.per_image == bytes([1])  # of the first two, which are faster, the more accurate
    assert incumbent(fast, {"throughput_ips": Quantity(9.0, "modelled")}, objectives) is None


def test_costs_that_a_target_does_not_know_of_a_network_are_not_compared() -> None:
    """The target of ``sram_kib`` cannot run the candidate, nor the second of those before it."""
    known = [*CANDIDATES]
    known[1] = replace(known[1], figures={n: known[1].figures[n] for n in OBJECTIVES})
    figures = {"latency_ms": Quantity(1.5, "modelled")}
    found = incumbent(known, figures, (*OBJECTIVES, "sram_kib"))
    assert found is not None
    assert found.per_image == bytes([1])
    both = {**figures, "sram_kib": Quantity(100.0, "modelled")}
    found = incumbent(known, both, (*OBJECTIVES, "sram_kib"))
    assert found is not None
    assert found.per_image == bytes([0])


def test_there_is_no_incumbent_where_nothing_is_as_cheap_or_little_was_read() -> None:
    assert incumbent(CANDIDATES, _candidate(9, 0, -1.0).figures, OBJECTIVES) is None
    assert incumbent(CANDIDATES[:4], _candidate(9, 0, 4.0).figures, OBJECTIVES) is None
    stopped = [replace(c, stopped=True) for c in CANDIDATES]
    assert incumbent(stopped, _candidate(9, 0, 4.0).figures, OBJECTIVES) is None


def test_a_candidate_that_came_again_counts_once() -> None:
    again = [replace(c, trial=c.trial + 8, per_image=b"") for c in CANDIDATES]
    found = incumbent([*CANDIDATES, *again], _candidate(9, 0, 4.0).figures, OBJECTIVES)
    assert found is not None
    assert found.per_image == bytes([2])
    assert found.value == 0.7
    assert found.earlier == tuple(bytes([i]) for i in range(8))


def test_the_latest_are_what_is_predicted_from() -> None:
    many = [_candidate(i % 250, 0.9 if i == 0 else 0.5, float(i)) for i in range(300)]
    found = incumbent(many, _candidate(9, 0, 400.0).figures, OBJECTIVES)
    assert found is not None
    assert found.per_image == bytes([0])
    assert found.earlier == tuple(c.per_image for c in many[-100:])
