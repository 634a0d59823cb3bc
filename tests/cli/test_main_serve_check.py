"""The verb ``serve-check`` with a sleeping server, and with Triton if installed."""

import contextlib
import csv
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hwnas
from hwnas.__main__ import run
from hwnas.fleet.deployment import servers, validation
from hwnas.fleet.deployment.load import Array, LatencySamples, open_loop
from hwnas.fleet.deployment.pools import DeployedPool
from hwnas.fleet.deployment.servers import Command, InstalledPackages, Pools, Server
from hwnas.fleet.plan import to_yaml
from hwnas.hardware import timing
from hwnas.models.spaces import SearchSpace
from tests.conftest import last_of, target
from tests.fleet.deployment import examples

STAND_IN = Path(__file__).parents[1] / "fleet" / "deployment" / "stand_in.py"
POOL = "cpu-0a-float32-b4"
QUICK = ["seconds=2", "repeats=2", "loads=[0.3,0.7]", f"pool={POOL}"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory, tiny: SearchSpace) -> Path:
    folder = tmp_path_factory.mktemp("served")
    examples.write_run(folder / "cpu", target("cpu"), "0a", examples.model(tiny))
    examples.write_run(folder / "npu", target("npu"), "0b", None)
    (folder / "plan").mkdir()
    content = to_yaml(examples.plan(folder / "cpu", folder / "npu"))
    (folder / "plan" / "plan.yaml").write_bytes(content)
    return folder / "plan"


def _stand_in_server(*more: str) -> Server:
    def command(
        python: str, packages: InstalledPackages, pools: Pools, folder: Path, port: int
    ) -> Command:
        options = {pool.name: [pool.kind.batch, pool.kind.wait_ms / 1e3] for pool in pools}
        return [sys.executable, str(STAND_IN), str(port), json.dumps(options), *more], {}

    computed = servers.SERVERS["triton"].computed

    def request(pool: DeployedPool, image: bytes) -> bytes:
        return servers._post(f"/{pool.name}", "", image)

    return Server("nothing", command, request, lambda _: "1", computed)


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


@pytest.fixture
def sleeping_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "SERVERS", {"triton": _stand_in_server()})


