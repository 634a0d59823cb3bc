"""Plans held against servers of this machine: from a plan to a folder of results."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hwnas import machine
from hwnas.api.planning import check_ready
from hwnas.api.reporter import Reporter
from hwnas.config import ServeCheckConfig
from hwnas.errors import ConfigError, unknown
from hwnas.files import whole
from hwnas.results import Row, RunFolder, begun, default_path

if TYPE_CHECKING:
    from hwnas.deployment.checking import Profile
    from hwnas.deployment.pools import Deployed

_FORMAT = 1  #: of serve_check.json
_MOST_LATE = 0.1  # of what is measured: how late requests may leave
_SLOWER = 0.01  # that is told


@dataclass(frozen=True)
class Checked:
    """What a server did, against its simulation, by its folder."""

    path: Path
    rows: Sequence[Row]  #: by pool and load
    sentences: Sequence[str]
    files: Sequence[str]


def serve_check(config: ServeCheckConfig, arguments: Sequence[str], reporter: Reporter) -> Checked:
    """Serve pools of a plan on this machine, and hold their latencies against simulations.

    Args:
        config: What is checked.
        arguments: Of the command line, or what stands for them.
        reporter: Hears of the work.

    Raises:
        ConfigError: a pool is named that there is not, or that has no file.
        RunError: there is no such plan, or no server is installed.
        DeviceError: the server fails, or the machine's speed drifts.
    """
    check_ready("serve-check", config.run.dir)
    from hwnas.deployment import checking, servers

    pools = _pools(config)
    python = config.python or sys.executable
    found = servers.probed(python)
    name = servers.chosen(config.server, python, found)
    checker = checking.Checker(
        checking.Options(
            config.loads, config.seconds, config.repeats, config.drift, config.retries, config.seed
        ),
        reporter,
    )
    rows: list[Row] = []
    profiles: list[Row] = []
    ready = []
    for pool in pools:
        with servers.running(name, python, found, checking.served([pool])) as server:
            profile, loads = checker.checked(pool, server)
            profiles += _profile_rows(pool, profile)
            rows += loads
            ready.append(server.ready_s)
    version = servers.SERVERS[name].version(found)
    sentences = [
        f"{name} {version} of {python} was ready after {max(ready):.1f} s; latencies count from "
        "when requests were due.",
        _worst(rows),
        *_slower(rows),
        *_waits(name, pools),
        *_held_up(rows),
    ]
    facts = {
        "server": name, "version": version, "python": python, "ready_s": ready,
        "machine": machine.describe(), "sentinel_ms": checker.readings_ms, "drift": config.drift,
        "profile": profiles, "loads": rows,
    }  # fmt: skip
    tables = {"loads": rows, "profile": profiles}
    return _write(config, arguments, tables, facts, sentences)


def _pools(config: ServeCheckConfig) -> "list[Deployed]":
    """Return the pools that are checked: those named, or one of each that are served alike."""
    from hwnas.deployment.pools import deployed
    from hwnas.planning.plan import read_plan

    every, _ = deployed(read_plan(Path(config.plan)), {})
    able = {p.name: p for p in every if p.model is not None and not p.source.is_on_gpu}
    for name in config.pools:
        if name not in able:
            raise ConfigError(f"pool: {unknown('pool', name, able)}")
    if not able:
        raise ConfigError(
            f"plan={config.plan}: no pool of it has an ONNX file that runs on this machine's CPU: "
            "plan with fronts that are exports or runs for a CPU."
        )
    alike = {(p.kind.model, p.kind.batch, p.kind.wait_ms): p for p in reversed(able.values())}
    return [able[n] for n in config.pools] or [p for p in able.values() if p in alike.values()]


def _profile_rows(pool: "Deployed", profile: "Profile") -> list[Row]:
    rows = [
        {"pool": pool.name, "batch": n, **figure.columns("batch_ms")}
        for n, figure in profile.batch_ms.items()
    ]
    single = profile.overhead_ms.columns("overhead_ms") | profile.waking_ms.columns("waking_ms")
    rows[0] |= single | {"jitter": profile.jitter}
    return rows


def _worst(rows: Sequence[Row]) -> str:
    """Return in words how far simulations are off, and how many requests were not answered."""
    worst = max(rows, key=lambda row: abs(row["error_p99"]))
    failed = sum(row["failed"] for row in rows)
    lost = f"{failed} requests were not answered" if failed else "every request was answered"
    return (
        f"Simulated p99 is off by {worst['error_p99']:+.1%} at most (pool {worst['pool']}, load "
        f"{worst['load']:.0%}); {lost}."
    )


def _slower(rows: Sequence[Row]) -> list[str]:
    """Return in words, where it is so, how much slower a server is under load than in its profile.

    The server's own count says it, or else how long batches must take for p99 to be as measured.
    That has to be more than repeats differ by: near its capacity a few per cent are much of p99.
    """
    name = "batch_slowdown" if "batch_slowdown" in rows[0] else "slowdown"
    surely = [row for row in rows if (row.get(f"{name}_low") or 0.0) > 1.0 + _SLOWER]
    if not surely:
        return []
    worst = max(surely, key=lambda row: row[name])
    low, more, high = (worst[f"{name}{end}"] - 1 for end in ("_low", "", "_high"))
    where = f"{worst['pool']} at {worst['load']:.0%}"
    longer = f"{more:.0%} longer (95 % {low:.0%} to {high:.0%})"
    found = f"p99 of {where} is that of batches that take {longer}"
    if name == "batch_slowdown":
        found = (
            f"by its own count batches of {where} take {longer}, and simulated with that p99 is "
            f"off by {worst['error_explained_p99']:+.1%}"
        )
    return [
        f"Under load the server is slower than in its profile: {found}. Where a device of the plan "
        f"is as this machine, derate: {1 / (1 + more):.2f} in fleet.yaml counts with that."
    ]


def _waits(server: str, pools: "Sequence[Deployed]") -> list[str]:
    """Return in words, where it is so, that batches wait otherwise than they are simulated."""
    own = [pool.name for pool in pools if pool.kind.wait_ms > 0]
    if server != "ray" or not own:
        return []
    return [
        f"Batches of {', '.join(own)} wait, which is simulated as Triton does it; Ray Serve begins "
        "to wait when a replica is free, and loses that time: leave wait_ms at 0 for it."
    ]


def _held_up(rows: Sequence[Row]) -> list[str]:
    """Return in words, where it is so, that requests left so late that it is part of what is seen.

    The generator shares the cores with the server: of a very fast network it is what is measured.
    """
    late = [r for r in rows if r["sent_late_p99_ms"] > _MOST_LATE * r["measured_p99_ms"]]
    if not late:
        return []
    worst = max(late, key=lambda row: row["sent_late_p99_ms"] / row["measured_p99_ms"])
    return [
        f"At {len(late)} of {len(rows)} loads the generator, not the server, is part of what was "
        f"measured: requests left {worst['sent_late_p99_ms']:.2f} ms late (p99) of "
        f"{worst['measured_p99_ms']:.2f} ms (pool {worst['pool']}, load {worst['load']:.0%}). "
        "Check a larger network, lower loads, or leave it more cores."
    ]


def _write(
    config: ServeCheckConfig,
    arguments: Sequence[str],
    tables: dict[str, list[Row]],
    facts: Row,
    sentences: Sequence[str],
) -> Checked:
    path = Path(config.run.dir or default_path("serve-check"))
    with whole(path, beside=config.run.dir is None) as building:
        folder = RunFolder(building)
        for name, rows in tables.items():
            folder.write_csv(f"{name}.csv", rows)
        folder.write_json("serve_check.json", {"format": _FORMAT} | facts)
        folder.write_bytes("summary.txt", ("\n".join(sentences) + "\n").encode())
        manifest = begun("serve-check", arguments, {}, config) | {"status": "finished"}
        folder.write_json("manifest.json", manifest)
    names = [*(f"{name}.csv" for name in tables), "serve_check.json", "summary.txt"]
    return Checked(path, tables["loads"], sentences, names)
