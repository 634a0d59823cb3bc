"""Pictures of a search, from its folder."""

from pathlib import Path

from matplotlib.figure import Figure

from hwnas.budget import Budget
from hwnas.comparison import folder
from hwnas.manifest import Manifest, read_manifest
from hwnas.metrics import paid, quality
from hwnas.report.plot import Panel, front_figure
from hwnas.searching import earlier
from hwnas.searching.front import pareto_front


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
    names = list(config["objectives"])
    metric, cost = quality(names), paid(names)[0]
    candidates = earlier.candidates(path, "path", target)
    found, title = pareto_front(candidates, names), f"{path.absolute().name} on {target}"
    budget = Budget.of(config["budget"])
    return Panel(candidates, [], metric, cost, budget, title, unverified=found)


def _panel(path: Path) -> Panel:
    run = folder.read(path, "path")
    names = list(run.directions)
    metric, cost = quality(names), paid(names)[0]
    members = run.members or []
    found = [] if members else pareto_front(run.candidates, names)
    title = f"{run.name} on {run.target}" if run.target else run.name
    return Panel(run.candidates, members, metric, cost, Budget(run.limits), title, unverified=found)
