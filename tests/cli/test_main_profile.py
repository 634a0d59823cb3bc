"""Latency tables on the command line: measured on this machine, then used by searches."""

import contextlib
import csv
import hashlib
import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

from hwnas.__main__ import run
from hwnas.core import machine
from hwnas.core.progress import NullProgress
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.hardware.latency_tables.latency_table import (
    PREDICTED,
    TRANSFERRED,
    LatencyTable,
    OperatorEntry,
    load_table,
)
from hwnas.hardware.profiling import throughput
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import TimingConfig
from hwnas.models.graph import OpSpec, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.data import DatasetConfig
from hwnas.workflows import components, profile, profile_throughput
from hwnas.workflows.config import SearchConfig
from tests.conftest import SHARED_WEIGHTS, images_of, target
from tests.hardware.profiling.fakes import Device, subject, timing

#: 84 networks with ten operators.
SPACE = """\
family: mbconv
choices:
  stages.0.depth: [1, 2, 3]
  stages.0.blocks.0.kernel: [3, 5]
  stages.0.blocks.0.expansion: [1, 2]
  stages.0.blocks.1.kernel: [3, 5]
  stages.0.blocks.1.expansion: [1, 2]
  stages.0.blocks.2.kernel: [3, 5]
  stages.0.blocks.2.expansion: [1, 2]
fixed:
  resolution: 8
  stem.width: 8
  stem.kernel: 3
  stem.stride: 2
  stages.0.width: 8
  stages.0.stride: 1
  head.width: 16
  activation: relu6
"""
N_OPERATORS = 10
#: A name without a shipped table.
LAB = ("+target=cpu", "target.name=lab", "search_space=few.yaml")
TIMING = ("tuning.n_plans=1", "timing.repeats=3", "timing.min_repeat_ms=1", "timing.retries=0")
COUNTS = ("networks.fit=6", "networks.interval=19", "networks.held_out=10")
SEARCH = (
    "search",
    *LAB,
    "budget=none",
    "train.epochs=1",
    *SHARED_WEIGHTS,
    "sampler=random",
    *TIMING,
)
SETTING = "tvm-float32-1t-b1"
FILES = ("operators.csv", "networks.csv", "calibration.json", "provenance.json", "error.png")

pytestmark = [pytest.mark.slow, pytest.mark.alone]
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)


@dataclass(frozen=True)
class Lab:
    """A folder with the profile of a target."""

    path: Path
    output: str

    @property
    def table(self) -> Path:
        return self.path / "latency_tables" / "lab" / SETTING


def _run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and output."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    GlobalHydra.instance().clear()
    return code, out.getvalue(), err.getvalue()


def _output_of(*arguments: str) -> str:
    """Run a command that must succeed; return its output without line breaks."""
    code, out, err = _run(*arguments)
    assert code == 0, err
    return " ".join(out.split())


def _error_line(*arguments: str) -> str:
    """Run a command that must fail; return its one-line error."""
    code, out, err = _run(*arguments)
    assert code == 2, out + err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in out + err
    return err


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    path = tmp_path_factory.mktemp("lab")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        Path("few.yaml").write_text(SPACE)
        Path("supernets").mkdir()
        patched.setattr(sys, "argv", ["hwnas"])
        patched.setattr(throughput, "BATCHES", (2,))
        patched.setattr(throughput, "_ROUNDS", 1)
        patched.setattr(profile_throughput, "_COMPARED", 2)
        output = _output_of("profile", *LAB, *TIMING, *COUNTS)
    return Lab(path, output)


@pytest.fixture(autouse=True)
def _copy_lab(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with a copy of the measured table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    shutil.copytree(lab.path, tmp_path, dirs_exist_ok=True, ignore=lambda *_: ["supernets"])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "supernets").symlink_to(lab.path / "supernets")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "latency_tables" / "lab" / SETTING


def test_profile_writes_files_and_reports_error(lab: Lab) -> None:
    assert {path.name for path in lab.table.iterdir()} == {*FILES, ".lock"}
    assert (lab.table / "error.png").read_bytes()[:4] == b"\x89PNG"
    loaded = load_table(lab.table)
    assert len(loaded.entries) == N_OPERATORS
    roles = [row["role"] for row in loaded.networks]
    assert roles == ["fit"] * 6 + ["interval"] * 19 + ["held_out"] * 10
    assert all(entry.timing.median_ms > 0 for entry in loaded.entries.values())
    assert loaded.provenance["arguments"] == [*LAB, *TIMING, *COUNTS]
    assert loaded.provenance["timing"]["repeats"] == 3
    for expected in (
        f"{N_OPERATORS} operators in latency_tables/lab",
        "Error on 10 networks, in neither the fit nor the interval",
        "Kendall",
        "of them (target: 95 %)",
        "p99",
        "Recommended: ",
        "tvm float32 1.00",
        "onnxruntime int8",
        "tune operators",
    ):
        assert expected in lab.output, expected


