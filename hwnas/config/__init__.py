"""What each verb accepts: the Hydra schemas. Most are the domain types themselves."""

from hwnas.config.common import RunConfig
from hwnas.config.networks import ProfileConfig, TrainConfig
from hwnas.config.planning import PlanConfig, ReplanConfig, ServeCheckConfig, SimulateConfig
from hwnas.config.runs import (
    AuditConfig,
    CompareConfig,
    CompressConfig,
    ExportConfig,
    WhyConfig,
)
from hwnas.config.search import SearchConfig, TabularConfig
from hwnas.config.several import agreed, check_common
from hwnas.export.options import SplitConfig, VerifyConfig

__all__ = [
    "SCHEMAS",
    "AuditConfig",
    "CompareConfig",
    "CompressConfig",
    "ExportConfig",
    "PlanConfig",
    "ProfileConfig",
    "ReplanConfig",
    "RunConfig",
    "SearchConfig",
    "ServeCheckConfig",
    "SimulateConfig",
    "SplitConfig",
    "TabularConfig",
    "TrainConfig",
    "VerifyConfig",
    "WhyConfig",
    "agreed",
    "check_common",
    "register",
]

SCHEMAS: dict[str, type] = {
    "search": SearchConfig,
    "train": TrainConfig,
    "profile": ProfileConfig,
    "tabular": TabularConfig,  # search accuracy=table
    "why": WhyConfig,
    "audit": AuditConfig,
    "compare": CompareConfig,
    "export": ExportConfig,
    "compress": CompressConfig,
    "verify": VerifyConfig,
    "split": SplitConfig,
    "plan": PlanConfig,
    "simulate": SimulateConfig,
    "replan": ReplanConfig,
    "serve-check": ServeCheckConfig,
}


def register(name: str) -> None:
    """Make the schema of a configuration known to Hydra, for ``defaults: [NAME_schema]``."""
    from hydra.core.config_store import ConfigStore  # not above: help does without Hydra

    if f"{name}_schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name=f"{name}_schema", node=SCHEMAS[name])
