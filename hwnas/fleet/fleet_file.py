"""``fleet.yaml``: devices with their prices and powers, links between regions, carbon."""

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.schema import NumberBounds, Positive
from hwnas.core.typed_files import read_yaml
from hwnas.fleet.service_file import Kib, Name, Service

Buy = Literal["bought", "reserved", "on_demand", "spot"]
Watt = Annotated[float, NumberBounds(0, 1e6)]
#: kg of CO2 a kWh: a constant, a value an hour, or a CSV file with a column ``kg_per_kwh``.
Carbon = Annotated[float, NumberBounds(0, 10)] | list[Annotated[float, NumberBounds(0, 10)]] | str


@dataclass(frozen=True)
class DeviceType:
    """Machines of one kind."""

    region: Name
    buy: Buy
    quota: Annotated[int, NumberBounds(1, 100_000)]  #: machines that there can be
    price: Annotated[float, NumberBounds(0, 1e6)] | None = None  #: $ of a machine an hour
    target: Name | None = None  #: the target of fronts whose latencies hold here
    like: Name | None = None  #: a device whose latencies hold here, over ``speed``
    speed: Annotated[float, NumberBounds(0, 1e6, exclusive=True)] = 1.0
    sketch: bool = False  #: there is none yet: what would buying one change?
    slots: Annotated[int, NumberBounds(1, 1024)] = 1  #: replicas that a machine has room for
    memory_mib: Positive | None = None  #: of a machine, which its slots share
    idle_w: Watt = 0.0
    busy_w: Watt | None = None
    derate: Annotated[float, NumberBounds(0, 1, exclusive=True)] = 1.0  #: speed that heat leaves
    start_s: Annotated[float, NumberBounds(0, 3600)] = 0.0  #: from the order to the first answer
    #: by what servers run models here, and on how many threads; default: as they were timed
    provider: Literal["cpu", "cuda", "tensorrt", "openvino"] | None = None
    threads: Annotated[int, NumberBounds(1, 1024)] | None = None

    @property
    def power_w(self) -> float:
        """Of a busy machine: the upper end; where that is not said, of an idle one."""
        return self.idle_w if self.busy_w is None else self.busy_w

    @property
    def is_hourly(self) -> bool:
        """Whether it is paid by the hour in which it runs."""
        return self.buy in ("on_demand", "spot")


@dataclass(frozen=True)
class RegionLink:
    """What lies between two regions."""

    rtt_ms: Annotated[float, NumberBounds(0, 1e6)]
    mbit_s: Positive | None = None  #: default: more than is needed
    usd_per_gb: Annotated[float, NumberBounds(0, 1000)] = (
        0.0  #: of 2**30 bytes, as clouds bill them
    )


@dataclass(frozen=True)
class Fleet:
    """``fleet.yaml``."""

    devices: Annotated[dict[Name, DeviceType], NumberBounds(1, 1000)]
    #: By their ends: ``edge-cloud``, or with spaces where a region has a hyphen itself,
    #: ``edge - eu-west``.
    links: dict[str, RegionLink] = field(default_factory=dict)
    carbon: dict[str, Carbon] = field(default_factory=dict)

    @property
    def regions(self) -> set[str]:
        """All regions in which machines may be."""
        return {device.region for device in self.devices.values()}

    @property
    def there(self) -> dict[str, DeviceType]:
        """The devices that exist, unless all are sketches."""
        return {n: d for n, d in self.devices.items() if not d.sketch} or self.devices


@dataclass(frozen=True)
class RegionPath:
    """The way between two regions."""

    links: tuple[str, ...]
    rtt_ms: float
    usd_per_gb: float
    kib_per_ms: float  #: of its narrowest link

    def ms(self, payload_kib: float) -> float:
        """Return how long a request is under way, there and back."""
        return self.rtt_ms + (payload_kib / self.kib_per_ms if self.links else 0.0)

    def usd(self, payload_kib: float) -> float:
        """Return what carrying a request costs."""
        return self.usd_per_gb * payload_kib / (1 << 20)


