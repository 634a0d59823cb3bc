"""Which code a verb is; it is imported when it is asked for."""

import importlib
from collections.abc import Sequence
from typing import Any

from hwnas import config

#: Modules of commands by what their verbs accept: those that need no arguments, and others.
_ALONE = {config.WhyConfig: "why", config.AuditConfig: "audit"}
_OTHERS = {
    config.ExportConfig: "export",
    config.CompressConfig: "compress",
    config.CompareConfig: "compare",
    config.ProfileConfig: "profile",
    config.TrainConfig: "train",
    config.TabularConfig: "tabular",
    config.PlanConfig: "plan",
    config.SimulateConfig: "simulate",
    config.ReplanConfig: "replan",
    config.ServeCheckConfig: "serve_check",
}


def dispatch(configs: Sequence[Any], arguments: Sequence[str]) -> None:
    """Run the verb of configurations, one for each target; only what it needs is imported."""
    first = configs[0]
    if isinstance(first, config.VerifyConfig):
        _module("verify").run(first)
        return
    if isinstance(first, config.SplitConfig):
        _module("split").run(configs, arguments)
        return
    if len(configs) > 1:
        config.check_common(configs)
    if (name := _ALONE.get(type(first))) is not None:
        _module(name).run(first)
    elif (name := _OTHERS.get(type(first))) is not None:
        _module(name).run(first, arguments)
    else:
        _module("search").run(config.agreed(configs), arguments)


def _module(name: str) -> Any:
    return importlib.import_module(f"hwnas.commands.{name}")
