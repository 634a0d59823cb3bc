"""Live view of a running search."""

from dataclasses import dataclass, field

from rich.console import Console

from hwnas.cli.live_view import LiveView
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.search_progress import SearchView
from hwnas.nas.targets import Targets
from hwnas.tasks.metrics.budget import Budget


@dataclass
class FakeStudy:
    candidates: list[Candidate] = field(default_factory=list)


def _candidate(space: SearchSpace, trial: int, reason: str = "", **figures: float) -> Candidate:
    genotype = (space.smallest(), space.largest())[trial % 2]
    known = {name.replace("__", "."): Quantity(v, "modelled") for name, v in figures.items()}
    return Candidate(trial, genotype, known, {}, reason)


def test_line_and_panel_have_best_front_and_feasibility(tiny: SearchSpace) -> None:
    study = FakeStudy()
    watch = LiveView(
        study, [SearchView("", ("accuracy", "latency_ms", "flash_kib"), {"latency_ms": 2.0})]
    )
    assert not watch.look()
    study.candidates = [
        _candidate(tiny, 1, accuracy=0.9, latency_ms=1.0, flash_kib=8.0),
        _candidate(tiny, 2, "too slow", latency_ms=3.0, flash_kib=8.0),
    ]
    assert watch.look()
    assert watch.line() == (
        "best accuracy 0.9000 at 1 ms, 8 KiB flash, front 1 network (newest: trial 1), "
        "50% fit the budget"
    )
    # An earlier trial that another worker finished later comes first.
    study.candidates.insert(0, _candidate(tiny, 0, accuracy=0.5, latency_ms=0.5, flash_kib=16.0))
    assert watch.look()
    assert not watch.look()
    assert "front 2 networks (newest: trial 1), 67% fit the budget" in watch.line()
    console = Console(width=80)
    with console.capture() as captured:
        console.print(watch.panel())
    output = captured.get()
    assert "0.9000 at 1 ms, 8 KiB flash" in output


def test_line_shows_errors_in_small_units(tiny: SearchSpace) -> None:
    watch = LiveView(FakeStudy([_candidate(tiny, 0, mae=2.5e-12, latency_ms=0.5)]), [
        SearchView("", ("mae", "latency_ms"), {"latency_ms": 1.0})
    ])  # fmt: skip
    watch.look()
    assert watch.line().startswith("best mean absolute error 2.5e-12 at 0.5 ms")


def test_each_target_has_its_own_view(tiny: SearchSpace) -> None:
    objectives, budget = ("accuracy", "latency_ms"), Budget({"latency_ms": 1.0})
    targets = Targets({"npu": budget, "cpu": budget})
    views = [targets.view(t, objectives) for t in targets.budgets]
    both = [_candidate(tiny, 0, accuracy=0.9, npu__latency_ms=0.5, cpu__latency_ms=1.5)]
    watch = LiveView(FakeStudy(both), views)
    watch.look()
    assert watch.line() == (
        "npu: best accuracy 0.9000 at 0.5 ms, front 1 network (newest: trial 0), "
        "100% fit the budget; cpu: no network yet, 0% fit the budget"
    )
