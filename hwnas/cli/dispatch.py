"""Parsing of a verb's arguments with Hydra, and execution of the verb."""

import contextlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import RangeSweep
from omegaconf import DictConfig

from hwnas.cli.output import DISPLAY, Display
from hwnas.core import files, package, processes
from hwnas.core.errors import ConfigError, RunInterruptedError
from hwnas.core.manifest import read_manifest
from hwnas.core.run_folder import RESUMABLE, default_path
from hwnas.workflows import config
from hwnas.workflows.config.arguments import (
    flags_first,
    for_targets,
    last_text,
    with_names,
)
from hwnas.workflows.config.compose import (
    as_overrides,
    checked,
    compose,
    config_errors,
    with_resumed,
)
from hwnas.workflows.config.flags import check_folders, without_print_flags
from hwnas.workflows.config.grammar import sets_option, with_groups

# Multirun: ``-m`` with ``sampler=pareto,nsga2 seed=0,1,2``.


def sweep(verb: str, name: str, folder: str) -> None:
    """Run each combination of values with Hydra's launcher; the arguments are in ``sys.argv``.

    Launchers for other machines, such as Slurm, import this module there.

    Args:
        verb: Name of the verb.
        name: Name of its configuration, which differs for ``accuracy=table``.
        folder: Folder of the configuration files.

    Raises:
        RunInterruptedError: searches were interrupted; the message says how to resume each one.
    """
    folders: list[Path] = []  # folders of jobs that were launched in this process
    own = [f"--config-dir={path}" for path in package.without_folders(sys.argv)[1]]
    job = partial(_job, name, folders, own)
    try:
        hydra.main(version_base="1.3", config_path=folder, config_name=name)(job)()
    except KeyboardInterrupt:
        if verb != "search":
            raise
        raise RunInterruptedError(_interrupted_message(folders)) from None


def _job(name: str, folders: list[Path], own: Sequence[str], composed: DictConfig) -> None:
    from hwnas.core import processes
    from hwnas.workflows.config.compose import checked

    processes.tune_process()
    job = HydraConfig.get()
    config: Any = checked(name, composed, job.overrides.task)
    if getattr(config, "run", None) is not None and config.run.dir is None:
        config.run.dir = str(Path(job.sweep.dir, str(job.job.num)))
    if name in ("search", "tabular"):
        folders.append(Path(config.run.resume or config.run.dir))
    dispatch([config], [*own, *job.overrides.task])


def _interrupted_message(folders: Sequence[Path]) -> str:
    """Return a message on resuming the interrupted searches of a multirun.

    Args:
        folders: Folders of the launched searches.
    """
    started = [path for path in folders if (path / "manifest.json").exists()]
    command = "hwnas resume "
    if not started:
        return f"Interrupted; nothing is lost. Resume each search separately: {command}FOLDER"
    places = ", ".join(dict.fromkeys(str(path.parent) for path in started))
    return (
        f"Interrupted; nothing is lost. The started searches are in {places}; the last one is "
        f"{started[-1]}. Resume each one separately, the last one with: "
        f"{command}{shlex.quote(str(started[-1]))}"
    )


# Commands of verbs; their modules are imported on demand.

#: Commands by the configuration of their verbs: without and with arguments.
_ALONE = {
    config.WhyConfig: "hwnas.cli.inspect:why_command",
    config.AuditConfig: "hwnas.cli.train:audit_command",
}
_OTHERS = {
    config.ExportConfig: "hwnas.cli.export:export_command",
    config.CompressConfig: "hwnas.cli.export:compress_command",
    config.CompareConfig: "hwnas.cli.compare:compare_command",
    config.ProfileConfig: "hwnas.cli.train:profile_command",
    config.TrainConfig: "hwnas.cli.train:train_command",
    config.TabularConfig: "hwnas.cli.tabular:tabular_command",
    config.PlanConfig: "hwnas.cli.fleet:plan_command",
    config.SimulateConfig: "hwnas.cli.fleet:simulate_command",
    config.ReplanConfig: "hwnas.cli.fleet:replan_command",
    config.ServeCheckConfig: "hwnas.cli.fleet:serve_check_command",
}


def dispatch(configs: Sequence[Any], arguments: Sequence[str]) -> None:
    """Run the verb to which the configurations belong; only its modules are imported.

    Args:
        configs: Configurations of one verb, one for each target.
        arguments: Arguments of the command line, which runs record.

    Raises:
        HwnasError: an error that the user can fix; the message says how.
    """
    first = configs[0]
    if isinstance(first, config.SplitConfig):
        resolve_name("hwnas.cli.fleet:split_command")(configs, arguments)
        return
    if len(configs) > 1:
        config.check_common(configs)
    if isinstance(first, config.VerifyConfig):
        resolve_name("hwnas.cli.inspect:verify_command")(first)
        return
    if (name := _ALONE.get(type(first))) is not None:
        resolve_name(name)(first)
    elif (name := _OTHERS.get(type(first))) is not None:
        resolve_name(name)(first, arguments)
    else:
        resolve_name("hwnas.cli.search:search_command")(
            config.with_common_spaces(configs), arguments
        )


_SWEPT = ("search", "train", "profile")


def run_verb(verb: str, arguments: Sequence[str]) -> None:
    """Run one verb of the command line.

    Args:
        verb: Name of the verb.
        arguments: Its arguments as written by the user.

    Raises:
        HwnasError: an error that the user can fix; the message says how.
    """
    display, arguments = _display(verb, arguments)
    token = DISPLAY.set(display)
    try:
        _run_verb(verb, with_names(verb, arguments))
    finally:
        DISPLAY.reset(token)


