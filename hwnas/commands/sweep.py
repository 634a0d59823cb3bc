"""Many runs of one command: ``-m`` with ``sampler=pareto,nsga2 seed=0,1,2``."""

from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig


def sweep(name: str, folder: str) -> None:
    """Have Hydra's launcher run each combination; the arguments are in ``sys.argv``.

    Launchers on other machines, as Hydra's for Slurm, import this module there.
    """
    hydra.main(version_base="1.3", config_path=folder, config_name=name)(partial(_job, name))()


def _job(name: str, composed: DictConfig) -> None:
    from hwnas import host
    from hwnas.api.composition import checked
    from hwnas.commands.verbs import dispatch

    host.tune()
    job = HydraConfig.get()
    config: Any = checked(name, composed, job.overrides.task)
    if getattr(config, "run", None) is not None and config.run.dir is None:
        config.run.dir = str(Path(job.sweep.dir, str(job.job.num)))
    dispatch([config], list(job.overrides.task))
