"""Table of models with figures of all targets."""

import io

from rich.console import Console

from hwnas.cli.search import _joint_table
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.targets import join_members


def test_joint_table_is_complete_in_narrow_terminal() -> None:
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
    output = io.StringIO()
    Console(file=output, width=80).print(_joint_table([join_members(candidate, members)], None))
    lines = output.getvalue().splitlines()
    for i, target in enumerate(targets):
        (line,) = [text for text in lines if target in text]
        assert ["0.9123", f"{12.3456 + i:.4f}"] == line.split()[-2:]
    assert candidate.id in output.getvalue()
    assert "…" not in output.getvalue()
