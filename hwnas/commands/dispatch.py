"""From the arguments of a verb to the verb, by Hydra's command line."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import hydra
from omegaconf import DictConfig

from hwnas import config, content, host
from hwnas.api.arguments import for_hydra, for_targets, named
from hwnas.api.composition import (
    check_folders,
    checked,
    with_resumed,
    worded,
)
from hwnas.commands.sweep import sweep
from hwnas.errors import ConfigError

_SWEPT = ("search", "train", "profile")


def run_verb(verb: str, arguments: Sequence[str]) -> None:
    """Run one verb.

    Raises:
        HwnasError: what the user can mend.
    """
    if verb == "verify":
        arguments = named(arguments, "export")
    arguments = with_resumed(arguments)
    tabular = verb == "search" and "accuracy=table" in [a.lstrip("+") for a in arguments]
    name = "tabular" if tabular else verb
    host.tune()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to `run`, which words them
    swept = [a for a in arguments if a not in ("-m", "--multirun")]
    own = for_targets(swept)
    if len(swept) < len(arguments):
        if verb not in _SWEPT:
            raise ConfigError(
                f"-m starts many runs of {', '.join(_SWEPT)}; there is none of {verb}."
            )
        if len(own) > 1:
            raise ConfigError("-m starts searches for one target each: write +target=npu,cpu.")
        _sweep(verb, name, ["--multirun", *swept])  # in front: between others, argparse errs
    else:
        configs = [config for each in own for config in _composed(verb, name, each)]
        if configs:
            dispatch(configs, arguments)


def _composed(verb: str, name: str, arguments: Sequence[str]) -> list[Any]:
    """Return the configuration of that name with the arguments; none where Hydra shows it."""
    # Hydra only composes; the verb runs behind it, so that its errors are ours to word.
    jobs: list[DictConfig] = []
    folder = _prepared(verb, arguments)
    application = hydra.main(version_base="1.3", config_path=folder, config_name=name)(jobs.append)
    with worded(name):
        application()
    return [checked(name, composed) for composed in jobs]


def _sweep(verb: str, name: str, arguments: Sequence[str]) -> None:
    folder = _prepared(verb, arguments)
    with worded(name):
        sweep(name, folder)


def _prepared(verb: str, arguments: Sequence[str]) -> str:
    """Make schemas and arguments known to Hydra; return the folder of configurations."""
    config.register()
    check_folders(arguments)
    sys.argv = [f"hwnas {verb}", *map(for_hydra, arguments)]
    return str(content.ROOT / "conf")


def dispatch(configs: Sequence[Any], arguments: Sequence[str]) -> None:
    """Run the verb of configurations, one for each target; only what it needs is imported."""
    first = configs[0]
    if isinstance(first, config.VerifyConfig):
        from hwnas.commands import verify

        verify.run(first)
        return
    if len(configs) > 1:
        config.check_common(configs)
    if isinstance(first, config.WhyConfig):
        from hwnas.commands import why

        why.run(first)
    elif isinstance(first, config.AuditConfig):
        from hwnas.commands import audit

        audit.run(first)
    elif isinstance(first, config.ExportConfig):
        from hwnas.commands import export

        export.run(first, arguments)
    elif isinstance(first, config.CompareConfig):
        from hwnas.commands import compare

        compare.run(first, arguments)
    elif isinstance(first, config.ProfileConfig):
        from hwnas.commands import profile

        profile.run(first, arguments)
    elif isinstance(first, config.TrainConfig):
        from hwnas.commands import train

        train.run(first, arguments)
    elif isinstance(first, config.TabularConfig):
        from hwnas.commands import tabular

        tabular.run(first, arguments)
    else:
        from hwnas.commands import search

        search.run(config.agreed(configs), arguments)
