"""``python -m hwnas train``: what the terminal shows of a training."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.training import Trained, train
from hwnas.commands.console import Phases, print_phases
from hwnas.config import TrainConfig
from hwnas.metrics import column
from hwnas.results import Row
from hwnas.training import parallel


def run(config: TrainConfig, arguments: Sequence[str]) -> None:
    """Train, and print how good it is; of several processes, the first prints."""
    console = Console(quiet=not parallel.leads())
    with Phases(console) as phases:
        trained = train(config, arguments, phases)
    if trained is not None:
        console.print(_table(trained))
        console.print(_closing(trained.summary), highlight=False, soft_wrap=True)
        print_phases(console, phases)


def _table(trained: Trained) -> Table:
    table = Table(
        "", column(trained.metric).title, "95 % interval", title=trained.title,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    table.columns[1].justify = "right"
    for row in trained.figures:
        table.add_row(*row)
    return table


def _closing(summary: Row) -> str:
    """Return what the training took and where its result is."""
    where = f"Checkpoint: {summary['checkpoint']}"
    if summary["checkpoint"] is None:
        return "Nothing was trained: the weights are those of train.init_from."
    if not summary["steps"]:
        return f"It was trained before. {where}"
    rate = summary["images_x_subnets_per_second"]
    what = "images x subnets" if "genotypes" in summary else "images"
    steps, seconds = summary["steps"], summary["seconds"]
    return f"Trained {steps} steps in {seconds:.1f} s, {rate:.0f} {what} a second. {where}"
