"""The options of each verb: Hydra schemas. Most are the domain types themselves."""

from hwnas.export.options import SplitConfig, VerifyConfig
from hwnas.workflows.config.network_options import ProfileConfig, TrainConfig
from hwnas.workflows.config.runs import (
    AuditConfig,
    CompareConfig,
    CompressConfig,
    ExportConfig,
    PlanConfig,
    ReplanConfig,
    ServeCheckConfig,
    SimulateConfig,
    WhyConfig,
)
from hwnas.workflows.config.search import (
    RunConfig,
    SearchConfig,
    TabularConfig,
    check_common,
    fidelities_within,
    trials_within,
    with_common_spaces,
)

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
    "check_common",
    "register",
    "with_common_spaces",
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
    """Make the schema of configuration ``name`` known to Hydra, for ``defaults: [NAME_schema]``."""
    from hydra.core.config_store import ConfigStore  # imported here: help works without Hydra
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver("trials_within"):  # the default of ``n_trials``
        OmegaConf.register_new_resolver("trials_within", trials_within)
        OmegaConf.register_new_resolver("fidelities_within", fidelities_within)
        OmegaConf.register_new_resolver("number", lambda value: f"{value:g}")  # 500.0 as 500
        OmegaConf.register_new_resolver("title", str.title)
    if f"{name}_schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name=f"{name}_schema", node=SCHEMAS[name])