def test_latencies_grow_with_macs(lab: Lab) -> None:
    """The machine may be busy: only gross errors are detected."""
    entries = load_table(lab.table).entries
    ranked = sorted(entries, key=lambda op: op.n_macs)
    small, large = ranked[:4], ranked[-4:]
    mean = [np.mean([entries[op].timing.median_ms for op in part]) for part in (small, large)]
    assert mean[0] < mean[1]


def test_second_profile_tunes_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_table(table)

    def fail(self: Worker, op: OpSpec, *arguments: object) -> str:
        raise AssertionError(f"{op} was tuned again")

    rng = random.Random(0)
    monkeypatch.setattr(profile, "throughput_messages", lambda *arguments: [])
    monkeypatch.setattr(Worker, "tune", fail)
    monkeypatch.setattr(Worker, "time_network", lambda *arguments: timing(1 + rng.random() / 50))
    output = _output_of("profile", *LAB, *TIMING, *COUNTS)
    assert f"{N_OPERATORS} operators" in output
    after = load_table(table)
    quiet = {op: e for op, e in before.entries.items() if not e.timing.drifted}
    assert quiet == {op: after.entries[op] for op in quiet}
    assert after.provenance["created"] == before.provenance["created"]


@needs_compiler
def test_search_with_table_gives_verified_front(lab: Lab, tmp_path: Path) -> None:
    assert "networks on the front" in _output_of(*SEARCH, "n_trials=9", "run.dir=r")
    members = _rows(Path("r/front.csv"))
    assert members
    config = SearchConfig(target=replace(target("cpu"), name="lab"), search_space="few.yaml",
                          dataset=DatasetConfig("digits", validation=0.25))  # fmt: skip
    parts = components.parts(config, NullProgress())
    worker = Worker(config.target, TimingConfig(3, 1.0), Remote(), 120.0)
    try:
        for row in members:
            assert row["latency_ms_source"] == "table"
            assert row["verified_latency_ms_source"] == "measured"
            assert row["verified_accuracy_fp32_source"] == "measured"
            assert row["verified_energy_mj_source"] == "modelled"
            assert "verified_accuracy_int8" not in row
            files = _checked_files(row)
            genotype = _genotype(parts, row["id"])
            images = parts.data.prepare(
                images_of(parts.data.test), parts.networks.resolution(genotype)
            ).numpy()
            labels = parts.data.test.targets.numpy()
            outputs = worker.evaluate(files, images).outputs
            accuracy = float(np.mean(outputs.argmax(axis=1) == labels))
            assert float(row["verified_accuracy_fp32"]) == accuracy
            onnx_outputs = OrtSession(files[".onnx"].read_bytes()).run(images)
            assert np.abs(outputs - onnx_outputs).max() < 1e-3
    finally:
        worker.close()


def _checked_files(row: dict[str, str]) -> dict[str, Path]:
    """Return the files of a member by suffix; check their digests."""
    files = {}
    for column, suffix in (("so", ".so"), ("onnx", ".onnx"), ("weights", ".safetensors")):
        path = Path("r", row[column])
        assert hashlib.sha256(path.read_bytes()).hexdigest() == row[f"{column}_sha256"]
        assert path.name == row["id"] + suffix
        files[suffix] = path
    return files


def _genotype(parts: components.SearchComponents, id: str) -> Genotype:
    record = json.loads(Path("r", "models", f"{id}.json").read_text())
    return parts.space.genotype(record["genotype"])


def test_search_without_table_names_valid_command() -> None:
    options = ("target.batch=3", "search_space=tiny", "table.dir=my tables")
    line = _error_line("search", "+target=cpu", *options, "budget=none", "run.dir=r")
    assert "table.dir=my tables: there is no such folder" in line
    command = shlex.split(line.partition("measure one with: ")[2])
    assert command[:2] == ["hwnas", "profile"]
    assert set(options) <= set(command)
    assert "dir: my tables" in _run(*command[1:], "--cfg", "job")[1]
    assert not Path("r").exists()


def test_search_in_other_space_names_missing_operators() -> None:
    line = _error_line("search", *LAB[:2], "run.dir=r", "table.networks=0")
    assert "The latency table of target 'lab' lacks" in line
    assert "search_space=cpu_small" in line


