"""``fleet.yaml``: devices with prices and power, links between regions, carbon intensity."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.schema import NumberBounds, Positive
from hwnas.core.typed_files import read_yaml
from hwnas.fleet.service_file import Kib, Name, Service

Buy = Literal["bought", "reserved", "on_demand", "spot"]
#: A small ``fleet.yaml``, for messages.
EXAMPLE = "{devices: {cpu: {region: site, buy: bought, quota: 4, price: 0.1}}}"
Watt = Annotated[float, NumberBounds(0, 1e6)]
_HourlyCarbon = Annotated[list[Annotated[float, NumberBounds(0, 10)]], NumberBounds(1)]
#: kg of CO2 per kWh: a constant, hourly values, or a CSV file with a column ``kg_per_kwh``.
Carbon = Annotated[float, NumberBounds(0, 10)] | _HourlyCarbon | str


@dataclass(frozen=True)
class DeviceType:
    """A type of machine of ``fleet.yaml``."""

    region: Name  #: name of its region
    #: ``bought`` and ``reserved`` are paid for all hours, ``on_demand`` and ``spot`` for used ones;
    #: ``spot`` machines may all be down at once
    buy: Buy
    quota: Annotated[int, NumberBounds(1, 100_000)]  #: maximum number of machines
    price: Annotated[float, NumberBounds(0, 1e6)] | None = None  #: $ per machine-hour; required
    target: Name | None = None  #: target of the fronts' latencies; default: the device's name
    #: device whose latencies, divided by ``speed``, apply to models without timings on this one
    like: Name | None = None
    speed: Annotated[float, NumberBounds(1e-6, 1e6)] = 1.0  #: speed relative to ``like``
    sketch: bool = False  #: True: does not exist yet; the plan evaluates buying it
    slots: Annotated[int, NumberBounds(1, 1024)] = 1  #: maximum replicas per machine
    memory_mib: Positive | None = None  #: memory of a machine; default: unlimited
    idle_w: Watt = 0.0  #: power in W of an idle machine
    busy_w: Watt | None = None  #: power in W of a busy machine; default: ``idle_w``
    #: relative speed under thermal throttling: 0.9 if it is 10 % slower
    derate: Annotated[float, NumberBounds(1e-3, 1)] = 1.0
    #: seconds from the order of a replica to its first response; a rented machine pays for them in
    #: each hour, as if it started in each
    start_s: Annotated[float, NumberBounds(0, 3600)] = 0.0
    #: execution provider of servers; default: that of the timings
    provider: Literal["cpu", "cuda", "tensorrt", "openvino"] | None = None
    #: threads of an inference on servers; default: those of the timings
    threads: Annotated[int, NumberBounds(1, 1024)] | None = None

    @property
    def power_w(self) -> float:
        """Power of a busy machine in W; without ``busy_w`` that of an idle machine."""
        return self.idle_w if self.busy_w is None else self.busy_w

    @property
    def is_hourly(self) -> bool:
        """True if only the hours in which a machine runs are paid."""
        return self.buy in ("on_demand", "spot")


@dataclass(frozen=True)
class RegionLink:
    """A network link between two regions."""

    rtt_ms: Annotated[float, NumberBounds(0, 1e6)]  #: round-trip time in ms
    mbit_s: Positive | None = None  #: capacity in Mbit/s; default: unlimited
    usd_per_gb: Annotated[float, NumberBounds(0, 1000)] = 0.0  #: price in $ per 2**30 bytes


@dataclass(frozen=True)
class Fleet:
    """Content of ``fleet.yaml``: types of machines, network links and carbon intensities."""

    devices: Annotated[dict[Name, DeviceType], NumberBounds(1, 1000)]  #: kinds of machines, by name
    #: links by the names of both regions: ``edge-cloud``; if these have hyphens: ``edge - eu-west``
    links: dict[str, RegionLink] = field(default_factory=dict)
    #: carbon intensity by region in kg of CO2 per kWh: a constant, a value per hour, or a CSV file
    carbon: dict[str, Carbon] = field(default_factory=dict)

    @property
    def regions(self) -> set[str]:
        """Names of the regions that have a device."""
        return {device.region for device in self.devices.values()}

    @property
    def existing(self) -> dict[str, DeviceType]:
        """Devices without ``sketch``, by name; all devices if every one is a sketch."""
        return {n: d for n, d in self.devices.items() if not d.sketch} or self.devices


@dataclass(frozen=True)
class RegionPath:
    """A network path between two regions, over one or more links."""

    links: tuple[str, ...]  #: names of the links; empty: within one region
    rtt_ms: float  #: round-trip time in ms, sum over the links
    usd_per_gb: float  #: price in $ per 2**30 bytes, sum over the links
    kib_per_ms: float  #: capacity of the narrowest link in KiB/ms; infinite if unlimited

    def ms(self, payload_kib: float) -> float:
        """Return the round-trip time of a request in ms, with the transfer of its payload."""
        return self.rtt_ms + (payload_kib / self.kib_per_ms if self.links else 0.0)

    def usd(self, payload_kib: float) -> float:
        """Return the transfer cost in $ of a request with a payload in KiB."""
        return self.usd_per_gb * payload_kib / (1 << 20)


def read_fleet(path: Path, service: Service) -> Fleet:
    """Return the checked content of a ``fleet.yaml``, with uniform names of links.

    Args:
        path: Path of the file.
        service: The service whose classes must reach devices.

    Raises:
        ConfigError: the file is missing or invalid, names something unknown, or no device of it can
            be reached by some class of the service.
    """
    try:
        result = read_yaml(Fleet, path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(
            f"fleet={path}: file not found. Correct the path, or write one, as {EXAMPLE}"
        ) from None
    for name, device in result.devices.items():
        _check_device(result, name, device, str(path))
    result = replace(
        result, links=_normalise_links(result.links, result.regions | service.regions, path)
    )
    for name, request_class in service.classes.items():
        regions = {device.region for device in result.existing.values()}
        common = sorted({*request_class.regions} & regions)
        if not common:
            sketched = [n for n, d in result.devices.items() if d.region in request_class.regions]
            but = f" except sketches ({', '.join(sketched)})" if sketched else ""
            raise ConfigError(
                f"{path}: no device{but} is in a region of class '{name}' "
                f"({', '.join(request_class.regions)}): add a device there, or add a region with "
                f"devices ({', '.join(sorted(regions))}) to classes.{name}.regions in the "
                "service file."
            )
        if not {*common} & {*network_paths(result, request_class.source)}:
            raise ConfigError(
                f"{path}: no link leads from {request_class.source} to a device of class '{name}': "
                f"add links.{_link_name(request_class.source, common[0])} with rtt_ms; links so "
                f"far: {', '.join(result.links) or 'none'}."
            )
    known = result.regions | service.regions
    named: Mapping[str, Iterable[str]] = {
        "Service file: budgets.power_w": service.budgets.power_w,
        f"{path}: carbon": result.carbon,
    }
    for place, regions_of in named.items():
        for region in sorted({*regions_of} - known):
            raise ConfigError(f"{place}: {unknown_name('region', region, sorted(known))}")
    return result


def _check_device(fleet: Fleet, name: str, device: DeviceType, place: str) -> None:
    if device.price is None:
        near = [f"{n} has {d.price:g}" for n, d in fleet.devices.items() if d.price is not None]
        hint = f" ({near[0]})" if near else ""
        raise ConfigError(
            f"{place}: device '{name}' has no price: give devices.{name}.price in $ per "
            f"machine-hour{hint}; 0 if it costs nothing."
        )
    if device.speed != 1.0 and device.like is None:
        raise ConfigError(
            f"{place}: device '{name}' has speed={device.speed:g} but no like: name the device "
            "whose latencies are divided by it, or use derate."
        )
    if device.power_w < device.idle_w:
        raise ConfigError(
            f"{place}: device '{name}': busy_w={device.busy_w:g} is below idle_w="
            f"{device.idle_w:g}: give the power in W of a busy machine, which is not lower."
        )
    visited, node = {name}, device
    while node.like is not None:
        if node.like not in fleet.devices:
            raise ConfigError(
                f"{place}: like of device '{name}': "
                f"{unknown_name('device', node.like, fleet.devices)}"
            )
        if node.like in visited:
            raise ConfigError(
                f"{place}: like of device '{name}' leads back to '{node.like}': name a device with "
                "timings of its own."
            )
        if fleet.devices[node.like].sketch:
            raise ConfigError(
                f"{place}: device '{name}' has like: {node.like}, which is a sketch: name a device "
                "that exists."
            )
        visited.add(node.like)
        node = fleet.devices[node.like]


def _normalise_links(
    links: Mapping[str, RegionLink], regions: set[str], path: Path
) -> dict[str, RegionLink]:
    """Return links by unambiguous names, whatever hyphens regions have."""
    result: dict[str, RegionLink] = {}
    for name, link in links.items():
        a, b = _ends_of(name, regions, path)
        if a == b:
            raise ConfigError(
                f"{path}: link '{name}' leads from {a} to itself: name two regions, as edge-cloud."
            )
        if {_link_name(a, b), _link_name(b, a)} & {*result}:
            raise ConfigError(
                f"{path}: link '{_link_name(a, b)}' is given twice: links hold in both directions, "
                "remove one."
            )
        result[_link_name(a, b)] = link
    return result


def _ends_of(name: str, regions: set[str], path: Path) -> tuple[str, str]:
    """Return the ends of a link; of several hyphens, the one between the most known regions."""
    parts = name.split(" - ") if " - " in name else name.split("-")
    cuts = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    ends = [(a.strip(), b.strip()) for a, b in cuts if a.strip() and b.strip()]
    if not ends or (" - " in name and len(ends) > 1):
        raise ConfigError(f"{path}: link '{name}' must be named REGION-REGION, as edge-cloud.")
    n_known = max(len({*pair} & regions) for pair in ends)
    best = [pair for pair in ends if len({*pair} & regions) == n_known]
    if len(best) > 1:
        raise ConfigError(
            f"{path}: link '{name}' is ambiguous: {best[0][0]} to {best[0][1]} or "
            f"{best[1][0]} to {best[1][1]}: put spaces around the hyphen between the regions, as "
            f"'{best[0][0]} - {best[0][1]}'."
        )
    return best[0]


def _link_name(a: str, b: str) -> str:
    """Return the name of a link between two regions."""
    return f"{a} - {b}" if "-" in a + b else f"{a}-{b}"


def network_paths(fleet: Fleet, source: str) -> Mapping[str, RegionPath]:
    """Return the path from a region to each reachable region, by region (Dijkstra).

    The path has the lowest round-trip time; of equal ones, the lowest price.
    """
    result: dict[str, RegionPath] = {}
    begin = RegionPath((), 0.0, 0.0, float("inf"))
    number = itertools.count()  # of equal paths, the first
    queue = [(0.0, 0.0, next(number), source, begin)]
    while queue:
        *_, region, way = heapq.heappop(queue)
        if region in result:
            continue
        result[region] = way
        for name, other, link in _links_of(fleet, region):
            if other not in result:
                width = float("inf") if link.mbit_s is None else link.mbit_s * 1e6 / 8 / 1024 / 1e3
                further = RegionPath(
                    (*way.links, name), way.rtt_ms + link.rtt_ms,
                    way.usd_per_gb + link.usd_per_gb, min(way.kib_per_ms, width),
                )  # fmt: skip
                key = further.rtt_ms, further.usd_per_gb, next(number)
                heapq.heappush(queue, (*key, other, further))
    return result


def _links_of(fleet: Fleet, region: str) -> Iterator[tuple[str, str, RegionLink]]:
    for name, link in fleet.links.items():
        ends = name.split(" - " if " - " in name else "-")
        if region in ends:
            yield name, ends[1 - ends.index(region)], link


def unused_entries(service: Service, fleet: Fleet) -> Iterator[str]:
    """Yield messages on entries of both files that have no effect.

    These are regions of a class that have no device or cannot be reached by links, devices in a
    region that no class allows, and accuracies for a failure that the plan need not survive.
    """
    allowed = {region for c in service.classes.values() for region in c.regions}
    for name, device in fleet.devices.items():
        if device.region not in allowed:
            yield f"Device '{name}' is in {device.region}, which no class allows: it is not used."
    for name, request_class in service.classes.items():
        if request_class.degraded_accuracy is not None and not service.survive.all_of:
            needed = "survive: {all_of: [spot]}"
            yield f"degraded_accuracy of class '{name}' counts only with {needed}."
        for region in request_class.regions:
            if region not in fleet.regions:
                yield f"Class '{name}' allows {region}, but no device is there."
            elif region not in network_paths(fleet, request_class.source):
                yield f"Class '{name}' allows {region}, but no link leads there."


def payload_mbit(payload_kib: Kib) -> float:
    """Return the megabits (1e6 bits) of a payload in KiB."""
    return payload_kib * 1024 * 8 / 1e6
