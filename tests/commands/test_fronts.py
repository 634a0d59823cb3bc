"""The table of models for all targets."""

import io

from rich.console import Console

from hwnas.commands.fronts import _table
from hwnas.figure import Figure
from hwnas.results import Candidate
from hwnas.searching.for_all import joined
from hwnas.searching.member import Member
from hwnas.space import Genotype


def test_figures_of_many_targets_are_whole_in_a_narrow_terminal() -> None:
    candidate = Candidate(0, Genotype("s", ()), {"accuracy": Figure(0.9, "measured")})
    targets = [f"a_target_of_number_{i}" for i in range(5)]
    members = {
        target: Member(
            candidate,
            {
                "accuracy_int8": Figure(0.9123, "measured"),
                "latency_ms": Figure(12.3456 + i, "compiler-estimate"),
            },
            {},
            {},
        )
        for i, target in enumerate(targets)
    }
    told = io.StringIO()
    Console(file=told, width=80).print(_table([joined(candidate, members)]))
    lines = told.getvalue().splitlines()
    for i, target in enumerate(targets):
        (line,) = [each for each in lines if target in each]
        assert ["0.9123", f"{12.3456 + i:.4f}"] == line.split()[-2:]
    assert candidate.id in told.getvalue()
    assert "…" not in told.getvalue()