def _change_cpu(table: Path) -> None:
    loaded = load_table(table)
    loaded.provenance["device"]["cpu"] = "model name=Another"
    loaded.save()


def test_table_of_another_cpu_is_rejected_or_labelled(table: Path) -> None:
    _change_cpu(table)
    line = _error_line(*SEARCH, "n_trials=4", "run.dir=r", "table.networks=0")
    assert (
        "was measured on another machine or version: cpu: model name=Another in the table" in line
    )
    assert "table.allow_other_machine=true" in line
    output = _output_of(*SEARCH, "n_trials=2", "run.dir=r", "table.allow_other_machine=true")
    assert (
        "Searched with a latency table of another machine: cpu: model name=Another in the table"
        in output
    )
    manifest = json.loads(Path("r/manifest.json").read_text())
    assert "Another" in manifest["latency_table"]["foreign"]


@needs_compiler
def test_search_extends_table_for_new_space(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_table(table)
    _output_of(*SEARCH, "n_trials=4", "run.dir=few")
    search = [a for a in SEARCH if not a.startswith("search_space=")]
    search += ["search_space=tiny", "n_trials=4", "table.networks=10"]
    output = _output_of(*search, "run.dir=r")
    extended = load_table(table)
    match = re.search(r"Latencies of tiny follow from (\d+) operators and .0 networks", output)
    assert match is not None
    n, new = len(extended.plans()), extended.plans().keys() - before.plans().keys()
    assert 0 < len(new) <= int(match[1]) <= n  # operators of other spaces do not count
    assert {e.plan for op, e in extended.entries.items() if op not in extended.plans()} == {
        PREDICTED
    }
    for op, entry in before.entries.items():
        assert extended.entries[op] == entry or entry.timing.drifted  # measured again
    assert extended.calibration["few"] == before.calibration["few"]
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"table"}
    assert {row["verified_latency_ms_source"] for row in members} == {"measured"}
    _output_of("search", "run.resume=few", "n_trials=5")  # its entries of the table are unchanged

    def fail(*arguments: object) -> None:
        raise AssertionError("something was measured again")

    for work in ("time_network", "time_operators"):
        monkeypatch.setattr(Worker, work, fail)
    _output_of(*search, "run.dir=again")
    candidates = [Path(name, "candidates.parquet").read_bytes() for name in ("r", "again")]
    assert candidates[0] == candidates[1]


def test_profile_reports_predicted_operators(table: Path) -> None:
    options = [*LAB[:2], "search_space=tiny", *TIMING, "table.networks=10"]
    output = _output_of("profile", *options, "tolerance=0.9", "coverage=0.5")
    loaded = load_table(table)
    n = len(loaded.entries) - len(loaded.plans())
    assert f"{n} of them predicted" in output
    assert "Error on 10 networks of tiny, leave-one-out" in output
    assert (table / "error.png").stat().st_size > 10_000


@needs_compiler
def test_search_transfers_table_of_another_cpu(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _change_cpu(table)
    search = (*SEARCH, "n_trials=6", "table.networks=12")
    output = _output_of(*search, "run.dir=r")
    assert "follow from the table of lab (model name=Another) and" in output
    (own_table,) = table.parent.glob(f"{SETTING}-*")
    transferred = load_table(own_table)
    assert set(transferred.transferred_plans()) == set(load_table(table).entries)
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"table"}
    assert {row["verified_latency_ms_source"] for row in members} == {"measured"}
    assert all(0 < float(row["latency_ms"]) < 10 for row in members)

    def fail(*arguments: object) -> None:
        raise AssertionError("a network was measured again")

    monkeypatch.setattr(Worker, "time_network", fail)
    _output_of(*search, "run.dir=again")
    candidates = [Path(name, "candidates.parquet").read_bytes() for name in ("r", "again")]
    assert candidates[0] == candidates[1]


def test_profile_stops_at_required_accuracy(table: Path) -> None:
    _change_cpu(table)
    output = _output_of("profile", *LAB, *TIMING, *COUNTS, "tolerance=0.9", "coverage=0.5")
    assert "Error on 10 networks" in output
    (own_table,) = table.parent.glob(f"{SETTING}-*")
    assert load_table(own_table).plans() == {}
    output = _output_of("profile", *LAB, *TIMING, *COUNTS, "tolerance=0.000001", "coverage=0.99")
    assert (
        load_table(own_table).plans() == load_table(table).plans()
    )  # all operators timed, none tuned again
    assert "transfer" not in load_table(own_table).calibration["few"]


