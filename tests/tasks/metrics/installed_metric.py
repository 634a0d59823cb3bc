"""An installed package with a metric of its own."""

from pathlib import Path

from hwnas.tasks.metrics.registry import GROUP

_MODULE = '''
"""How warm a device gets: a metric that hwnas does not know."""

from hwnas.tasks.metrics import Metric
from hwnas.tasks.metrics.metric import scale

LABEL = "heat"


def _heat(figures, target):
    return scale(figures["energy_mj"], target.facts["k_per_mj"])


METRIC = Metric(
    "heat_k", LABEL, "K", derive=_heat, needs=("energy_mj",),
    facts={"k_per_mj": "kelvin of a millijoule"},
)
DUPLICATE = Metric("latency_ms", "another latency", "ms")
'''


def install_metric(folder: Path, point: str) -> None:
    """Write the files of an installed package with this entry point into a folder."""
    (folder / "own_metric.py").write_text(_MODULE)
    info = folder / "own_metric-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-metric\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{point}\n")
