"""Many runs of one command: ``-m`` with ``sampler=pareto,nsga2 seed=0,1,2``."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from hwnas.errors import StoppedError


def sweep(verb: str, name: str, folder: str) -> None:
    """Have Hydra's launcher run each combination; the arguments are in ``sys.argv``.

    Launchers on other machines, as Hydra's for Slurm, import this module there.

    Raises:
        StoppedError: searches were interrupted, each of which is to be continued by itself.
    """
    begun: list[Path] = []  # by launchers that run jobs in this process
    job = partial(_job, name, begun)
    try:
        hydra.main(version_base="1.3", config_path=folder, config_name=name)(job)()
    except KeyboardInterrupt:
        if verb != "search":
            raise
        raise StoppedError(_stopped(begun)) from None


def _job(name: str, begun: list[Path], composed: DictConfig) -> None:
    from hwnas import host
    from hwnas.api.composition import checked
    from hwnas.commands.verbs import dispatch

    host.tune()
    job = HydraConfig.get()
    config: Any = checked(name, composed, job.overrides.task)
    if getattr(config, "run", None) is not None and config.run.dir is None:
        config.run.dir = str(Path(job.sweep.dir, str(job.job.num)))
    if name in ("search", "tabular"):
        begun.append(Path(config.run.resume or config.run.dir))
    dispatch([config], list(job.overrides.task))


def _stopped(folders: Sequence[Path]) -> str:
    """Return how a sweep goes on of which searches were to be begun in these folders."""
    begun = [path for path in folders if (path / "manifest.json").exists()]
    again = "python -m hwnas search run.resume="
    if not begun:
        each = "each search that was begun, if any was, is continued by itself"
        return f"Interrupted; nothing is lost: {each}: {again}<its folder>"
    places = ", ".join(dict.fromkeys(str(path.parent) for path in begun))
    return (
        f"Interrupted; nothing is lost. Searches that were begun are in {places}; none after "
        f"{begun[-1]} was. Each is continued by itself, the last by: "
        f"{again}{shlex.quote(str(begun[-1]))}"
    )
