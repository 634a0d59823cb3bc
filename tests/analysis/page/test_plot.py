import struct

import pytest

from hwnas.analysis.figures import layers_png, prediction_png
from hwnas.core.run_folder import Row


def _size(png: bytes) -> tuple[int, int]:
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def _row(space: str, role: str, ms: float) -> Row:
    """Return a network as read from a table file: all values are text."""
    values = {"measured_ms": ms, "predicted_ms": 1.1 * ms, "macs_m": 9 * ms}
    values |= {"predicted_ms_low": ms, "predicted_ms_high": 1.2 * ms}
    return {"search_space": space, "role": role, **{k: str(v) for k, v in values.items()}}


def test_prediction_plot_uses_held_out_networks_of_space() -> None:
    rows = [_row("s", "held_out", 1 + i / 10) for i in range(10)]
    expected = prediction_png(rows, "s", "title")
    assert _size(expected) == (1500, 690)
    others = [_row("s", "fit", 50.0), _row("s", "interval", 60.0), _row("t", "held_out", 70.0)]
    assert prediction_png([*others, *rows], "s", "title") == expected
    assert prediction_png(rows[:9], "s", "title") != expected


@pytest.mark.parametrize("bounds", [("compute", "memory", "launch"), ("", "", "")])
def test_each_layer_has_a_bar(bounds: tuple[str, str, str]) -> None:
    layers = [(f"layer{i}", 0.1 + i, bounds[i % 3]) for i in range(12)]
    few, many = (_size(layers_png(part, "title")) for part in (layers[:3], layers))
    assert few[0] == many[0] == 1200
    assert many[1] - few[1] == pytest.approx(9 * 0.2 * 150, abs=2)
