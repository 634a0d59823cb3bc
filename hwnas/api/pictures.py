"""Pictures of a search, from its folder."""

from pathlib import Path

from matplotlib.figure import Figure

from hwnas.budget import Budget
from hwnas.comparison import folder
from hwnas.manifest import read_manifest
from hwnas.metrics import paid, quality
from hwnas.report.plot import Panel, front_figure
from hwnas.searching.front import pareto_front


def of_search(path: Path) -> Figure:
    """Return the metric over the first cost, a panel for each target.

    Raises:
        RunError: it is not the folder of a search, or nothing is finished in it yet.
    """
    targets = read_manifest(path, "path").get("targets", {})
    folders = [path / name for name in targets] or [path]
    return front_figure(*map(_panel, folders))


def _panel(path: Path) -> Panel:
    run = folder.read(path, "path")
    names = list(run.directions)
    metric, cost = quality(names), paid(names)[0]
    members = run.members or []
    found = [] if members else pareto_front(run.candidates, names)
    title = f"{run.name} on {run.target}" if run.target else run.name
    return Panel(run.candidates, members, metric, cost, Budget(run.limits), title, unverified=found)
