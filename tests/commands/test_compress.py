"""What the terminal shows of a compressed network."""

from pathlib import Path
from typing import Any, cast

from rich.console import Console

from hwnas.api.compressing import Compressed
from hwnas.api.exporting import Exported
from hwnas.commands.compress import _print
from hwnas.config import CompressConfig
from hwnas.figure import Figure
from hwnas.finishing.compression import Compression


def test_limit_that_was_worked_for_is_shown_whatever_it_is_of() -> None:
    before = {"latency_ms": Figure(0.5, "modelled"), "params_m": Figure(2.0, "modelled")}
    after = {"latency_ms": Figure(0.4, "modelled"), "params_m": Figure(1.0, "modelled")}
    proof = {"figures": {name: figure.to_json() for name, figure in after.items()}}
    done = Exported(Path(), proof, cast(Any, None))
    config = CompressConfig(run="run", budget={"params_m": 1.5, "latency_ms": 3})
    console = Console(width=80)
    with console.capture() as captured:
        _print(console, config, Compressed(done, before, Compression(0.5, {}, {})))
    rows = [line.split() for line in captured.get().splitlines() if "%" in line]
    assert [row[-4:] for row in rows[:2]] == [
        ["0.5", "0.4", "-20%", "3"],
        ["2", "1", "-50%", "1.5"],
    ]
