"""Composes configurations with Hydra, validates them and converts error messages."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.files import write_file
from hwnas.core.manifest import Manifest, accuracy_source, read_manifest
from hwnas.core.options import iter_options, option_defaults
from hwnas.core.renamed_options import check_names
from hwnas.core.run_folder import INPUTS
from hwnas.hardware import backends
from hwnas.models.spaces.union import space_names
from hwnas.training.evaluation.interfaces import TrainedConfig
from hwnas.training.options import TrainingConfig
from hwnas.workflows import config
from hwnas.workflows.config import SCHEMAS, grammar, with_common_spaces
from hwnas.workflows.config.arguments import (
    TAKE_A_VALUE,
    argument_key,
    check_meaning,
    check_places,
    for_hydra,
    for_targets,
    in_units,
    last_text,
)
from hwnas.workflows.config.flags import (
    SHIPPED,
    check_folders,
    check_own_names,
    without_print_flags,
)
from hwnas.workflows.config.grammar import quoted, text_of
from hwnas.workflows.config.suggestions import check_no_model, unknown_option

#: OmegaConf raises the last two for options within a part that is not set.
_HYDRA_ERRORS = (
    HydraException, OmegaConfBaseException, ValueError, AssertionError, AttributeError,
)  # fmt: skip
_ALONE = threading.RLock()  # Hydra's state is global in the process


def compose(name: str, arguments: Sequence[str]) -> Any:
    """Return the validated configuration, an object of the schema ``SCHEMAS[name]``.

    Safe to call from threads and from programs that use Hydra themselves: its global state is
    restored.

    Args:
        name: Name of the configuration: a verb, or ``tabular``.
        arguments: Command-line arguments for one target.

    Raises:
        ConfigError: an argument is invalid.
    """
    arguments = grammar.with_groups(_confirm(name, arguments))
    check_no_model(arguments)
    check_folders(arguments)
    overrides = as_overrides(name, _without_folders(arguments))
    with (
        config_errors(name, arguments),
        _exclusive_hydra(),
        _schema(name),
        hydra.initialize_config_dir(str(SHIPPED), version_base="1.3"),
    ):
        composed = hydra.compose(name, overrides)
    return checked(name, composed, arguments)


def _without_folders(arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``--config-dir DIR`` converted to ``hydra.searchpath``."""
    options, folders = package.without_folders(arguments)
    paths = ",".join(quoted(f"file://{folder.absolute()}") for folder in folders)
    return [*options, *([f"hydra.searchpath=[{paths}]"] if folders else [])]


def as_overrides(name: str, arguments: Sequence[str], *, swept: bool = False) -> list[str]:
    """Return command-line arguments in the form of Hydra's overrides.

    Args:
        name: Name of the configuration: a verb, or ``tabular``.
        arguments: Arguments for one target.
        swept: Whether commas separate the values of several runs (``-m``).

    Raises:
        ConfigError: an option was renamed or deleted, is empty, is given twice, or has no effect.
    """
    check_names(name, arguments)
    arguments = check_meaning(name, arguments)
    if any(option.name == "target" for option in iter_options(SCHEMAS[name])):  # no config group
        arguments = [a.replace("+target=", "target=", 1) for a in arguments]
    return [for_hydra(argument, swept=swept) for argument in arguments]


@contextmanager
def _exclusive_hydra() -> Iterator[None]:
    """Use Hydra's global state exclusively and restore it afterwards."""
    with _ALONE:
        around, base = GlobalHydra.instance(), VersionBase.instance()
        before = around.hydra, base.version_base
        around.clear()
        try:
            yield
        finally:
            GlobalHydra.set_instance(around)  # Hydra stores a copy there
            around.hydra, base.version_base = before


@contextmanager
def _schema(name: str) -> Iterator[None]:
    """Register the schema of a configuration temporarily."""
    store = ConfigStore.instance()
    before, store.repo = store.repo, {**store.repo}
    try:
        config.register(name)
        yield
    finally:
        store.repo = before


def checked(name: str, composed: Any, arguments: Sequence[str]) -> Any:
    """Return a configuration that Hydra composed as an object of the schema ``SCHEMAS[name]``.

    Raises:
        ConfigError: a key is unknown or missing, or a value is invalid.
    """
    with config_errors(name, arguments):
        _refuse_extra(OmegaConf.to_container(composed), name)
        _refuse_missing(composed, arguments)
        return OmegaConf.to_object(composed)


