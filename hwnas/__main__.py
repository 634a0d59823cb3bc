"""``python -m hwnas <verb>``: from a verb to its Hydra application; errors become one line."""

import errno
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hwnas import __version__, host
from hwnas.errors import ConfigError, HwnasError, unknown

VERBS = {
    "search": "find, verify and report a Pareto front of networks for a target",
    "train": "train the supernet of a search space, or one network of it alone",
    "profile": "measure a target's latency table, and say how wrong it is",
    "audit": "say whether a search's supernet ranks networks as training them alone does",
    "why": "say when and why a search proposed a candidate, what it beat and what beats it",
    "compare": "compare fronts: indicators with intervals, tests over seeds, tables, figures",
    "export": "write models of a front as files for the device, with a proof of what they do",
    "verify": "repeat the proof of an export with the runtimes at hand",
}
_CONTINUE = {
    "search": "run.resume=<run folder>",
    "train": "the same command",
    "profile": "the same command",
    "audit": "the same command",
    "why": "the same command",
    "compare": "the same command",
    "export": "the same command",
    "verify": "the same command",
}
_SWEPT = ("search", "train", "profile")
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def main() -> None:
    """Run one verb and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one verb; return the exit code: 0, 2 for what the user can mend, 130 if interrupted.

    It is 1 where an export is not what its proof says.
    """
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
        return _refuse(str(error), error.exit_code, error.shown)
    except KeyboardInterrupt:
        return _refuse(f"Interrupted; nothing is lost: {_CONTINUE[arguments[0]]} continues.", 130)
    except Exception as error:
        if (message := _disk_problem(error, _CONTINUE[arguments[0]])) is None:
            raise
        return _refuse(message, 2)
    return 0


def _refuse(message: str, code: int, shown: str = "") -> int:
    print(f"hwnas: {' '.join(message.split())}", file=sys.stderr)
    if shown:
        print(shown, file=sys.stderr)
    return code


def _run_verb(verb: str, arguments: Sequence[str]) -> None:
    if verb not in VERBS:
        raise ConfigError(unknown("verb", verb, VERBS))
    if {"-h", "--help"} & {*arguments}:
        from hwnas.commands.help import verb_help
        from hwnas.config import SCHEMAS

        print(verb_help(verb, SCHEMAS[verb]))
        return
    if verb == "verify":
        from hwnas.commands.arguments import named

        arguments = named(arguments, "export")
    arguments = _with_resumed(arguments)
    tabular = verb == "search" and "accuracy=table" in [a.lstrip("+") for a in arguments]
    name = "tabular" if tabular else verb
    host.tune()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to `run`, which words them
    from hwnas.commands.arguments import for_targets

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
    import hydra
    from omegaconf import DictConfig

    # Hydra only composes; the verb runs behind it, so that its errors are ours to word.
    jobs: list[DictConfig] = []
    folder = _prepared(verb, arguments)
    application = hydra.main(version_base="1.3", config_path=folder, config_name=name)(jobs.append)
    with _worded(name):
        application()
    return [checked(name, composed) for composed in jobs]


def _sweep(verb: str, name: str, arguments: Sequence[str]) -> None:
    from hwnas.commands.sweep import sweep

    folder = _prepared(verb, arguments)
    with _worded(name):
        sweep(name, folder)


def _prepared(verb: str, arguments: Sequence[str]) -> str:
    """Make schemas and arguments known to Hydra; return the folder of configurations."""
    from hwnas import config, content
    from hwnas.commands.arguments import for_hydra

    config.register()
    sys.argv = [f"hwnas {verb}", *map(for_hydra, arguments)]
    return str(content.ROOT / "conf")


def checked(name: str, composed: Any) -> Any:
    """Return a composed configuration as its schema."""
    from omegaconf import OmegaConf

    from hwnas.config import SCHEMAS

    with _worded(name):
        _refuse_extra(OmegaConf.to_container(composed), SCHEMAS[name])
        return OmegaConf.to_object(composed)


@contextmanager
def _worded(name: str) -> Iterator[None]:
    """Make errors of Hydra and OmegaConf ours."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_explain(error, name)) from None


def dispatch(configs: Sequence[Any], arguments: Sequence[str]) -> None:
    """Run the verb of configurations, one for each target; only what it needs is imported."""
    from hwnas.export.options import VerifyConfig

    first = configs[0]
    if isinstance(first, VerifyConfig):
        from hwnas.commands import verify

        verify.run(first)
        return
    from hwnas import config

    if len(configs) > 1:
        config.check_common(configs)
    if isinstance(first, config.WhyConfig):
        from hwnas.commands import why

        why.run(first)
    elif isinstance(first, config.AuditConfig):
        from hwnas.commands import audit

        audit.run(first, _with_supernet(first.run))
    elif isinstance(first, config.ExportConfig):
        from hwnas.commands import export

        export.run(first, _with_networks(first.run), arguments)
    elif isinstance(first, config.CompareConfig):
        from hwnas.commands import compare

        compare.run(first, arguments, _searches)
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


def _with_supernet(folder: str) -> Any:
    """Return the configuration of a search, of its first target if it has several."""
    searches = _with_networks(folder)
    if searches[0].accuracy != "supernet":
        raise ConfigError(
            f"run={folder} trained each candidate alone (accuracy={searches[0].accuracy}): there "
            "is no supernet to audit."
        )
    return searches[0]


def _with_networks(folder: str) -> list[Any]:
    """Return the configurations of a search that trained networks, one for each target."""
    from hwnas.results import read_manifest, weights_of

    manifest = read_manifest(Path(folder), "run")
    weights = weights_of(manifest)
    has_none = weights == "supernet" and "checkpoint" not in manifest
    if manifest.get("verb") != "search" or weights == "table" or has_none:
        raise ConfigError(f"run={folder} is no search that trained networks.")
    return _searches(folder)


def _searches(folder: str) -> list[Any]:
    """Return the configurations of a search that trained networks, one for each target."""
    from hwnas.commands.arguments import for_targets
    from hwnas.config import agreed
    from hwnas.results import read_manifest, weights_of

    manifest = read_manifest(Path(folder), "run")
    arguments = [str(a) for a in manifest["arguments"] if not str(a).startswith("run.resume=")]
    composed = [_composed("search", "search", own) for own in for_targets(arguments)]
    accuracy = weights_of(manifest)
    return agreed([replace(c, accuracy=accuracy) for configs in composed for c in configs])


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