def _display(verb: str, arguments: Sequence[str]) -> tuple[Display, list[str]]:
    """Return the options of the output, and the other arguments.

    Raises:
        ConfigError: ``--all`` is given, and the verb prints no front.
    """
    if any(a.lower() == "--all" for a in arguments) and verb not in ("search", "resume"):
        raise ConfigError(
            f"--all is not supported by 'hwnas {verb}': it lists all networks of a finished search "
            "(hwnas resume RUN --all). Remove it"
            f"{'; pick=all exports the whole front' * (verb == 'export')}."
        )
    flags = {"--all": "everything", "json=true": "as_json"}
    chosen = {flags[a.lower()]: True for a in arguments if a.lower() in flags}
    known = (*flags, "json=false")
    return Display(**chosen), [a for a in arguments if a.lower() not in known]


def _run_verb(verb: str, arguments: Sequence[str]) -> None:
    if verb == "resume":
        verb = _verb_of_run(arguments)
    arguments = flags_first(with_resumed(arguments))
    tabular = verb == "search" and sets_option(arguments, "accuracy", "table")
    name = "tabular" if tabular else verb
    processes.tune_process()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors; `config_errors` formats them
    swept = [a for a in arguments if a not in ("-m", "--multirun")]
    by_target = [
        flags_first(overrides) for overrides in for_targets(swept, searched=verb == "search")
    ]
    if len(swept) < len(arguments):
        if verb not in _SWEPT:
            raise ConfigError(
                f"-m (several runs) is not supported by 'hwnas {verb}'. Allowed: "
                f"{', '.join(_SWEPT)}. Remove -m."
            )
        if len(by_target) > 1:
            names = ",".join(str(last_text(overrides, "target")) for overrides in by_target)
            raise ConfigError(
                f"-m starts one run for each target. Write +target={names} without brackets."
            )
        _sweep(verb, name, ["--multirun", *swept])
    else:
        configs = [
            config for overrides in by_target for config in _configurations(verb, name, overrides)
        ]
        if configs:
            dispatch(configs, arguments)


def _verb_of_run(arguments: Sequence[str]) -> str:
    """Return the verb of the run to be resumed.

    Raises:
        ConfigError: there is none, or its verb continues by the same command.
    """
    if (run := last_text(arguments, "run.resume")) is None:
        raise ConfigError("resume needs the folder of a run: hwnas resume RUN.")
    manifest = read_manifest(Path(run))
    verb = str(manifest.get("verb", "search"))
    if verb not in RESUMABLE:
        raise ConfigError(
            f"{run} is a folder of 'hwnas {verb}'. To continue it, repeat the command: "
            f"{manifest.get('command', f'hwnas {verb}')}"
        )
    return verb


def _configurations(verb: str, name: str, arguments: Sequence[str]) -> list[Any]:
    """Return the configurations; none if Hydra only prints them (``--cfg``, ``--help``)."""
    if not any(a.lstrip("+~").startswith(("-", "hydra.", "hydra/")) for a in arguments):
        return [compose(name, arguments)]  # Hydra's command line composes twice
    if verb in _SWEPT and any(last_text(arguments, key) for key in ("+target", "target")):
        compose(
            name, without_print_flags(arguments)
        )  # Hydra prints values that are not allowed, too
    # Hydra only composes; the verb runs after it, so that hwnas formats its errors.
    jobs: list[DictConfig] = []
    folder = _prepare(verb, name, arguments)
    application = hydra.main(version_base="1.3", config_path=folder, config_name=name)(jobs.append)
    with config_errors(name, arguments):
        _run_hydra(application)
    return [checked(name, composed, arguments) for composed in jobs]


def _sweep(verb: str, name: str, arguments: Sequence[str]) -> None:
    if last_text(arguments, "hydra.sweep.dir") is None:
        arguments = [*arguments, f"hydra.sweep.dir={default_path('multirun')}"]
    folder = _prepare(verb, name, arguments)
    with config_errors(name, arguments):
        _check_ranges(sys.argv[1:])
        try:
            sweep(verb, name, folder)
        except BaseException:
            files.remove_unused(
                Path(str(last_text(arguments, "hydra.sweep.dir"))), ["multirun.yaml"]
            )
            raise


def _check_ranges(overrides: Sequence[str]) -> None:
    """Reject a range without values, which would start no run.

    Raises:
        ConfigError: there is one.
    """
    options, _ = package.without_folders(overrides)
    parsed = OverridesParser.create().parse_overrides([a for a in options if a[:1] != "-"])
    for override in parsed:
        swept = override.value()
        if isinstance(swept, RangeSweep) and not [*swept.range()]:
            raise ConfigError(
                f"{override.input_line}: the range is empty, so no run would start. Change START, "
                "STOP or STEP of range(START,STOP,STEP)."
            )


def _run_hydra(application: Callable[[], None]) -> None:
    """Run Hydra's command line; report a wrong flag in one line."""
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            application()
    except SystemExit as error:
        if error.code:
            reason = stderr.getvalue().rpartition("error: ")[2].strip()
            raise ConfigError(f"{reason}. List the flags: {sys.argv[0]} --hydra-help") from None
        raise


def _prepare(verb: str, name: str, arguments: Sequence[str]) -> str:
    """Register schema and arguments with Hydra; return the folder of configurations."""
    config.register(name)
    check_folders(arguments)
    swept = arguments[:1] == ["--multirun"]
    sys.argv = [f"hwnas {verb}", *as_overrides(name, with_groups(arguments), swept=swept)]
    return str(package.ROOT / "conf")
