"""What this machine is, as far as it decides latencies."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

_CPUINFO = Path("/proc/cpuinfo")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
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


def _first_core(cpuinfo: Path) -> dict[str, str]:
    if not cpuinfo.is_file():
        return {}
    found: dict[str, str] = {}
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found
