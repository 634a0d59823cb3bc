import shlex
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hwnas.__main__ import run
from hwnas.core import package
from hwnas.core.errors import RunError
from hwnas.core.progress import NullProgress
from hwnas.hardware import suggested_commands
from hwnas.hardware.latency_tables.latency_table import (
    TRANSFERRED,
    LatencyTable,
    OperatorEntry,
    TableConfig,
    load_table,
    table_name,
)
from hwnas.hardware.profiling.table_transfer import SourceTable
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TuningConfig
from hwnas.models.graph import Graph, Node, OpSpec
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DatasetConfig
from hwnas.training.parallel import _lock_checkpoint
from hwnas.workflows import device as device_module
from hwnas.workflows import profile_layers
from hwnas.workflows.config import ProfileConfig, SearchConfig
from hwnas.workflows.config.compose import compose
from hwnas.workflows.device import MeasuredTarget
from hwnas.workflows.networks import profile_command
from tests.conftest import target
from tests.hardware.profiling.fakes import FakeWorker, timing

OPS = [OpSpec("conv2d+bn", (8, 4, 4), (n, 4, 4), dtype="float32") for n in (8, 16, 24)]
MEASURED, ESTIMATED, NEW = OPS


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    fake_worker = FakeWorker()

    class LocalPool:
        def __init__(self, *arguments: Any):
            pass

        def do(self, task: Callable[[Any], Any]) -> Any:
            return task(fake_worker)

        def close(self) -> None:
            pass

    monkeypatch.setattr(device_module, "DevicePool", LocalPool)
    return fake_worker


@pytest.fixture
def table(tmp_path: Path) -> LatencyTable:
    entries = {
        MEASURED: OperatorEntry("kept", timing(1.0)),
        ESTIMATED: OperatorEntry(TRANSFERRED, timing(9.0)),
    }
    latency_table = LatencyTable(tmp_path / "t", entries)
    latency_table.save()
    return latency_table


def _search(cost: str) -> SearchConfig:
    data, tuning = DatasetConfig("digits"), TuningConfig(n_plans=4)
    return SearchConfig(target=target("cpu"), dataset=data, cost=cost, tuning=tuning)


def _profile() -> ProfileConfig:
    data, tuning = DatasetConfig("digits"), TuningConfig(n_plans=4)
    return ProfileConfig(target=target("cpu"), dataset=data, tuning=tuning)


@pytest.mark.parametrize("config", [_search("measured"), _search("roofline"), _profile()])
def test_tuned_operators_are_stored_in_table(
    table: LatencyTable, worker: FakeWorker, config: SearchConfig | ProfileConfig
) -> None:
    device = MeasuredTarget(config, table)
    assert device.plan(MEASURED) == "kept"
    for op in (ESTIMATED, NEW, ESTIMATED, NEW):
        assert device.plan(op) == f"plan of {op.out_shape[0]} out of 4"
    assert worker.tuned == worker.timed == [ESTIMATED, NEW]
    assert load_table(table.path).missing(OPS) == []
    assert table.entries[ESTIMATED].timing.median_ms != 9.0
    assert [*device.digests] == ["device"]


