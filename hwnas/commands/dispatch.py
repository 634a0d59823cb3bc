"""From the arguments of a verb to the verb, by Hydra's command line."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import hydra
from omegaconf import DictConfig

from hwnas import config, content, host
from hwnas.api.arguments import flags_first, for_hydra, for_targets, named
from hwnas.api.composition import check_folders, checked, compose, with_resumed, worded
from hwnas.api.literal import says
from hwnas.commands.sweep import sweep
from hwnas.commands.verbs import dispatch
from hwnas.errors import ConfigError

_SWEPT = ("search", "train", "profile")


def run_verb(verb: str, arguments: Sequence[str]) -> None:
    """Run one verb.

    Raises:
        HwnasError: what the user can mend.
    """
    if verb in ("verify", "split"):
        arguments = named(arguments, "export")
    arguments = flags_first(with_resumed(arguments))
    tabular = verb == "search" and says(arguments, "accuracy", "table")
    name = "tabular" if tabular else verb
    host.tune()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to `run`, which words them
    swept = [a for a in arguments if a not in ("-m", "--multirun")]
    own = for_targets(swept, searched=verb == "search")
    if len(swept) < len(arguments):
        if verb not in _SWEPT:
            raise ConfigError(
                f"-m starts many runs of {', '.join(_SWEPT)}; there is none of {verb}."
            )
        if len(own) > 1:
            raise ConfigError("-m starts searches for one target each: write +target=npu,cpu.")
        _sweep(verb, name, ["--multirun", *swept])
    else:
        configs = [config for each in own for config in _composed(verb, name, each)]
        if configs:
            dispatch(configs, arguments)


def _composed(verb: str, name: str, arguments: Sequence[str]) -> list[Any]:
    """Return the configuration of that name with the arguments; none where Hydra shows it."""
    if not any(a.lstrip("+~").startswith(("-", "hydra.", "hydra/")) for a in arguments):
        return [compose(name, arguments)]  # Hydra's own command line composes everything twice
    # Hydra only composes; the verb runs behind it, so that its errors are ours to word.
    jobs: list[DictConfig] = []
    folder = _prepared(verb, name, arguments)
    application = hydra.main(version_base="1.3", config_path=folder, config_name=name)(jobs.append)
    with worded(name, arguments):
        _started(application)
    return [checked(name, composed, arguments) for composed in jobs]


def _sweep(verb: str, name: str, arguments: Sequence[str]) -> None:
    folder = _prepared(verb, name, arguments)
    with worded(name, arguments):
        sweep(verb, name, folder)


def _started(application: Callable[[], None]) -> None:
    """Let Hydra compose, or show what its own flags ask for; a wrong flag is one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            application()
    except SystemExit as ended:
        if ended.code:
            why = said.getvalue().rpartition("error: ")[2].strip()
            raise ConfigError(f"{why}; --hydra-help lists flags.") from None
        raise


def _prepared(verb: str, name: str, arguments: Sequence[str]) -> str:
    """Make schema and arguments known to Hydra; return the folder of configurations."""
    config.register(name)
    check_folders(arguments)
    swept = arguments[:1] == ["--multirun"]
    sys.argv = [f"hwnas {verb}", *(for_hydra(a, swept=swept) for a in arguments)]
    return str(content.ROOT / "conf")
