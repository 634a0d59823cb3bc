"""Which code a verb is; it is imported when it is asked for."""

from collections.abc import Sequence
from typing import Any

from hwnas import config


def dispatch(configs: Sequence[Any], arguments: Sequence[str]) -> None:
    """Run the verb of configurations, one for each target; only what it needs is imported."""
    first = configs[0]
    if isinstance(first, config.VerifyConfig):
        from hwnas.commands import verify

        verify.run(first)
        return
    if len(configs) > 1:
        config.check_common(configs)
    if isinstance(first, config.WhyConfig):
        from hwnas.commands import why

        why.run(first)
    elif isinstance(first, config.AuditConfig):
        from hwnas.commands import audit

        audit.run(first)
    elif isinstance(first, config.ExportConfig):
        from hwnas.commands import export

        export.run(first, arguments)
    elif isinstance(first, config.CompareConfig):
        from hwnas.commands import compare

        compare.run(first, arguments)
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