def test_scaled_latency_without_plan_stays_in_table(
    table: LatencyTable, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = MeasuredTarget(_profile(), table)
    monkeypatch.setattr(MeasuredTarget, "plan", lambda device, op: "")
    monkeypatch.setattr(worker, "time_operators", lambda work: [timing(5.0) for _ in work])
    scaled = table.entries[ESTIMATED]
    assert device.time(ESTIMATED).median_ms != scaled.timing.median_ms, "of the operator alone"
    assert table.entries[ESTIMATED] == scaled
    assert device.time(NEW) == table.entries[NEW].timing


def test_network_batch_starts_own_worker_pool(
    table: LatencyTable, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[Any] = []

    class Pool:
        def __init__(self, target: Target, *arguments: Any):
            self.target, self.is_closed = target, False
            pools.append(self)

        def close(self) -> None:
            self.is_closed = True

    config = _search("measured")
    compiled = MeasuredTarget(config, table)
    monkeypatch.setattr(device_module, "DevicePool", Pool)
    with compiled.running(
        replace(config.target, batch=8)
    ) as same:  # compiled files contain their batch
        assert (same, pools) == (compiled, [])
    compiled.close()
    device = MeasuredTarget(
        replace(config, target=replace(config.target, runtime="onnxruntime")), table
    )
    pools.clear()
    with device.running(replace(device.config.target, dtype="int8")) as same:
        assert (same, pools) == (device, [])
    batch_target = replace(device.config.target, batch=8)
    with device.running(batch_target) as running:
        assert running.worker is not device.worker
        assert [(pool.target.batch, pool.is_closed) for pool in pools] == [(8, False)]
        assert running.plan(MEASURED) == "kept"
    assert pools[0].is_closed


def test_table_is_locked_by_one_process(table: LatencyTable, worker: FakeWorker) -> None:
    device = MeasuredTarget(_search("measured"), table)
    with pytest.raises(RunError, match="Another process is working in"):
        MeasuredTarget(_profile(), load_table(table.path))
    device.close()
    MeasuredTarget(_profile(), load_table(table.path)).close()


def test_search_does_not_modify_its_table(table: LatencyTable, worker: FakeWorker) -> None:
    digest = table.digest([], OPS)
    device = MeasuredTarget(_search("table"), table, digest)
    before, files = device.digests, {p: p.read_bytes() for p in table.path.iterdir()}
    assert device.plan(MEASURED) == "kept"
    for op in (ESTIMATED, NEW, ESTIMATED):
        assert device.plan(op) == f"plan of {op.out_shape[0]} out of 4"
    assert worker.tuned == [ESTIMATED, NEW]
    assert device.digests == before == {"latency_table": digest}
    assert {p: p.read_bytes() for p in table.path.iterdir()} == files


def test_layers_use_plans_of_source_table(
    table: LatencyTable, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {op: f"plan of {op.out_shape[0]} out of 4" for op in (ESTIMATED, NEW)}
    table.entries[ESTIMATED] = OperatorEntry(f"{TRANSFERRED} {plans[ESTIMATED]}", timing(9.0))
    monkeypatch.setattr(profile_layers, "writable_table", lambda *arguments: table)
    monkeypatch.setattr(
        device_module, "source", lambda config: SourceTable(table, {NEW: plans[NEW]})
    )
    net = Graph.of(Node(f"n{i}", op, ("input",)) for i, op in enumerate([*OPS, NEW]))
    layers, source = profile_layers._layers(net, _profile())
    assert source == "measured, each operator alone"
    assert (worker.tuned, worker.timed) == ([], [ESTIMATED, NEW])
    expected = [1.0, *(worker.device.operator(op) for op in (ESTIMATED, NEW, NEW))]
    assert [layer.latency_ms for layer in layers] == expected
    assert load_table(table.path).plans() == {MEASURED: "kept", **plans}


def test_layers_without_roofline_dtype_have_no_bound() -> None:
    config = _profile()
    assert config.target.roofline is not None
    net = [Node("n", replace(OPS[0], dtype=dtype), ("input",)) for dtype in ("int8", "bfloat16")]
    layers = profile_layers._measured_latencies(Graph.of(net), [1.0, 1.0], config)
    assert [bool(layer.bound) for layer in layers] == [True, False]


def test_suggested_command_contains_config_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suggested_commands, "_CONFIG_FOLDERS", {})
    text = (package.ROOT / "conf" / "target" / "cpu.yaml").read_text()
    for path in ("mine/target/board.yaml", "more/dataset/photos.yaml"):
        Path(path).parent.mkdir(parents=True)
    Path("mine/target/board.yaml").write_text(text.replace("name: cpu", "name: board"))
    Path("more/dataset/photos.yaml").write_text("dataset: {name: digits}\n")
    folders = ["--config-dir", "mine", "--config-dir=more"]
    compose("profile", [*folders, "+target=cpu"])
    assert "--config-dir" not in profile_command(_profile())
    config = compose("profile", ["--config-dir", "mine", "+target=board"])
    arguments = shlex.split(profile_command(config))
    assert arguments[:5] == ["hwnas", "profile", "--config-dir", "mine", "+target=board"]
    assert compose("profile", arguments[2:]).target == config.target
    assert not [word for word in arguments if word.startswith("target.")]
    Path("mine/target/small.yaml").write_text(
        "defaults: [cpu]\nname: small\ntvm: {mcpu: generic}\n"
    )
    small = compose("profile", ["--config-dir", "mine", "+target=small", "target.threads=2"])
    options = [w for w in shlex.split(profile_command(small)) if w.startswith("target.")]
    assert options == ["target.threads=2"]
    photos = replace(_profile(), dataset=DatasetConfig("photos"))
    assert shlex.split(profile_command(photos))[2:4] == ["--config-dir", "more"]
    assert suggested_commands.inherited_models(config.target) == "roofline and power of cpu"
    assert suggested_commands.inherited_models(_profile().target) == ""


def test_profile_command_contains_table_options() -> None:
    plain = _search("table")
    assert profile_command(plain) == ("hwnas profile +target=cpu search_space=cpu_small")
    changed = replace(
        plain,
        table=TableConfig("my tables"),
        dataset=DatasetConfig("images", path="a folder"),
        rpc=Remote("host:9190", "rpi4"),
        search_space="my/own.yaml",
    )
    arguments = shlex.split(profile_command(changed))
    assert arguments[:2] == ["hwnas", "profile"]
    for word in (
        "table.dir=my tables",
        "dataset=images",
        "dataset.path=a folder",
        "rpc.tracker=host:9190",
        "rpc.key=rpi4",
        "search_space=my/own.yaml",
    ):
        assert word in arguments


def test_profile_command_reproduces_target_and_data() -> None:
    options = [
        "+target=cuda", "search_space=tiny", "dataset=images", "task=regression",
        "dataset.hub_id=a/b", "dataset.label_column=angle", "target.dtype=int8",
        "target.batches=[1,8]", "target.meter=nvml", "target.onnxruntime.provider=tensorrt",
        "target.onnxruntime.options.device_id='1'",
    ]  # fmt: skip
    config: ProfileConfig = compose("profile", options)
    arguments = shlex.split(profile_command(config))
    assert arguments[:3] == ["hwnas", "profile", "+target=cuda"]
    reproduced: ProfileConfig = compose("profile", arguments[2:])
    assert (reproduced.target, reproduced.dataset) == (config.target, config.dataset)
    lab = replace(target("cpu"), name="lab")  # without a known file
    lab_command = profile_command(replace(config, target=lab))
    assert "+target=lab target.runtime=tvm target.dtype=float32 target.threads=1" in lab_command
    assert "target.tvm.mcpu=host" in lab_command
    assert "meter" not in lab_command


def test_supernet_lock_waits_for_other_process(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "key" / "supernet.safetensors")
    other = _lock_checkpoint(checkpoint, 10, NullProgress())
    released = threading.Event()

    def release() -> None:
        released.set()
        other.close()

    threading.Timer(1.5, release).start()
    lock = _lock_checkpoint(checkpoint, 10, NullProgress())
    assert released.is_set()
    lock.close()


def _no_data(*_: object) -> None:
    raise AssertionError("data were loaded")


@pytest.mark.parametrize("verb", ["search", "profile"])
def test_missing_compiler_is_reported_before_loading_data(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hwnas.training.supernet.load_data", _no_data)
    assert run([verb, "+target=cpu", "target.tvm.cc=/nope/gcc"]) == 2
    assert "'/nope/gcc' is not installed (target.tvm.cc)" in capsys.readouterr().err


def test_table_without_provenance_is_reported_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hwnas.training.supernet.load_data", _no_data)
    table = tmp_path / "cpu" / table_name(target("cpu"))
    table.mkdir(parents=True)
    (table / "operators.csv").write_text("")
    assert run(["search", "+target=cpu", f"table.dir={tmp_path}"]) == 2
    assert f"Latency table {table} has no provenance.json" in capsys.readouterr().err
