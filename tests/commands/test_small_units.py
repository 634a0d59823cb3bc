"""Errors of a unit in which all are small have digits wherever they are told."""

from pathlib import Path

from rich.console import Console

from hwnas.accuracy.audit import Finding, Subject
from hwnas.api import training
from hwnas.api.auditing import Audited
from hwnas.commands import audit, export
from hwnas.export import card
from hwnas.figure import Figure
from hwnas.space import SearchSpace

ERROR = Figure(2.5e-12, "measured", 2.0e-12, 3.0e-12)


def test_cells_and_cards_have_digits() -> None:
    assert export._cells("mae", ERROR) == ("2.5e-12", "±5e-13")
    assert training._cells("mae", ERROR) == ("2.5e-12", "2e-12 to 3e-12")
    assert card._found("mae", ERROR.to_json()) == "2.5e-12 (2e-12 to 3e-12)"
    assert card._found("accuracy", [0.91234, "measured", None, None]) == "0.9123"


def test_audits_have_digits(tiny: SearchSpace) -> None:
    finding = Finding(Subject("front", tiny.smallest()), ERROR, (ERROR, Figure(4e-12, "measured")))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(audit._table(Audited(Path(), [finding], {}, [], "mae")))
    row = captured.get().splitlines()[-1].split()
    assert row[1:] == ["front", "2.5e-12", "±5e-13", "2.5e-12", "±5e-13", "4e-12"]