@pytest.mark.parametrize("name", FILES[:3])
def test_damaged_table_is_reported(table: Path, name: str) -> None:
    path = table / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    line = _error_line(*SEARCH, "n_trials=4", "run.dir=r")
    assert f"{name} was changed" in line
    assert "remove the folder and profile again" in line
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "+target=npu", "cost=table"], "Unknown cost 'table'. Allowed: roofline, vela"),
        (["search", *LAB, "cost=vela"], "Unknown cost 'vela'"),
        (["search", *LAB, "table.networks=2"], "table.networks must be 0, or 10 or more, got 2"),
        (["search", *LAB, "table.dirs=x"], "Did you mean 'run.dir' or 'table.dir'?"),
        (["profile"], "No target. Give one with +target=<name>"),
        (["profile", "+target=npu"], "Target 'npu' needs no latency table"),
        (["profile", "+target=sketch"], "Target 'sketch' needs no latency table"),
        (["profile", *LAB, "genotype=nobody"], "genotype=nobody: no such file"),
        (["profile", *LAB, "networks.fit=3"], "networks.fit must be a whole number in"),
        (["profile", *LAB, "timing.repeats=1"], "timing.repeats must be a whole number in"),
        (["profile", *LAB, "tuning.n_plans=0"], "tuning.n_plans must be a whole number in"),
        (
            ["profile", *LAB, "networks.fit=60", "networks.interval=19"],
            "has 84 networks. Profiling needs",
        ),
        (["profile", *LAB, "transfer_from=nobody"], "no latency table of this target"),
        (["profile", *LAB, "transfer_from=lab"], "transfer_from=lab is the target itself"),
        (["profile", *LAB, "rpc.tracker=here"], "rpc.tracker must be HOST:PORT"),
        (["profile", *LAB, "target.dtype=int4"], "Unknown dtype 'int4'"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(arguments: list[str], message: str) -> None:
    assert message in _error_line(*arguments)


def test_too_many_threads_are_reported_without_output(tmp_path: Path) -> None:
    options = ("target.threads=99", "table.dir=new")
    assert "target.threads=99, but only" in _error_line("profile", *LAB, *options, *COUNTS)
    assert not (tmp_path / "new").exists()
    line = _error_line("search", *LAB, *options, "cost=measured", "run.dir=r", "budget=none")
    assert "target.threads=99, but only" in line


@pytest.mark.parametrize("name", ["npu", "sketch"])
def test_layers_of_estimated_network(name: str) -> None:
    output = _output_of("profile", f"+target={name}", "search_space=tiny", "genotype=largest")
    source = {"npu": "compiler-estimate", "sketch": "modelled"}[name]
    assert f"ms, {source}. Files in runs/profile/" in output
    assert "conv2d" in output or "Conv2D" in output
    _check_layers()


def _check_layers() -> list[dict[str, str]]:
    (folder,) = Path("runs", "profile").iterdir()
    assert (folder / "layers.png").read_bytes()[:4] == b"\x89PNG"
    rows = _rows(folder / "layers.csv")
    assert len(rows) > 5
    assert sum(float(row["latency_ms"]) for row in rows) > 0
    return rows


def test_layers_of_measured_network_use_table(table: Path, tmp_path: Path) -> None:
    output = _output_of("profile", *LAB, "genotype=smallest")
    assert "measured, each operator alone" in output
    times = {str(op): entry.timing.median_ms for op, entry in load_table(table).entries.items()}
    rows = _check_layers()
    assert rows[0]["name"] == "stem"
    for row in rows:
        assert float(row["latency_ms"]) == times[row["operator"]]


def test_layers_of_run_member(lab: Lab) -> None:
    """The genotype is read from the record of the verification."""
    parts = components.parts(
        SearchConfig(
            target=target("npu"), search_space="few.yaml", dataset=DatasetConfig("digits")
        ),
        NullProgress(),
    )
    genotype = parts.space.largest()
    folder = Path("runs/search/x/models")
    folder.mkdir(parents=True)
    record = folder / f"{genotype.id}.json"
    rest: dict[str, object] = {"figures": {}, "details": {}, "files": {}}
    record.write_text(json.dumps({"genotype": genotype.to_dict(), **rest}))
    for text in (genotype.id, str(record)):
        assert genotype.id in _output_of("profile", *LAB, f"genotype={text}")
    record.write_text(json.dumps({"genotype": {"resolution": 999}, **rest}))
    assert "choice 'stages.0.depth' is missing" in _error_line(
        "profile", *LAB, f"genotype={record}"
    )
    record.write_text("[]")
    assert "cannot be read" in _error_line("profile", *LAB, f"genotype={record}")


def test_measured_search_stores_tuned_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _output_of(*SEARCH, "n_trials=5", "run.dir=r", "cost=measured", "table.dir=own")
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"measured"}
    loaded = load_table(tmp_path / "own" / "lab" / SETTING)
    assert len(loaded.entries) >= 5
    assert set(loaded.plans()) == set(loaded.entries)
    assert json.loads(Path("r/manifest.json").read_text())["n_candidates"] == 5
    other = {**machine.describe(), "cpu": "model name=New"}
    monkeypatch.setattr(machine, "describe", lambda: other)
    options = ("n_trials=6", "run.resume=r", "cost=measured", "table.dir=other")
    message = _error_line(*SEARCH, *options)
    assert "device differs from that of the run" in message
    assert "Latencies of one run are measured on one device" in message


