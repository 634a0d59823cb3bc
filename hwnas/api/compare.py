"""The beginning of a comparison: what is compared is read and named before anything heavy loads."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas import files
from hwnas.api.reporter import Reporter
from hwnas.comparison import reading
from hwnas.comparison.fronts import Run
from hwnas.config import CompareConfig

if TYPE_CHECKING:
    from hwnas.api.comparing import Compared

_NAMED = 6  # runs that are named


def compare(config: CompareConfig, arguments: Sequence[str], reporter: Reporter) -> "Compared":
    """Compare runs and write everything into a folder of its own.

    Args:
        config: What is compared.
        arguments: Of the command line, or what stands for them.
        reporter: Hears of the work.

    Raises:
        RunError: a run cannot be read, or the folder holds one already.
    """
    if config.run.dir:
        files.check_new(Path(config.run.dir), "run.dir")
    runs, objectives = reading.read(config.paths, config.objectives, config.group_by)
    reporter.say([_words(runs)])
    from hwnas.api.comparing import compare_runs  # what tests and draws takes a second to load

    return compare_runs(config, runs, objectives, arguments, reporter)


def _words(runs: Sequence[Run]) -> str:
    named = ", ".join(run.name for run in runs[:_NAMED])
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"Comparing {len(runs)} front{'s' * (len(runs) != 1)}: {named}{more}."
