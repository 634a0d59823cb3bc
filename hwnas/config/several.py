"""One search for several targets: what must be the same for all."""

from collections.abc import Sequence
from dataclasses import fields, replace

from hwnas.config.search import MOST, SearchConfig, too_many
from hwnas.errors import ConfigError
from hwnas.union import named

#: What may differ between the targets of one search.
_OWN = (
    "target", "budget", "cost", "objectives", "table", "timing", "tuning", "rpc", "baseline",
)  # fmt: skip


def check_common(configs: Sequence[object]) -> None:
    """Refuse several targets where one search cannot serve them.

    Raises:
        ConfigError: it says why.
    """
    checked = [config for config in configs if isinstance(config, SearchConfig)]
    if len(checked) < len(configs):
        raise ConfigError(
            "Only 'search' and 'split' take several targets; give others one at a time."
        )
    first, *others = checked
    for f in fields(SearchConfig):
        if f.name not in _OWN and any(getattr(c, f.name) != getattr(first, f.name) for c in others):
            raise ConfigError(
                f"{f.name} is the same for all targets of a search: write {f.name} without a "
                f"target's name before it. Of their own, targets have: {', '.join(_OWN)}."
            )
    if len({config.target.name for config in checked}) < len(checked):
        raise ConfigError("Targets of one search must have different names (target.name).")
    n = 1 + sum(len(config.objectives) - 1 for config in checked)
    if first.sampler.name == "pareto" and n > MOST:
        raise ConfigError(too_many(n, first.metric, len(checked)))


def check_link(configs: Sequence[SearchConfig]) -> None:
    """Refuse a link that leads nowhere.

    Raises:
        ConfigError: it names the targets that there are.
    """
    to, names = configs[0].link.to, [config.target.name for config in configs]
    if to is not None and (to not in names or len(names) < 2):
        raise ConfigError(
            f"link.to={to}: a link leads from one target of a search to another; this one's: "
            f"{', '.join(names)}. Search for both: +target=[A,B]."
        )


def agreed(configs: Sequence[SearchConfig]) -> list[SearchConfig]:
    """Return the configurations of a search's targets with one ``search_space``, spelt out.

    It is what was given, else all spaces that suit one of the targets, each once; where runtimes
    differ, such that suit others, too: one may take what another refuses.

    Raises:
        SpaceError: two spaces have the same name.
    """
    if len({config.target.runtime for config in configs}) > 1:
        configs = [_sharing(config) for config in configs]
    names = named(list(dict.fromkeys(name for config in configs for name in config.spaces)))
    only = names[0] if len(names) == 1 else names
    return [replace(config, search_space=only) for config in configs]


def _sharing(config: SearchConfig) -> SearchConfig:
    shared = config.target.shared_spaces
    if not shared or config.search_space is not None:
        return config
    return replace(config, search_space=shared)
