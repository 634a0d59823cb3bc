"""Options of earlier versions: the command line names the new option, old manifests are read."""

from collections.abc import Mapping, Sequence
from typing import Any

from hwnas.core.errors import ConfigError

_TRAINING = {"train.unaugmented": "train.plain_fraction"}
_STUDY = {
    "study.grace_s": "study.heartbeat_timeout_s",
    "study.patience_s": "study.reconnect_timeout_s",
}
_TABLE = {"table.accept_foreign": "table.allow_other_machine"}
_TARGET = {"target.elsewhere": "target.offline"}

#: New names of options by schema, then by old name.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "search": {
        "finish.n_least": "finish.min_candidates",
        "finish.n_most": "finish.max_candidates",
        **_TRAINING,
        **_STUDY,
        **_TABLE,
        **_TARGET,
    },
    "tabular": {
        f"table.{name}": f"benchmark.{name}"
        for name in ("path", "genotype", "accuracy", "costs", "partial", "reference")
    }
    | _STUDY,
    "train": _TRAINING,
    "profile": {
        "within": "tolerance", "share": "coverage", "near": "front_of", **_TRAINING, **_TABLE,
        **_TARGET,
    },
    "replan": {"most_moved": "max_moved_fraction"},
    "export": {"only": "target_name"},
    "compress": {"only": "target_name"},
    "audit": {"k": "n_networks"},
}  # fmt: skip
#: New values of options by option, then by old value.
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "cost": {"measured_elsewhere": "device_model"},
    "target.runtime": {"elsewhere": "offline"},
}
_FEATURES = {
    "sampler.features": "pass scores of untrained networks to hwnas.ParetoSampler(features=...) in "
    "an Optuna study of your own",
}
#: Deleted options by schema, with their replacements.
DELETED: Mapping[str, Mapping[str, str]] = {
    "search": _FEATURES,
    "tabular": _FEATURES,
    "compare": {"recost": "'hwnas search +target=OTHER start_from=RUN' costs the same networks"},
}


def check_names(schema: str, arguments: Sequence[str]) -> None:
    """Check that no argument names a renamed or deleted option.

    Raises:
        ConfigError: An argument does; the message says what to write instead.
    """
    for argument in arguments:
        option = argument.partition("=")[0].lstrip("+~")
        if (new := _new_name(option, RENAMED.get(schema, {}))) is not None:
            raise ConfigError(f"{option} was renamed: write {new}=VALUE.")
        if (instead := DELETED.get(schema, {}).get(option)) is not None:
            raise ConfigError(f"{option} was deleted: {instead}.")


def with_new_names(manifest: Any) -> Any:
    """Return the content of a manifest with old names and values of options replaced by new ones.

    Its ``config`` objects are changed in place.
    """
    if not isinstance(manifest, dict):
        return manifest
    config, targets = manifest.get("config"), manifest.get("targets")
    targets = targets if isinstance(targets, dict) else {}
    is_tabular = isinstance(config, dict) and config.get("accuracy") == "table"
    names = RENAMED.get("tabular" if is_tabular else str(manifest.get("verb", "search")), {})
    if isinstance(manifest.get("arguments"), list):
        prefixes = ["", *(f"{target}." for target in targets)]
        renamed = [_argument(argument, names, prefixes) for argument in manifest["arguments"]]
        manifest = manifest | {"arguments": renamed}
    for part in [manifest, *targets.values()]:
        if isinstance(part, dict) and isinstance(part.get("config"), dict):
            _rename_keys(part["config"], names)
    return manifest


def _new_name(option: str, names: Mapping[str, str]) -> str | None:
    """Return the present name of an option or of a key of a mapping; ``None`` if unchanged."""
    for old, new in names.items():
        if option == old or option.startswith(f"{old}."):
            return new + option.removeprefix(old)
    return None


def _argument(argument: Any, names: Mapping[str, str], prefixes: Sequence[str]) -> Any:
    key, sign, value = str(argument).partition("=")
    bare = key.lstrip("+~")
    for prefix in prefixes:
        option = bare.removeprefix(prefix)
        new = _new_name(option, names) or option
        new_value = RENAMED_VALUES.get(option, {}).get(value, value)
        if bare.startswith(prefix) and (new, new_value) != (option, value):
            return f"{key[: len(key) - len(bare)]}{prefix}{new}{sign}{new_value}"
    return argument


def _rename_keys(config: dict[str, Any], names: Mapping[str, str]) -> None:
    for old, new in names.items():
        section, _, name = old.rpartition(".")
        options = config.get(section) if section else config
        if isinstance(options, dict) and name in options:
            new_section, _, new_name = new.rpartition(".")
            target = config.setdefault(new_section, {}) if new_section else config
            target[new_name] = options.pop(name)
    if isinstance(cost := config.get("cost"), str):
        config["cost"] = RENAMED_VALUES["cost"].get(cost, cost)