@contextmanager
def config_errors(name: str, arguments: Sequence[str]) -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf within the context into ``ConfigError``.

    The message names the option of configuration ``name`` and the value in ``arguments``.
    """
    try:
        yield
    except _HYDRA_ERRORS as error:
        raise ConfigError(grammar.explain(error, name, arguments)) from None


def _refuse_extra(content: Any, verb: str) -> None:
    """Reject a key that ``+`` added beyond the schema; OmegaConf would ignore it."""
    known = [name for name, _ in option_defaults(SCHEMAS[verb])]

    def check(part: dict[str, Any], prefix: str) -> None:
        for key, value in part.items():
            name = f"{prefix}{key}"
            if name not in known and not any(n.startswith(f"{name}.") for n in known):
                raise ConfigError(unknown_option(name, verb))
            if isinstance(value, dict) and name not in known:  # a mapping with user-defined keys
                check(value, f"{name}.")

    check(content, "")


def _refuse_missing(composed: Any, arguments: Sequence[str]) -> None:
    """Reject a target file that lacks keys, with all of them."""
    if OmegaConf.is_missing(composed, "target") or not composed.get("target"):
        return
    target = composed.target
    missing = {key.removeprefix("target.") for key in OmegaConf.missing_keys(target)}
    name = target.get("runtime")
    if name in backends.names():
        missing |= {key for key in backends.get(name).required if target.get(key) is None}
    if not (target.get("energy") or target.get("power") or missing & {"energy", "power"}):
        missing.add("energy or power")
    if missing:
        chosen = last_text(arguments, "+target") or last_text(arguments, "target")
        raise ConfigError(
            f"Target '{chosen}' lacks {', '.join(sorted(missing))}: add them to its file, or take "
            "them from a shipped target by a line such as defaults: [ethos_u55_256]"
        )


def with_resumed(arguments: Sequence[str]) -> list[str]:
    """Return the recorded arguments of the run in ``run.resume``, if given, then the new ones.

    Recorded arguments that are given again are left out. Limits of budgets are converted to the
    unit of their metric.

    Raises:
        ConfigError: a limit has no unit or an unknown one, ``run.dir`` is another folder, or the
            run folder names a database or program that only the user may choose.
        RunError: ``run.resume`` is not a run.
    """
    check_own_names(arguments)
    arguments = in_units(arguments)
    if (resume := last_text(arguments, "run.resume")) is None or resume == "null":
        return list(arguments)
    if (other := last_text(arguments, "run.dir")) not in (None, "null", resume):
        raise ConfigError(f"run.dir={other} has no effect: {resume} is resumed. Leave it out.")
    renewed = {argument_key(argument) for argument in arguments} | {"run.dir", "run.resume"}
    manifest = read_manifest(Path(resume))
    recorded = _search_arguments(Path(resume), manifest)
    former = [old for old in recorded if argument_key(old) not in renewed]
    known = [*former, *arguments]
    one_process = manifest.get("config", {}).get("study", {}).get("workers") == 1
    if one_process and last_text(known, "minutes") in (None, "null"):
        former += ["study.workers=1"] * (last_text(known, "study.workers") is None)  # reproducible
    if manifest.get("verb") == "search":
        options = [a for a in arguments if a not in ("-m", "--multirun")]
        name = "tabular" if last_text(former, "accuracy") == "table" else "search"
        composed = [
            compose(name, of_target)
            for of_target in for_targets([*former, *without_print_flags(options)])
        ]
        check_places(composed, options, f"run.resume={resume}")
    return former + list(arguments)


#: Arguments of the current command of a verb that reads runs: confirmed programs of its run.
_confirmed: ContextVar[Sequence[str]] = ContextVar("_confirmed", default=())
_READ_RUNS = ("export", "audit", "compress")


def _confirm(name: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments without those that repeat a program of the run that a verb reads."""
    if name not in _READ_RUNS:
        return list(arguments)
    keys = [f".{argument.partition('=')[0]}" for argument in arguments]
    repeated = [a for a, k in zip(arguments, keys, strict=True) if ".target." in k or ".rpc." in k]
    _confirmed.set(repeated)
    return [a for a in arguments if a not in repeated]


def _recorded_arguments(run: Path, manifest: Manifest) -> list[str]:
    """Return the recorded arguments that a run folder may decide: options, and ``--config-dir``.

    Flags and options of Hydra are dropped, and folders of networks that do not exist here. Of an
    option that is given twice, the last value counts. Paths are relative to the working directory
    of the run, if it still exists; else files are those that the run kept.
    """
    options, rest = dict[str, str](), iter(str(argument) for argument in manifest["arguments"])
    existing = partial(_existing_path, run=run, directory=manifest.get("directory", ""))
    folders = []
    for argument in rest:
        key, sign, value = argument.partition("=")
        name = key.lstrip("+~")
        if key in package.CONFIG_DIR:
            folders.append(f"{key}={existing(value if sign else next(rest, ''))}")
        elif key in TAKE_A_VALUE and not sign:
            next(rest, None)
        elif name == "run.supernets" and not Path(text_of(value)).is_dir():
            continue
        elif not key.startswith("-") and not name.startswith(("hydra.", "hydra/")):
            options.pop(name, None)
            options[name] = f"{key}={_resolve(name, value, existing)}" if sign else argument
    return [*folders, *options.values()]