def _listening_addresses() -> set[str]:
    """Return the addresses at which this process and its descendants listen (Linux)."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[path] = path / f"../{(path / 'stat').read_text().rpartition(')')[2].split()[1]}"
    family = {Path("/proc", str(os.getpid()))}
    while more := {p for p, parent in parents.items() if parent.resolve() in family} - family:
        family |= more
    inodes = set()
    for path in family:
        for file in path.glob("fd/*"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(file).removeprefix("socket:[").removesuffix("]"))
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    listening, local, inode = "0A", 1, 9
    return {
        row[local].partition(":")[0] for row in rows if row[3] == listening and row[inode] in inodes
    }


_LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1, ::1 (little-endian)


@contextlib.contextmanager
def _only_loopback() -> Iterator[None]:
    """Check that all listening sockets use loopback addresses."""
    addresses, stop = set(_listening_addresses()), threading.Event()
    before = set(addresses)

    def watch() -> None:
        while not stop.wait(0.02):
            addresses.update(_listening_addresses())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    assert addresses - before <= _LOOPBACK
    assert addresses & _LOOPBACK


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_listening_sockets_are_detected(address: str) -> None:
    listen = f"s = socket.create_server(('{address}', 0))"
    program = f"import socket, sys; {listen}; print(flush=True); sys.stdin.read()"
    expectation = (
        contextlib.nullcontext() if address == "127.0.0.1" else pytest.raises(AssertionError)
    )
    with expectation, _only_loopback():
        command = [sys.executable, "-S", "-c", program]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as server:
            assert server.stdout is not None
            server.stdout.readline()
            time.sleep(0.2)
            server.communicate()


@pytest.mark.slow
@pytest.mark.usefixtures("sleeping_server")
def test_serve_check_listens_only_on_loopback(plan: Path) -> None:
    with _only_loopback():
        options = ["seconds=1", "loads=[0.3]", "drift=0.99", "run.dir=a"]
        assert run(["serve-check", f"plan={plan}", *last_of(*QUICK, *options)]) == 0


@pytest.mark.alone
@pytest.mark.usefixtures("sleeping_server")
@pytest.mark.slow
def test_simulation_matches_profiled_server(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve-check", f"plan={plan}", *QUICK, "drift=0.99", "run.dir=a"]) == 0
    output = capsys.readouterr().out
    assert "Simulated / measured" in output
    assert "every request was answered" in output
    assert "the generator, not the server" not in " ".join(output.split())
    with Path("a/loads.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["load"]) for row in rows] == [0.3, 0.7]
    for row in rows:
        assert row["measured_p99_ms_source"] == "measured"
        low, value, high = (float(row[f"measured_p50_ms{end}"]) for end in ("_low", "", "_high"))
        assert low <= value <= high
        assert abs(float(row["error_p50"])) < 0.5
        assert float(row["batch_slowdown"]) == pytest.approx(
            1, rel=0.3
        )  # it sleeps for the profiled time
        assert row["batch_slowdown_source"] == "measured"
        assert float(row["explained_p99_ms"]) > 25
    with Path("a/profile.csv").open() as file:
        profile = {int(row["batch"]): float(row["batch_ms"]) for row in csv.DictReader(file)}
    assert [*profile] == [1, 2, 4]
    assert 25 <= profile[1] < profile[4]  # 20 + 5 ms plus overhead
    content = json.loads(Path("a/serve_check.json").read_text())
    assert content["format"] == 1
    assert len(content["sentinel_ms"]) > 8
    assert content["loads"][0]["requests"] == int(rows[0]["requests"])


@pytest.mark.slow
@pytest.mark.usefixtures("sleeping_server")
def test_slow_load_generator_is_reported(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def delayed(port: int, request: bytes, due_s: Array) -> LatencySamples:
        samples = open_loop(port, request, due_s)
        return replace(samples, sent_s=samples.due_s + 0.03)

    monkeypatch.setattr(validation, "open_loop", delayed)
    monkeypatch.setattr(timing.Sentinel, "disturbed", lambda _: False)  # independent of other load
    options = ["seconds=1", "loads=[0.3]", "run.dir=a"]
    assert run(["serve-check", f"plan={plan}", *last_of(*QUICK, *options)]) == 0
    message = "At 1 of 1 loads the generator, not the server, is part of what was measured"
    for text in (capsys.readouterr().out, Path("a/summary.txt").read_text()):
        assert message in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.usefixtures("sleeping_server")
def test_drifting_machine_is_reported_without_output(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = last_of(*QUICK, "seconds=0.5", "drift=1e-9", "retries=0", "run.dir=a")
    assert run(["serve-check", f"plan={plan}", *options]) == 2
    error = capsys.readouterr().err.strip()
    assert "slower than at its best" in error
    assert "\n" not in error
    assert not Path("a").exists()


@pytest.mark.slow
def test_failing_server_is_reported_in_one_line(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(servers, "SERVERS", {"triton": _stand_in_server("refuse")})
    monkeypatch.setattr(servers, "READY_S", 1.0)
    assert run(["serve-check", f"plan={plan}", *QUICK, "run.dir=a"]) == 2
    assert "The server did not respond in 1 s" in capsys.readouterr().err


@pytest.mark.slow
def test_latency_starts_at_due_time(plan: Path, tiny: SearchSpace) -> None:
    from hwnas.fleet.deployment.pools import deployed_pools
    from hwnas.fleet.plan import read_plan

    (pool,) = [p for p in deployed_pools(read_plan(plan), {})[0] if p.name == POOL]
    servers_before = servers.SERVERS["triton"]
    servers.SERVERS["triton"] = _stand_in_server()
    try:
        packages = servers.probe(sys.executable)
        with servers.run_server("triton", sys.executable, packages, [pool]) as server:
            burst = open_loop(server.port, server.request(pool), np.zeros(40))
    finally:
        servers.SERVERS["triton"] = servers_before
    assert burst.failed == 0
    # Ten batches of four take at least 40 ms each: the last waits for all of them.
    assert burst.latency_ms.max() >= 9 * 40
    assert np.sort(burst.latency_ms)[20] >= 4 * 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "serve-check needs a plan"),
        (["plan=no"], "has no plan.yaml"),
        (["plan=PLAN", "pool=x"], "Unknown pool 'x'"),
        (["plan=PLAN", "server=tritn"], "Did you mean 'triton'"),
        (["plan=PLAN", "python=/no/python"], "is not a working Python interpreter"),
        (["plan=PLAN", "python=/bin/true"], "is not a working Python interpreter"),
        (["plan=PLAN", "loads=[]"], "loads=[] is empty"),
        (["plan=PLAN", "loads=[1]"], "loads must be numbers, each in (0, 0.99]"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    plan: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [a.replace("PLAN", str(plan)) for a in arguments]
    assert run(["serve-check", *options]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not Path("runs").exists()


def test_missing_server_names_install_command(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = {"triton": "", "site": "", "lib": "", "python": "", "path": []}
    monkeypatch.setattr(servers, "probe", lambda _: empty)
    assert run(["serve-check", f"plan={plan}"]) == 2
    error = capsys.readouterr().err
    assert "-m pip install --no-deps nvidia-pytriton" in error
    assert run(["serve-check", f"plan={plan}", "server=ray"]) == 2
    assert "Ray opens ports without authentication" in capsys.readouterr().err


def test_triton_serves_pool(plan: Path) -> None:
    try:
        importlib.metadata.version("nvidia-pytriton")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("pip install --no-deps nvidia-pytriton")
    with _only_loopback():
        checked = hwnas.serve_check(
            plan, server="triton", pool=POOL, seconds=1, repeats=2, loads=[0.3], drift=0.99,
            run__dir="a",
        )  # fmt: skip
    (row,) = checked.table().to_pylist()
    assert row["failed"] == 0
