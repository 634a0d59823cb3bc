"""Pictures of a search, from its folder."""

from pathlib import Path

from matplotlib.figure import Figure

from hwnas.budget import Budget
from hwnas.comparison import folder
from hwnas.manifest import Manifest, read_manifest
from hwnas.report.plot import Panel, front_figure
from hwnas.report.searched import FrontData
from hwnas.searching import earlier


def of_search(path: Path) -> Figure:
    """Return the metric over the first cost, a panel for each target.

    Raises:
        RunError: it is not the folder of a search, or nothing is finished in it yet.
    """
    manifest = read_manifest(path, "path")
    panels = [_of_target(path, manifest, name) for name in manifest.get("targets", {})]
    return front_figure(*panels or [_panel(path)])


def _of_target(path: Path, manifest: Manifest, target: str) -> Panel:
    """Return the panel of one of several targets; it has no folder before the search ends."""
    if (path / target / "manifest.json").exists():
        return _panel(path / target)
    config = manifest["targets"][target]["config"]
    candidates = earlier.candidates(path, "path", target)
    front = FrontData(candidates, [], config["objectives"], Budget.of(config["budget"]))
    return Panel(front, f"{path.absolute().name} on {target}")


def _panel(path: Path) -> Panel:
    run = folder.read(path, "path")
    title = f"{run.name} on {run.target}" if run.target else run.name
    return Panel(
        FrontData(run.candidates, run.members, [*run.directions], Budget(run.limits)), title
    )
