"""What fronts and profiles do not say that a fleet needs, and what would measure it."""

from collections.abc import Iterable, Iterator, Sequence

from hwnas.errors import ConfigError
from hwnas.planning.fleet import Fleet
from hwnas.planning.models import Catalogue


def check_latencies(found: Catalogue, fleet: Fleet) -> None:
    """Refuse a device on which no model was timed, and a target that nothing was timed on.

    Raises:
        ConfigError: latencies are missing; it says by which command they are measured.
    """
    timed = {target for target, _ in found.latency_ms}
    for device, at in fleet.devices.items():
        is_known = at.target is None or at.target in timed
        if not is_known or not any(found.on(fleet, device, name) for name in found.models):
            target, known = at.target or device, listed(timed)
            raise ConfigError(
                f"device '{device}': no model of the fronts has a latency on target '{target}' "
                f"(there are some on {known}): measure with: python -m hwnas search "
                f"+target={target}   or name its target: devices.{device}.target."
            )


def unmeasured(found: Catalogue, fleet: Fleet) -> Iterator[str]:
    """Yield in words which batch sizes were not timed, and what measures them."""
    targets: dict[str, set[int]] = {}
    for (target, _), by_batch in found.latency_ms.items():
        if any(figure.source in ("measured", "table") for figure in by_batch.values()):
            targets.setdefault(target, set()).update(by_batch)
    used = {device.target or name for name, device in fleet.devices.items()}
    alone = [t for t, batches in targets.items() if t in used and batches == {1}]
    if alone:
        yield (
            f"Only batches of one were timed on {listed(alone)}: python -m hwnas search "
            f"+target={alone[0]} target.batch=8 times others; or name a CSV file in profiles."
        )


def listed(names: Iterable[str], most: int = 6) -> str:
    """Return names, or the first of them."""
    every: Sequence[str] = sorted(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" * (len(every) > most))
