"""Properties of this machine that affect latencies, and the resources it may use."""

import hashlib
import math
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
#: Files with the model of a board: of single-board computers, and of servers.
_BOARDS = (Path("/proc/device-tree/model"), Path("/sys/class/dmi/id/product_name"))
_MEMINFO = Path("/proc/meminfo")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_UNKNOWN = "unknown"


def describe(
    cpuinfo: Path = _CPUINFO, governor: Path = _GOVERNOR, boards: Sequence[Path] = _BOARDS
) -> dict[str, Any]:
    """Return the properties of this machine that affect latencies.

    Keys: ``cpu`` (model as text), ``flags`` (sorted list of CPU features), ``flags_digest`` (16
    hexadecimal digits), ``cores`` (number of logical CPUs), ``governor`` (of the clock frequency),
    ``system`` (operating system and version) and ``architecture`` (such as ``x86_64``). ``cpu`` and
    ``governor`` may be ``unknown``, and ``flags`` empty.
    """
    core = _first_core(cpuinfo)
    flags = sorted((core.get("flags") or core.get("Features") or "").split())
    names = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU part")
    cpu = [f"{name}={core[name]}" for name in names if name in core]
    if "model name" not in core:  # of ARM: boards with the same cores have different clocks
        models = [text for path in boards if (text := _text(path).strip("\0"))]
        cpu += [f"board={model}" for model in models[:1]]
    return {
        "cpu": " ".join(cpu) or _UNKNOWN,
        "flags": flags,
        "flags_digest": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
        "cores": os.cpu_count(),
        "governor": governor.read_text().strip() if governor.is_file() else _UNKNOWN,
        "system": platform.platform(),
        "architecture": platform.machine(),
    }


def memory_bytes(
    meminfo: Path = _MEMINFO, membership: Path = _MEMBERSHIP, groups: Path = _CGROUPS
) -> int:
    """Return the memory that this process may use in bytes: RAM, or a lower control group limit."""
    line = next(s for s in meminfo.read_text().splitlines() if s.startswith("MemTotal:"))
    limits = [int(line.split()[1]) * 1024]
    for folder in _folders("memory", membership, groups):
        for name in ("memory.max", "memory.limit_in_bytes"):
            if (text := _text(folder / name)).isdigit():
                limits.append(int(text))
    return min(limits)


def available_cores(membership: Path = _MEMBERSHIP, groups: Path = _CGROUPS) -> int:
    """Return the number of logical CPUs that this process may use.

    It is limited by CPU affinity, and by the quota of the control group, rounded up.
    """
    limits = [len(os.sched_getaffinity(0))]
    for folder in _folders("cpu", membership, groups):
        quota = _text(folder / "cpu.max").split()
        quota = quota or [_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        if len(quota) == 2 and all(text.isdigit() for text in quota) and int(quota[1]):
            limits.append(max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return min(limits)


def _folders(controller: str, membership: Path, groups: Path) -> Iterator[Path]:
    """Yield the control group folders of this process and their parents; all limits apply."""
    for entry in membership.read_text().splitlines() if membership.is_file() else []:
        _, controllers, name = entry.split(":", 2)
        # Version 2 has one tree for all controllers.
        if not controllers or controller in controllers.split(","):
            root = groups / controllers if controllers else groups
            path = root / name.lstrip("/")
            yield from (path, *path.parents[: len(path.relative_to(root).parts)])


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _first_core(cpuinfo: Path) -> dict[str, str]:
    if not cpuinfo.is_file():
        return {}
    fields: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields
