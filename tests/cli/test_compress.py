"""What the terminal shows of a compressed network."""

from pathlib import Path
from typing import Any, cast

from rich.console import Console

from hwnas.cli.export import _print
from hwnas.core.quantity import Quantity
from hwnas.training.finetuning.compression import Compression
from hwnas.workflows.compress import CompressionOutcome
from hwnas.workflows.config import CompressConfig
from hwnas.workflows.export import ExportedModel


def test_limit_that_was_worked_for_is_shown_whatever_it_is_of() -> None:
    before = {"latency_ms": Quantity(0.5, "modelled"), "params_m": Quantity(2.0, "modelled")}
    after = {"latency_ms": Quantity(0.4, "modelled"), "params_m": Quantity(1.0, "modelled")}
    proof = {"figures": {name: figure.to_json() for name, figure in after.items()}}
    done = ExportedModel(Path(), proof, cast(Any, None))
    config = CompressConfig(run="run", budget={"params_m": 1.5, "latency_ms": 3})
    console = Console(width=80)
    with console.capture() as captured:
        _print(console, config, CompressionOutcome(done, before, Compression(0.5, {}, {})))
    rows = [line.split() for line in captured.get().splitlines() if "%" in line]
    assert [row[-4:] for row in rows[:2]] == [
        ["0.5", "0.4", "-20%", "3"],
        ["2", "1", "-50%", "1.5"],
    ]