def _resolve(option: str, value: str, existing: Callable[[str], str]) -> str:
    """Return the value of an option; names of files and folders where they exist."""
    if value[:1] == "[" and value[-1:] == "]":
        return f"[{','.join(_resolve(option, part, existing) for part in value[1:-1].split(','))}]"
    text = text_of(value)
    is_path = (
        bool(Path(text).suffix)
        or "/" in text
        or option.endswith((".path", ".dir", "_from", "baseline"))
    )
    if not is_path or option in ("dataset.hub_id", "study.storage"):
        return value
    return value if (path := existing(text)) == text else path


def _existing_path(path: str, run: Path, directory: str) -> str:
    """Return a path, if there is nothing that of the file in the directory or kept by the run."""
    before = os.path.join(directory, path)
    copy = os.path.join(run, INPUTS, os.path.basename(os.path.abspath(before)))
    return next((place for place in (path, before, copy) if os.path.exists(place)), path)


def keep_inputs(run: Path, arguments: Sequence[str]) -> None:
    """Copy the files that arguments name into ``RUN/inputs``: YAML, INI and JSON up to 4 MiB.

    A copy of the run can then be resumed and exported on machines without these files.
    """
    rest, folders = package.without_folders(arguments)
    values = [text_of(argument.partition("=")[2]).strip("[]").split(",") for argument in rest]
    files = {Path(text.strip()) for texts in values for text in texts}
    copies = {path: Path(path.name) for path in files if path.suffix in _TYPES and path.is_file()}
    for folder in folders:
        place = folder.absolute().resolve().name
        copies |= {path: Path(place, *path.parts[-2:]) for path in folder.glob("*/*.yaml")}
    for path, name in copies.items():
        if path.stat().st_size <= _MAX_BYTES:
            write_file(run / INPUTS / name, path.read_bytes())


_TYPES, _MAX_BYTES = (".yaml", ".yml", ".ini", ".json"), 4 << 20


def _search_arguments(run: Path, manifest: Manifest) -> list[str]:
    """Return a run's arguments, with the defaults that may differ in other versions.

    These are the search spaces of a target, the recipe and duration of training, and with a time
    limit the schedules that were shortened to fit.
    """
    arguments = _recorded_arguments(run, manifest)
    config = manifest.get("config", {})
    if "time_plan" in manifest:
        chosen = ("accuracy", "train.epochs", "trained.fidelities")
        arguments = [a for a in arguments if a.partition("=")[0] not in chosen]
        arguments.append(f"accuracy={config['accuracy']}")
    result, spaces = [*arguments], config.get("search_space")
    if spaces is not None and last_text(arguments, "search_space") is None:
        result.append(f"search_space=[{','.join(map(quoted, space_names(spaces)))}]")
    for group, schema, recorded in (
        ("train", TrainingConfig, config.get("train", {})),
        ("trained", TrainedConfig, config.get("trained", {})),
    ):
        known = [option.name for option in iter_options(schema)]
        for name, value in recorded.items():
            if name in known and last_text(arguments, f"{group}.{name}") is None:
                text = value if isinstance(value, str) else json.dumps(value)
                result.append(f"{group}.{name}={text}")
    return result


def searches(folder: str) -> list[Any]:
    """Return the configurations of the search in a folder, one for each target.

    ``accuracy`` is the one that the search used, also if it was chosen by default.

    Raises:
        RunError: the folder is not a run.
        ConfigError: an option is invalid, or only the user may choose it.
    """
    manifest = read_manifest(Path(folder), "run")
    arguments = [
        a for a in _search_arguments(Path(folder), manifest) if not a.startswith("run.resume=")
    ]
    composed = [compose("search", overrides) for overrides in for_targets(arguments)]
    configs = [replace(config, study=replace(config.study, storage=None)) for config in composed]
    check_places(configs, _confirmed.get(), f"run={folder}")  # the study is not opened
    accuracy = accuracy_source(manifest)
    return with_common_spaces([replace(config, accuracy=accuracy) for config in composed])


def with_networks(folder: str) -> list[Any]:
    """Return the configurations of a search that trained networks; see ``searches``.

    Raises:
        RunError: the folder is not a run.
        ConfigError: the run is not a search, or the search trained no networks.
    """
    manifest = read_manifest(Path(folder), "run")
    weights = accuracy_source(manifest)
    if (verb := manifest.get("verb")) != "search":
        raise ConfigError(f"run={folder} is of 'hwnas {verb}'. Give the folder of a search.")
    if weights == "table" or (weights == "supernet" and "checkpoint" not in manifest):
        raise ConfigError(
            f"run={folder}: this search trained no networks. Give a search with accuracy=trained "
            "or accuracy=supernet."
        )
    return searches(folder)


def with_supernet(folder: str) -> Any:
    """Return the configuration of a search with a supernet, for its first target.

    Raises:
        ConfigError: the folder is not that of a search, or the search trained no supernet.
    """
    searches = with_networks(folder)
    if searches[0].accuracy != "supernet":
        raise ConfigError(
            f"run={folder} trained each candidate separately (accuracy={searches[0].accuracy}), so "
            "it has no supernet: give a search with accuracy=supernet."
        )
    return searches[0]
