"""Errors in small units are printed with significant digits."""

from pathlib import Path

from rich.console import Console

from hwnas.cli import export
from hwnas.cli import train as audit
from hwnas.core.quantity import Quantity
from hwnas.export import card
from hwnas.models.spaces import SearchSpace
from hwnas.training.evaluation.rank_audit import AuditedNetwork, AuditFinding
from hwnas.workflows import train
from hwnas.workflows.audit import AuditResult

ERROR = Quantity(2.5e-12, "measured", 2.0e-12, 3.0e-12)


def test_table_cells_and_cards_show_small_errors() -> None:
    assert export._cells("mae", ERROR) == ("2.5e-12", "2e-12 to 3e-12")
    assert train._cells("mae", ERROR) == ("2.5e-12", "2e-12 to 3e-12")
    assert card._interval_text("mae", ERROR.to_json()) == "2.5e-12 (2e-12 to 3e-12)"
    assert card._interval_text("accuracy", [0.91234, "measured", None, None]) == "0.9123"


def test_audit_table_shows_small_errors(tiny: SearchSpace) -> None:
    finding = AuditFinding(
        AuditedNetwork("front", tiny.smallest()), ERROR, (ERROR, Quantity(4e-12, "measured"))
    )
    console = Console(width=120)
    with console.capture() as captured:
        console.print(audit._audit_table(AuditResult(Path(), [finding], {}, [], "mae")))
    row, interval = captured.get().splitlines()[-1].split(), ["2e-12", "to", "3e-12"]
    assert row[1:] == ["front", "2.5e-12", *interval, "2.5e-12", *interval, "4e-12"]
