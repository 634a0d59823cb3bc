"""Terminal output for a compressed network."""

from rich.console import Console

from hwnas.cli.export import _cost_table
from hwnas.core.quantity import Quantity
from hwnas.training.finetuning.compression import Compression
from hwnas.workflows.compress import CompressionResult


def test_cost_table_shows_limit_of_each_metric() -> None:
    before = {"latency_ms": Quantity(0.5, "modelled"), "params_m": Quantity(2.0, "modelled")}
    after = {"latency_ms": Quantity(0.4, "modelled"), "params_m": Quantity(1.0, "modelled")}
    limits = {"params_m": 1.5, "latency_ms": 3}
    result = CompressionResult([], [], before, Compression(0.5, {}, {}), limits)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(_cost_table(result, after, []))
    rows = [line.split() for line in captured.get().splitlines() if "%" in line]
    assert [row[-4:] for row in rows[:2]] == [
        ["0.5", "0.4", "-20%", "3"],
        ["2", "1", "-50%", "1.5"],
    ]
