import random

import numpy as np
import pytest

from hwnas.analysis.search_page import decisions
from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import distinct
from hwnas.nas.member import Member
from hwnas.tasks import metrics

OBJECTIVES = ("accuracy", "latency_ms")


def _candidate(
    trial: int, accuracy: float, latency: float, reason: str = "", name: int | None = None
) -> Candidate:
    figures = {"accuracy": Quantity(accuracy, "measured")} if not reason else {}
    figures["latency_ms"] = Quantity(latency, "modelled")
    genotype = Genotype("s", (("n", trial if name is None else name),))
    return Candidate(trial, genotype, figures, reason=reason)


def test_log_lists_entries_exits_and_refusals() -> None:
    first, second = _candidate(0, 0.8, 2.0), _candidate(1, 0.7, 1.0)
    candidates = [
        first,
        second,
        _candidate(2, 0.6, 3.0),  # dominated
        _candidate(3, 0.0, 9.0, "latency_ms 9 over budget 5"),
        _candidate(4, 0.0, 8.0, "latency_ms 8 over budget 5; energy_mj 3 over budget 1"),
        _candidate(5, 0.9, 1.5),
        _candidate(6, 0.9, 1.5, name=5),  # repeated
        _candidate(7, 0.0, 7.0, "latency_ms 7 over budget 5"),
    ]
    lines = decisions(candidates, [], OBJECTIVES)
    assert [(line.when, line.kind) for line in lines] == [
        ("trial 0", "front"), ("trial 1", "front"), ("trials 3 to 4", "refused"),
        ("trial 5", "front"), ("trial 7", "refused"),
    ]  # fmt: skip
    assert lines[0].text.endswith("enters the front: accuracy 80.00%, latency 2 ms. Front of 1.")
    assert lines[2].text == "2 refused: 2 latency_ms over budget 5, 1 energy_mj over budget 1"
    assert f"; 1 leaves: {first.id}. Front of 2." in lines[3].text
    assert "latency_ms 7 over budget 5" in lines[4].text


@pytest.mark.parametrize("n", [3, 600, 1500])
def test_last_log_line_has_final_front_size(n: int) -> None:
    rng = random.Random(n)
    candidates = [
        _candidate(i, rng.random(), rng.choice([1, 2, 3, rng.random()])) for i in range(n)
    ]
    points = np.array([[c.figures[name].value for name in OBJECTIVES] for c in candidates])
    n_front = int(non_dominated(points, [True, False]).sum())
    lines = decisions(candidates, [], OBJECTIVES)
    assert lines[-1].text.endswith(f"Front of {n_front}.")


def test_log_lists_verification() -> None:
    candidate = _candidate(0, 0.8, 2.0)
    figures = {name: Quantity(1.0, "modelled") for name in metrics.BASE_COSTS}
    figures |= {name: Quantity(0.75, "measured") for name in ("accuracy_fp32", "accuracy_int8")}
    stays, leaves = (Member(candidate, figures, {}, {}, (), stays) for stays in (True, False))
    kept_line, left_line = decisions([], [stays, leaves], OBJECTIVES)
    figures_text = "accuracy 75.00% (searched 80.00%), latency 1 ms (searched 2)"
    assert kept_line.text == f"{candidate.id} fits, on the front: {figures_text}"
    assert left_line.text == f"{candidate.id} left the front: {figures_text}"


def test_distinct_keeps_first_trial() -> None:
    candidates = [_candidate(0, 0.8, 2.0), _candidate(1, 0.7, 1.0), _candidate(2, 0.8, 2.0, name=0)]
    assert [candidate.trial for candidate in distinct(candidates)] == [0, 1]
