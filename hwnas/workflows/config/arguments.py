"""Command-line arguments and their form for Hydra."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from hwnas import tasks
from hwnas.core.errors import ConfigError
from hwnas.core.package import CONFIG_DIR
from hwnas.hardware import backends
from hwnas.hardware.backends.description import BackendSettings
from hwnas.tasks.metrics.budget import limit_in_unit
from hwnas.workflows.config import grammar
from hwnas.workflows.config.grammar import in_quotes, text_of

#: Mappings with user-defined keys.
_USER_KEYS = (
    "benchmark.costs=",
    "benchmark.reference=",
    "objectives={",
    "budget.",
    "target.facts.",
)
#: Hydra's options that take a value.
TAKE_A_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--cfg", "-c", "--package", "-p"),
)
_TARGETS = re.compile(r"\+{0,2}target=\[(.*)\]$")


def for_hydra(argument: str, *, swept: bool = False) -> str:
    """Return an argument in Hydra's syntax.

    Args:
        argument: The argument as written by the user.
        swept: Whether commas separate the values of several runs (``-m``).

    Raises:
        ConfigError: the argument has no name, or an invalid value.
    """
    # Hydra requires ``++`` for a new key.
    if argument.startswith((*_USER_KEYS, *_of_sections())):
        return f"++{argument}"
    key, sign, value = argument.partition("=")
    if sign and not key.strip("+~ "):
        raise ConfigError(f"'{argument}' has no name of an option: write OPTION=VALUE.")
    return f"{key}{sign}{grammar.for_hydra(key.lstrip('+'), value, swept=swept) if sign else ''}"


def _of_sections() -> Iterator[str]:
    """Yield the prefixes of mappings with user-defined keys in sections common to all targets."""
    for name, settings in backends.sections().items():
        if issubclass(settings, BackendSettings) and is_dataclass(settings):
            yield f"target.{name}="
            mappings = (f.name for f in fields(settings) if f.default_factory is dict)
            yield from (f"target.{name}.{mapping}" for mapping in mappings)


def last_text(arguments: Sequence[str], option: str) -> str | None:
    """Return the last value of an option as text; ``None`` if it is not given."""
    parted = (argument.partition("=") for argument in arguments)
    values = [value for key, _, value in parted if key.lstrip("+") == option]
    return grammar.text_of(values[-1]) if values else None


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments reordered: flags of Hydra with their values first, then options.

    argparse requires this order.
    """
    is_value = [False, *(a in TAKE_A_VALUE for a in arguments)]
    is_option = [
        not after and not a.startswith("-") and ("=" in a or a.startswith("~"))
        for a, after in zip(arguments, is_value, strict=False)
    ]
    split = list(zip(arguments, is_option, strict=True))
    return [a for a, option in split if not option] + [a for a, option in split if option]


#: Options that arguments without a name stand for, by verb; the last may take several.
_SUBJECTS = {
    "search": ("+target",),
    "resume": ("run.resume",),
    "profile": ("+target",),
    "why": ("run", "id"),
    "audit": ("run",),
    "compare": ("runs",),
    "export": ("run", "pick"),
    "compress": ("run", "id"),
    "verify": ("export",),
    "split": ("export",),
    "plan": ("service", "fleet"),
    "simulate": ("plan",),
    "replan": ("plan", "telemetry"),
    "serve-check": ("plan",),
}
_SEVERAL = ("+target", "runs")


def with_names(verb: str, arguments: Sequence[str]) -> list[str]:
    """Return arguments with the names of options: ``why RUN ID`` is ``why run=RUN id=ID``.

    Raises:
        ConfigError: too many have no name, an option is given with and without name, or a flag is
            unknown.
    """
    # Shells do not.
    arguments = [a.replace("=~/", f"={Path.home()}/", 1) if "=~/" in a else a for a in arguments]
    is_value = [False, *(a in TAKE_A_VALUE for a in arguments)]
    unnamed = [
        not after and not a.startswith(("-", "~")) and ("=" not in a or os.path.isdir(a))
        for a, after in zip(arguments, is_value, strict=False)
    ]
    named = [a for a, is_one in zip(arguments, unnamed, strict=True) if not is_one]
    _check_flags(named)
    named = [f"+{a}" if a.startswith("target=") else a for a in named]
    subjects = [a for a, is_one in zip(arguments, unnamed, strict=True) if is_one]
    return [*_named_subjects(verb, subjects, named), *named]


def _named_subjects(verb: str, subjects: Sequence[str], named: Sequence[str]) -> list[str]:
    """Return the options of the arguments without a name."""
    options = _SUBJECTS.get(verb, ())
    if len(subjects) > len(options) and options[-1:] and options[-1] in _SEVERAL:
        subjects = [*subjects[: len(options) - 1], grammar.listed(subjects[len(options) - 1 :])]
    if len(subjects) > len(options):
        usage = " ".join(option.strip("+").upper() for option in options)
        raise ConfigError(
            f"'{subjects[len(options)]}' is one argument too many without the name of an option: "
            "write OPTION=VALUE. "
            + (f"Usage: hwnas {verb} {usage} [OPTION=VALUE ...]. " if usage else "")
            + f"Options: hwnas {verb} --help."
        )
    keys = {argument_key(a) for a in named}
    for option, subject in zip(options, subjects, strict=False):
        if option.lstrip("+") in keys:
            raise ConfigError(
                f"'{subject}' is without the name of an option, and {option.lstrip('+')} is given "
                "already. Write OPTION=VALUE without spaces, or in quotes: 'OPTION=VALUE'."
            )
    return [f"{option}={subject}" for option, subject in zip(options, subjects, strict=False)]


_FLAGS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "-c", "--resolve", "--package", "-p",
    "--run", "-r", "--multirun", "-m", "--shell-completion", "-sc", *TAKE_A_VALUE,
    "--experimental-rerun", "--info", "-i",
)  # fmt: skip
#: What to write instead of flags of other programs.
_INSTEAD = {
    "--resume": "To continue a search: hwnas resume RUN.",
    "--continue": "To continue a search: hwnas resume RUN.",
    "--config": "Options are written as OPTION=VALUE. A folder with targets or data sets of your "
    "own: --config-dir DIR. The present options: --cfg job.",
    "--output": "The output folder is run.dir=DIR.",
    "--json": "Write json=true.",
}


def _check_flags(arguments: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a flag of other programs, with the option to write instead."""
    for argument in arguments:
        flag, sign, value = argument.partition("=")
        if not flag.startswith("-") or flag in _FLAGS:
            continue
        name = flag.lstrip("-").replace("-", "_")
        instead = f"Options have no dashes: write {name}={value if sign else 'VALUE'}."
        raise ConfigError(f"Unknown flag '{flag}'. {_INSTEAD.get(flag, instead)}")


_LIMIT = re.compile(r"(\+{0,2}(?:[^=]+\.)?budget)\.(\w+)=(.*)", re.DOTALL)


def in_units(arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``budget.latency=500us`` written as ``budget.latency_ms=0.5``.

    Raises:
        ConfigError: a limit has no unit, or an unknown one.
    """
    return [_in_unit(argument) for argument in arguments]


def _in_unit(argument: str) -> str:
    match = _LIMIT.fullmatch(argument)
    if match is None or match[2] == "name":
        return argument
    name, limit = limit_in_unit(match[2], grammar.text_of(match[3]))
    unchanged = (name, limit) == (match[2], grammar.text_of(match[3]))
    return argument if unchanged else f"{match[1]}.{name}={limit}"


def check_meaning(schema: str, arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``~budget`` written as ``budget=none``.

    Raises:
        ConfigError: an option has two values, has no effect, or is not allowed.
    """
    known: dict[str, str] = {}
    for argument in arguments:
        key, _, value = argument.partition("=")
        name = key.lstrip("+~")
        first = known.setdefault(name, argument)
        if first.lstrip("+") != argument.lstrip("+") and key not in CONFIG_DIR:
            raise ConfigError(f"{name} is given twice: {first} and {argument}. Give it once.")
        if name == "hydra.run.dir":
            raise ConfigError(f"{argument} has no effect: write run.dir={value}.")
        if name.endswith("._target_"):
            raise ConfigError(
                f"{argument} is not allowed: choose a launcher or a sweeper by hydra/launcher=NAME "
                "or hydra/sweeper=NAME."
            )
        if name == "objectives" and value.replace(" ", "") == "[]" and schema == "search":
            raise ConfigError(
                f"objectives=[] is empty: write objectives=[{_metric(arguments)},latency_ms], or "
                "leave it out."
            )
    without_limits = schema in ("search", "tabular") and "~budget" in arguments
    return ["budget=none" if a == "~budget" and without_limits else a for a in arguments]


def of_target(arguments: Sequence[str], position: int) -> list[str]:
    """Return the arguments of a search that define one of its targets, with ``--config-dir``.

    Args:
        arguments: Arguments of the search.
        position: Index of the target in the search.
    """
    result = [
        a
        for a in for_targets(arguments)[position]
        if argument_key(a).startswith(("target", "rpc."))
    ]
    for i, argument in enumerate(arguments):
        option, has_value, _ = argument.partition("=")
        if option in CONFIG_DIR:
            result += arguments[i : i + (1 if has_value else 2)]
    return result


def for_targets(arguments: Sequence[str], *, searched: bool = True) -> list[list[str]]:
    """Return the arguments for each target of ``+target=[npu,cpu]``; without it they are unchanged.

    Arguments with the name of a target in front apply only to it: ``npu.budget.latency_ms=0.3``.

    Args:
        arguments: The arguments as written by the user.
        searched: Whether they belong to a search. Its default objectives are the task's metric and
            the latency on each target.

    Raises:
        ConfigError: the list is empty or names a target twice.
    """
    named = [match[1] for a in arguments if (match := _TARGETS.match(a))]
    if not named:
        return [list(arguments)]
    targets = [name.strip() for name in named[-1].split(",") if name.strip()]
    if not targets or len(set(targets)) < len(targets):
        raise ConfigError(
            f"+target=[{named[-1]}] must be a list of different targets, as '+target=[npu,cpu]'."
        )
    rest = [a for a in arguments if not _TARGETS.match(a)]
    if searched and len(targets) > 1 and not any(a.startswith("objectives=") for a in rest):
        rest.insert(0, f"objectives=[{_metric(rest)},latency_ms]")
    common = [a for a in rest if not any(_is_for(a, target) for target in targets)]
    result = []
    for target in targets:
        specific = [a.replace(f"{target}.", "", 1) for a in rest if _is_for(a, target)]
        keys = {argument_key(a) for a in specific}
        result.append(
            [f"+target={target}", *specific, *(a for a in common if argument_key(a) not in keys)]
        )
    return result


def _metric(arguments: Sequence[str]) -> str:
    """Return the metric of the task in the arguments."""
    named = [a.partition("=")[2] for a in arguments if argument_key(a) in ("task", "dataset.task")]
    return tasks.get(named[-1] if named else "classification").metrics[0]


def _is_for(argument: str, target: str) -> bool:
    return argument.lstrip("+~").startswith(f"{target}.")


def argument_key(argument: str) -> str:
    """Return the name of the option in an argument, such as ``n_trials`` of ``n_trials=9``."""
    return argument.partition("=")[0].lstrip("+~")


# Python keywords as command-line arguments, so that runs from both are recorded alike.

#: Options that are mappings; any other mapping contains options.
_MAPPINGS = ("objectives", "benchmark.costs", "benchmark.reference")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_./][\w./+@-]*", re.IGNORECASE)
_IN_KEYS = re.compile(r"[\w/\-\\+.$%*@?|()\[\]{}:=, \t]+", re.ASCII)  # Hydra does not quote keys
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")

Value = object  #: text, number, bool, ``None``, path, or a list or mapping of these


def as_arguments(keywords: Mapping[str, Value]) -> list[str]:
    """Return keyword arguments of the Python API as command-line arguments.

    ``train__epochs=3`` and ``train={"epochs": 3}`` are the option ``train.epochs=3``.

    Raises:
        ConfigError: a key of a mapping cannot be an argument.
    """
    return [*_arguments("", keywords)]


def _arguments(prefix: str, keywords: Mapping[str, Value]) -> Iterator[str]:
    for keyword, value in keywords.items():
        name = prefix + str(keyword).replace("__", ".")
        if isinstance(value, Mapping) and name not in _MAPPINGS:
            yield from _arguments(f"{name}.", value)
        else:
            argument = {"target": "+target", "config_dir": "--config-dir"}.get(name, name)
            yield f"{argument}={value if name == 'config_dir' else _text(value)}"


def _text(value: Value) -> str:
    """Return a value in Hydra's syntax."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value))  # the repr of numpy numbers includes their type
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{_checked_key(str(key))}: {_text(v)}" for key, v in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    text = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    return text if _PLAIN.fullmatch(text) else in_quotes(text)


def _checked_key(key: str) -> str:
    """Return a key of a mapping in Hydra's syntax."""
    if not _IN_KEYS.fullmatch(key):
        raise ConfigError(
            f"{key!r} cannot be a key here: allowed are letters from a to z, digits, spaces and "
            "_ - / \\ + . $ % * @ ? | ( ) [ ] { } : = ,; rename it, for example the column."
        )
    return _ESCAPED.sub(r"\\\g<0>", key)


def check_places(configs: Sequence[Any], arguments: Sequence[str], run: str) -> None:
    """Reject databases, trackers and programs that only a run folder names, not the user.

    Args:
        configs: The configurations of the run, one for each target.
        arguments: Arguments of the user.
        run: The option that named the run folder.

    Raises:
        ConfigError: the run names one, and ``arguments`` do not repeat it.
    """
    pairs = [(a.partition("=")[0], text_of(a.partition("=")[2])) for a in arguments]
    for option, value in (place for config in configs for place in _places(config)):
        if not any(key.endswith(option) and text == value for key, text in pairs):
            raise ConfigError(
                f"{run}: the run folder names {option}={value}, which runs may not choose by "
                f"themselves. If you trust it, add it to the command: {option}={value}"
            )


def _places(config: Any) -> Iterator[tuple[str, str]]:
    """Yield options that name a database, another machine, or a program by its path."""
    if storage := config.study.storage:
        yield "study.storage", storage
    if not hasattr(config, "target"):  # of a benchmark table
        return
    host = config.rpc.tracker.rpartition(":")[0]
    if host and host not in ("localhost", "127.0.0.1", "[::1]"):
        yield "rpc.tracker", config.rpc.tracker
    for option, text in _texts("target", asdict(config.target)):
        is_program = os.path.isfile(text) and os.access(text, os.X_OK)
        if os.sep in text and (is_program or option.endswith(".cc")):
            yield option, text


def _texts(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield all texts of an option and their names."""
    if isinstance(value, str):
        yield name, value
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    for key, part in value.items() if isinstance(value, dict) else ():
        yield from _texts(f"{name}.{key}", part)