def read_fleet(path: Path, service: Service) -> Fleet:
    """Return what ``fleet.yaml`` says.

    Raises:
        ConfigError: there is none, or it contradicts itself or the service.
    """
    try:
        found = read_yaml(Fleet, path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(f"fleet={path}: there is no such file.") from None
    for name, device in found.devices.items():
        _check_device(found, name, device, str(path))
    found = replace(found, links=_named(found.links, found.regions | service.regions, path))
    for name, asked in service.classes.items():
        regions = {device.region for device in found.there.values()}
        there = sorted({*asked.regions} & regions)
        if not there:
            sketched = [n for n, d in found.devices.items() if d.region in asked.regions]
            but = f" but sketches ({', '.join(sketched)})" if sketched else ""
            raise ConfigError(
                f"{path}: no device{but} is in a region of class '{name}' "
                f"({', '.join(asked.regions)}); there are devices in {', '.join(sorted(regions))}."
            )
        if not {*there} & {*ways(found, asked.source)}:
            raise ConfigError(
                f"{path}: no link leads from {asked.source} to a device of class '{name}': give "
                f"links.{_link(asked.source, there[0])}; there are "
                f"{', '.join(found.links) or 'none'}."
            )
    for region in [*service.budgets.power_w, *found.carbon]:
        if region not in found.regions | service.regions:
            raise ConfigError(f"{path}: {unknown_name('region', region, found.regions)}")
    return found


def _check_device(fleet: Fleet, name: str, device: DeviceType, where: str) -> None:
    if device.price is None:
        near = [f"{n} has {d.price:g}" for n, d in fleet.devices.items() if d.price is not None]
        hint = f" ({near[0]})" if near else ""
        raise ConfigError(
            f"{where}: device '{name}' has no price: give devices.{name}.price, $ of a machine an "
            f"hour{hint}; 0 if it costs nothing."
        )
    if device.power_w < device.idle_w:
        raise ConfigError(
            f"{where}: device '{name}': busy_w {device.busy_w:g} is below idle_w {device.idle_w:g}."
        )
    seen, at = {name}, device
    while at.like is not None:
        if at.like not in fleet.devices:
            raise ConfigError(f"{where}: {unknown_name('device', at.like, fleet.devices)}")
        if at.like in seen:
            raise ConfigError(f"{where}: device '{name}' is like itself, by '{at.like}'.")
        if fleet.devices[at.like].sketch:
            raise ConfigError(f"{where}: device '{name}' is like '{at.like}', which is a sketch.")
        seen.add(at.like)
        at = fleet.devices[at.like]


def _named(links: Mapping[str, RegionLink], regions: set[str], path: Path) -> dict[str, RegionLink]:
    """Return links by names that tell their ends, whatever hyphens regions have."""
    found: dict[str, RegionLink] = {}
    for name, link in links.items():
        a, b = _ends_of(name, regions, path)
        if a == b:
            raise ConfigError(
                f"{path}: link '{name}' leads from {a} to itself: within a region no link is "
                "needed; name the other end, as edge-cloud."
            )
        if {_link(a, b), _link(b, a)} & {*found}:
            raise ConfigError(f"{path}: link '{_link(a, b)}' is there twice, in two directions.")
        found[_link(a, b)] = link
    return found


def _ends_of(name: str, regions: set[str], path: Path) -> tuple[str, str]:
    """Return the ends of a link; of several hyphens, the one between the most known regions."""
    parts = name.split(" - ") if " - " in name else name.split("-")
    cuts = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    ends = [(a.strip(), b.strip()) for a, b in cuts if a.strip() and b.strip()]
    if not ends or (" - " in name and len(ends) > 1):
        raise ConfigError(f"{path}: link '{name}' must be named REGION-REGION, as edge-cloud.")
    most = max(len({*pair} & regions) for pair in ends)
    best = [pair for pair in ends if len({*pair} & regions) == most]
    if len(best) > 1:
        raise ConfigError(
            f"{path}: link '{name}' may lead from {best[0][0]} to {best[0][1]} or from "
            f"{best[1][0]} to {best[1][1]}: put spaces around the hyphen between the regions, as "
            f"'{best[0][0]} - {best[0][1]}'."
        )
    return best[0]


def _link(a: str, b: str) -> str:
    """Return the name of a link between two regions."""
    return f"{a} - {b}" if "-" in a + b else f"{a}-{b}"


def ways(fleet: Fleet, source: str) -> Mapping[str, RegionPath]:
    """Return the fastest way from a region to each that can be reached (Dijkstra).

    Of those that are as fast it is the cheapest.
    """
    found: dict[str, RegionPath] = {}
    begin = RegionPath((), 0.0, 0.0, float("inf"))
    number = itertools.count()  # of ways that are as fast and as cheap, the first
    queue = [(0.0, 0.0, next(number), source, begin)]
    while queue:
        *_, region, way = heapq.heappop(queue)
        if region in found:
            continue
        found[region] = way
        for name, other, link in _from(fleet, region):
            if other not in found:
                width = float("inf") if link.mbit_s is None else link.mbit_s * 1e6 / 8 / 1024 / 1e3
                further = RegionPath(
                    (*way.links, name), way.rtt_ms + link.rtt_ms,
                    way.usd_per_gb + link.usd_per_gb, min(way.kib_per_ms, width),
                )  # fmt: skip
                key = further.rtt_ms, further.usd_per_gb, next(number)
                heapq.heappush(queue, (*key, other, further))
    return found


def _from(fleet: Fleet, region: str) -> Iterator[tuple[str, str, RegionLink]]:
    for name, link in fleet.links.items():
        ends = name.split(" - " if " - " in name else "-")
        if region in ends:
            yield name, ends[1 - ends.index(region)], link


def unreachable(service: Service, fleet: Fleet) -> Iterator[str]:
    """Yield sentences on regions that classes name, but that none of their requests can go to."""
    for name, asked in service.classes.items():
        for region in asked.regions:
            if region not in fleet.regions:
                yield f"Class '{name}' may go to {region}, where there is no device."
            elif region not in ways(fleet, asked.source):
                yield f"Class '{name}' may go to {region}, but no link leads there."


def payload_mbit(payload_kib: Kib) -> float:
    """Return a payload in megabits."""
    return payload_kib * 1024 * 8 / 1e6
