"""``python -m hwnas <verb>``: from a verb to its Hydra application; errors become one line."""

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hwnas import __version__, host
from hwnas.errors import ConfigError, HwnasError, unknown

VERBS = {
    "search": "find, verify and report a Pareto front of networks for a target",
    "profile": "measure a target's latency table, and say how wrong it is",
    "why": "say when and why a search proposed a candidate, what it beat and what beats it",
}
_CONTINUE = {
    "search": "run.resume=<run folder>",
    "profile": "the same command",
    "why": "the same command",
}
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def main() -> None:
    """Run one verb and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one verb; return the exit code: 0, 2 for what the user can mend, 130 if interrupted."""
    from hwnas.commands.help import overview

    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview(VERBS))
        return 0
    if arguments[0] == "--version":
        print(f"hwnas {__version__}")
        return 0
    try:
        _run_verb(arguments[0], arguments[1:])
    except HwnasError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _refuse(f"Interrupted; nothing is lost: {_CONTINUE[arguments[0]]} continues.", 130)
    except Exception as error:
        if (message := _disk_problem(error, _CONTINUE[arguments[0]])) is None:
            raise
        return _refuse(message, 2)
    return 0


def _refuse(message: str, code: int) -> int:
    print(f"hwnas: {' '.join(message.split())}", file=sys.stderr)
    return code


def _run_verb(verb: str, arguments: Sequence[str]) -> None:
    if verb not in VERBS:
        raise ConfigError(unknown("verb", verb, VERBS))
    if {"-h", "--help"} & {*arguments}:
        from hwnas.commands.help import verb_help
        from hwnas.config import SCHEMAS

        print(verb_help(verb, SCHEMAS[verb]))
        return
    arguments = _with_resumed(arguments)
    tabular = verb == "search" and "accuracy=table" in [a.lstrip("+") for a in arguments]
    _hydra(verb, "tabular" if tabular else verb, arguments)


def _hydra(verb: str, name: str, arguments: Sequence[str]) -> None:
    """Compose the configuration of that name and run the verb."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if {"-m", "--multirun"} & {*arguments}:
        raise ConfigError("A run has one configuration: start one command for each, without -m.")
    host.tune()
    from hwnas import config, content

    config.register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to `run`, which words them
    sys.argv = [f"hwnas {verb}", *map(_for_hydra, arguments)]

    # Hydra only composes; the verb runs behind it, so that its errors are ours to word.
    jobs: list[DictConfig] = []
    folder = str(content.ROOT / "conf")
    application = hydra.main(version_base="1.3", config_path=folder, config_name=name)(jobs.append)
    try:
        application()
        for composed in jobs:
            _refuse_extra(OmegaConf.to_container(composed), config.SCHEMAS[name])
        configs = [OmegaConf.to_object(composed) for composed in jobs]
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error, name)) from None
    for checked in configs:
        _run(checked, arguments)


def _run(checked: Any, arguments: Sequence[str]) -> None:
    """Run the verb of a configuration; only what it needs is imported."""
    from hwnas import config

    if isinstance(checked, config.WhyConfig):
        from hwnas.commands import why

        why.run(checked)
    elif isinstance(checked, config.ProfileConfig):
        from hwnas.commands import profile

        profile.run(checked, arguments)
    elif isinstance(checked, config.TabularConfig):
        from hwnas.commands import tabular

        tabular.run(checked, arguments)
    else:
        from hwnas.commands import search

        assert isinstance(checked, config.SearchConfig)
        search.run(checked, arguments)


def _for_hydra(argument: str) -> str:
    """Return an argument so that Hydra reads it as it was meant."""
    # Mappings with keys of the user's own: Hydra wants to be told that they are new.
    if argument.startswith(("table.costs=", "table.reference=")):
        return f"++{argument}"
    # An id such as 12e456789012 would be a number, and infinite.
    key, _, value = argument.partition("=")
    if key in ("id", "genotype", "run") and value[:1] not in ("", "'", '"'):
        return f"{key}='{value.replace(chr(39), chr(92) + chr(39))}'"
    return argument


def _refuse_extra(content: Any, schema: type) -> None:
    """Refuse a key that ``+`` added beyond the schema; OmegaConf would carry it along unread."""
    from hwnas.commands.help import options

    known = [name for name, _ in options(schema)]

    def check(part: dict[str, Any], prefix: str) -> None:
        for key, value in part.items():
            name = f"{prefix}{key}"
            if name not in known and not any(n.startswith(f"{name}.") for n in known):
                raise ConfigError(unknown("option", name, known))
            if isinstance(value, dict) and name not in known:  # known: a mapping of the user's own
                check(value, f"{name}.")

    check(content, "")


def _explain(error: Exception, verb: str) -> str:
    """Return one sentence for an error of Hydra or OmegaConf, with the nearest valid names."""
    from hydra.errors import MissingConfigException

    from hwnas import content
    from hwnas.commands.help import options
    from hwnas.config import SCHEMAS

    text = str(error.__cause__ or error)  # the cause is the more precise of the two
    text = re.sub(r"\b(object_type|reference_type)=\w+", "", text)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return unknown(group or "configuration", name, error.options)
    targets = content.entries(content.ROOT / "conf" / "target")
    if "missing mandatory value: target" in str(error):
        return f"No target. Give one with +target=<name>: {', '.join(targets)}."
    match = re.search(
        r"[Cc]ould not (?:override|append to config.*?) '?([\w.]+)'?|Key '([^']+)'", text
    )
    if match is not None:
        key = match[1] or match[2]
        if key == "target":
            return f"The target has no default: write +target=<name>, one of {', '.join(targets)}."
        full = re.search(r"full_key: ([\w.]+)", text)
        known = [name for name, _ in options(SCHEMAS[verb])]
        known += {name.partition(".")[0] for name in known} & {"budget", "dataset", "sampler"}
        return unknown("option", full[1] if full else key, known)
    return text.replace("full_key:", "at")


def _with_resumed(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the run to be resumed, if any, overridden by the new ones."""
    resume = [a.partition("=")[2] for a in arguments if a.lstrip("+").startswith("run.resume=")]
    if not resume:
        return list(arguments)
    from hwnas.results import read_manifest

    def key(argument: str) -> str:
        return argument.partition("=")[0].lstrip("+~")

    renewed = {key(argument) for argument in arguments} | {"run.dir", "run.resume"}
    recorded = read_manifest(Path(resume[-1]))["arguments"]
    return [str(old) for old in recorded if key(str(old)) not in renewed] + list(arguments)


def _disk_problem(error: Exception, cure: str) -> str | None:
    """Return a sentence if the disk is full or not writable, else ``None``."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _DISK:
            where = f" ({cause.filename})" if cause.filename else ""
            return (
                f"Cannot write{where}: {os.strerror(cause.errno or 0)}. "
                f"Free space or choose another folder; {cure} continues."
            )
        if "database or disk is full" in str(cause) or "No space left on device" in str(cause):
            return f"Cannot write: the disk is full. Free space; {cure} continues."
        cause = cause.__cause__ or cause.__context__
    return None


if __name__ == "__main__":
    main()
