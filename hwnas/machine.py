"""What this machine is, as far as it decides latencies."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_MEMINFO = Path("/proc/meminfo")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
_V1, _V2 = "memory.limit_in_bytes", "memory.max"
_UNKNOWN = "unknown"


def describe(cpuinfo: Path = _CPUINFO, governor: Path = _GOVERNOR) -> dict[str, Any]:
    """Return CPU, its features, cores, clock governor and system."""
    facts = _first_core(cpuinfo)
    flags = sorted((facts.get("flags") or facts.get("Features") or "").split())
    names = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU part")
    return {
        "cpu": " ".join(f"{name}={facts[name]}" for name in names if name in facts) or _UNKNOWN,
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
    """Return the memory that this process may use: the machine's, or its control group's limit."""
    line = next(s for s in meminfo.read_text().splitlines() if s.startswith("MemTotal:"))
    limits = [int(line.split()[1]) * 1024]
    for entry in membership.read_text().splitlines() if membership.is_file() else []:
        _, controllers, name = entry.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        # Version 2 has one tree for all controllers. Limits of groups above hold as well.
        root, file = (groups / "memory", _V1) if controllers else (groups, _V2)
        path = root / name.lstrip("/")
        for folder in (path, *path.parents[: len(path.relative_to(root).parts)]):
            limit = folder / file
            if limit.is_file() and (text := limit.read_text().strip()).isdigit():
                limits.append(int(text))
    return min(limits)


def _first_core(cpuinfo: Path) -> dict[str, str]:
    if not cpuinfo.is_file():
        return {}
    found: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
