"""The table of models for all targets."""

import io

from rich.console import Console

from hwnas.cli.search import _joint_table
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.targets import join_members


def test_figures_of_many_targets_are_whole_in_a_narrow_terminal() -> None:
    candidate = Candidate(0, Genotype("s", ()), {"accuracy": Quantity(0.9, "measured")})
    targets = [f"a_target_of_number_{i}" for i in range(5)]
    members = {
        target: Member(
            candidate,
            {
                "accuracy_int8": Quantity(0.9123, "measured"),
                "latency_ms": Quantity(12.3456 + i, "compiler-estimate"),
            },
            {},
            {},
        )
        for i, target in enumerate(targets)
    }
    told = io.StringIO()
    Console(file=told, width=80).print(_joint_table([join_members(candidate, members)], None))
    lines = told.getvalue().splitlines()
    for i, target in enumerate(targets):
        (line,) = [each for each in lines if target in each]
        assert ["0.9123", f"{12.3456 + i:.4f}"] == line.split()[-2:]
    assert candidate.id in told.getvalue()
    assert "…" not in told.getvalue()