def test_profile_help_lists_targets_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("+target=NAME ", "hwnas list targets", "search_space=NAME ", "transfer_from="):
        assert part in text
    assert "budget=" not in text
    assert "train.epochs" not in text
    assert "trained.fidelities" not in text


def test_transferred_table_supports_search_and_resume(
    tiny: SearchSpace, task: Signature, tmp_path: Path
) -> None:
    options = ("+target=cpu", "target.name=other", "search_space=tiny")
    arguments = ("transfer_from=elsewhere", "n_samples=10", "seed=3")
    ops = subject(tiny, task).operators(0)
    source = Device().table(tmp_path / "latency_tables" / "elsewhere" / SETTING, ops)
    source.provenance["device"] = {"cpu": "made up"}
    source.save()
    output = _output_of("profile", *options, *TIMING, *arguments)
    assert "most of them transferred" in output
    path = tmp_path / "latency_tables" / "other" / SETTING
    loaded = load_table(path)
    plans = [entry.plan for entry in loaded.entries.values()]
    assert len(plans) == len(ops)
    assert 0 < plans.count(TRANSFERRED) < len(ops)
    assert loaded.provenance["transferred_from"]["device"] == {"cpu": "made up"}
    search = (
        "search",
        *options,
        "budget=none",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "sampler=random",
        *TIMING,
    )
    _output_of(*search, "n_trials=5", "run.dir=r")
    assert load_table(path).entries == loaded.entries  # though verification compiled some of them
    _output_of("search", "run.resume=r", "n_trials=6")


SLOW_START = """
import sys
import hwnas.hardware.profiling.operator_measurement as operators
operators._SAVE_S = 0.2
from hwnas.__main__ import run
sys.exit(run(sys.argv[1:]))
"""


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_START, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_for(process: subprocess.Popen[str], path: Path, n_rows: int) -> None:
    end = time.monotonic() + 120
    while not (path.is_file() and len(_rows(path)) >= n_rows):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def test_stopped_profile_keeps_measurements(tmp_path: Path) -> None:
    path = tmp_path / "own" / "lab" / SETTING
    entries: dict[OpSpec, OperatorEntry] = {}
    for signal_number in (signal.SIGKILL, signal.SIGINT):
        process = _start("profile", *LAB[:2], "search_space=tiny", *TIMING, "table.dir=own")
        _wait_for(process, path / "operators.csv", len(entries) + 3)
        os.kill(process.pid, signal_number)
        _, err = process.communicate(timeout=60)
        if signal_number == signal.SIGINT:
            assert process.returncode == 130
            assert err.splitlines() == [
                "hwnas: Interrupted; nothing is lost: the same command continues."
            ]
        loaded: LatencyTable = load_table(path)
        assert len(loaded.entries) >= len(entries) + 3
        assert {op: loaded.entries.get(op) for op in entries} == entries
        entries = dict(loaded.entries)
    assert len(entries) < 93


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_onnxruntime_profile_and_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(profile, "throughput_messages", lambda *arguments: [])
    options = ("+target=cpu", "target.name=lab", "target.runtime=onnxruntime",
               f"target.dtype={dtype}", "search_space=few.yaml", *TIMING)  # fmt: skip
    output = _output_of("profile", *options, *COUNTS)
    assert "Error on 10 networks" in output
    loaded = load_table(tmp_path / "latency_tables" / "lab" / f"onnxruntime-{dtype}-1t-b1")
    assert {op.dtype for op in loaded.entries} == {dtype}
    search = (
        "budget=none",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "sampler=random",
        "n_trials=6",
        "run.dir=r",
    )
    _output_of("search", *options, *search)
    for row in _rows(Path("r/front.csv")):
        assert row["verified_latency_ms_source"] == "measured"
        assert {"verified_accuracy_fp32", "onnx"} <= set(row)
        assert ("verified_accuracy_int8" in row) is (dtype == "int8")
        assert not {"so", "weights", "tflite"} & set(row)
