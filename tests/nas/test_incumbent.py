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


def test_incumbent_is_most_accurate_at_no_higher_cost() -> None:
    rival = incumbent(CANDIDATES, _candidate(9, 0, 4.0).figures, OBJECTIVES)
    assert rival is not None
    assert rival.per_image == bytes([2])
    assert rival.earlier == tuple(bytes([i]) for i in range(8))
    with_third_objective = incumbent(
        CANDIDATES, _candidate(9, 0, 4.0).figures, (*OBJECTIVES, "sram_kib")
    )
    assert with_third_objective is not None
    assert with_third_objective.per_image == bytes([4])


def test_incumbent_has_no_lower_throughput() -> None:
    fast = [
        replace(c, figures={**c.figures, "throughput_ips": Quantity(8.0 - i, "modelled")})
        for i, c in enumerate(CANDIDATES)
    ]
    objectives = ("accuracy", "throughput_ips")
    rival = incumbent(fast, {"throughput_ips": Quantity(6.5, "modelled")}, objectives)
    assert rival is not None
    assert rival.per_image == bytes([1])  # the more accurate of the two faster ones
    assert incumbent(fast, {"throughput_ips": Quantity(9.0, "modelled")}, objectives) is None


def test_missing_costs_are_not_compared() -> None:
    """The target of ``sram_kib`` runs neither the candidate nor an earlier one."""
    known = [*CANDIDATES]
    known[1] = replace(known[1], figures={n: known[1].figures[n] for n in OBJECTIVES})
    figures = {"latency_ms": Quantity(1.5, "modelled")}
    rival = incumbent(known, figures, (*OBJECTIVES, "sram_kib"))
    assert rival is not None
    assert rival.per_image == bytes([1])
    both = {**figures, "sram_kib": Quantity(100.0, "modelled")}
    rival = incumbent(known, both, (*OBJECTIVES, "sram_kib"))
    assert rival is not None
    assert rival.per_image == bytes([0])


def test_no_incumbent_if_none_is_as_cheap_or_scored() -> None:
    assert incumbent(CANDIDATES, _candidate(9, 0, -1.0).figures, OBJECTIVES) is None
    assert incumbent(CANDIDATES[:4], _candidate(9, 0, 4.0).figures, OBJECTIVES) is None
    stopped = [replace(c, stopped=True) for c in CANDIDATES]
    assert incumbent(stopped, _candidate(9, 0, 4.0).figures, OBJECTIVES) is None


def test_repeated_candidate_counts_once() -> None:
    repeated = [replace(c, trial=c.trial + 8, per_image=b"") for c in CANDIDATES]
    rival = incumbent([*CANDIDATES, *repeated], _candidate(9, 0, 4.0).figures, OBJECTIVES)
    assert rival is not None
    assert rival.per_image == bytes([2])
    assert rival.value == 0.7
    assert rival.earlier == tuple(bytes([i]) for i in range(8))


def test_incumbent_has_latest_candidates() -> None:
    many = [_candidate(i % 250, 0.9 if i == 0 else 0.5, float(i)) for i in range(300)]
    rival = incumbent(many, _candidate(9, 0, 400.0).figures, OBJECTIVES)
    assert rival is not None
    assert rival.per_image == bytes([0])
    assert rival.earlier == tuple(c.per_image for c in many[-100:])
