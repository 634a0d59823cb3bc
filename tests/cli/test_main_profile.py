"""Latency tables as a user meets them: measured on this machine, then searched with."""

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
from hwnas.workflows import components, profile
from hwnas.workflows.config import SearchConfig
from tests.conftest import SHARED_WEIGHTS, images_of, target
from tests.hardware.profiling.fakes import Device, subject, timing

#: 84 networks of ten operators.
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
#: A name of its own, so that no table that ships is in the way.
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
    """A folder in which a target was profiled."""

    path: Path
    output: str

    @property
    def table(self) -> Path:
        return self.path / "latency_tables" / "lab" / SETTING


def _run(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments)
    GlobalHydra.instance().clear()
    return code, out.getvalue(), err.getvalue()


def _done(*arguments: str) -> str:
    """Run a command that must succeed; return what it printed, without line breaks."""
    code, out, err = _run(*arguments)
    assert code == 0, err
    return " ".join(out.split())


def _refused(*arguments: str) -> str:
    """Run a command that must be refused; return the one line it says."""
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
        patched.setattr(profile, "_COMPARED", 2)
        output = _done("profile", *LAB, *TIMING, *COUNTS)
    return Lab(path, output)


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with a copy of the table that was measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    shutil.copytree(lab.path, tmp_path, dirs_exist_ok=True, ignore=lambda *_: ["supernets"])
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "supernets").symlink_to(lab.path / "supernets")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "latency_tables" / "lab" / SETTING


def test_profile_writes_its_files_and_tells_the_error(lab: Lab) -> None:
    assert {path.name for path in lab.table.iterdir()} == {*FILES, ".lock"}
    assert (lab.table / "error.png").read_bytes()[:4] == b"\x89PNG"
    found = load_table(lab.table)
    assert len(found.entries) == N_OPERATORS
    roles = [row["role"] for row in found.networks]
    assert roles == ["fit"] * 6 + ["interval"] * 19 + ["held_out"] * 10
    assert all(entry.timing.median_ms > 0 for entry in found.entries.values())
    assert found.provenance["arguments"] == [*LAB, *TIMING, *COUNTS]
    assert found.provenance["timing"]["repeats"] == 3
    for words in (
        f"{N_OPERATORS} operators in latency_tables/lab",
        "Error on 10 networks, in neither the fit nor the interval",
        "Kendall",
        "of them (target: 95 %)",
        "p99",
        "Recommended: ",
        "tvm float32 1.00",
        "onnxruntime int8",
        "load data",
    ):
        assert words in lab.output, words


def test_latencies_grow_with_the_work(lab: Lab) -> None:
    """They are of this machine, which may be busy: only a gross mistake can be seen."""
    entries = load_table(lab.table).entries
    ranked = sorted(entries, key=lambda op: op.n_macs)
    small, large = ranked[:4], ranked[-4:]
    mean = [np.mean([entries[op].timing.median_ms for op in part]) for part in (small, large)]
    assert mean[0] < mean[1]


def test_second_profile_tunes_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_table(table)

    def forbidden(self: Worker, op: OpSpec, *arguments: object) -> str:
        raise AssertionError(f"{op} was tuned again")

    rng = random.Random(0)
    monkeypatch.setattr(profile, "_extras", lambda *arguments: [])
    monkeypatch.setattr(Worker, "tune", forbidden)
    monkeypatch.setattr(Worker, "time_network", lambda *arguments: timing(1 + rng.random() / 50))
    output = _done("profile", *LAB, *TIMING, *COUNTS)
    assert f"{N_OPERATORS} operators" in output
    after = load_table(table)
    quiet = {op: e for op, e in before.entries.items() if not e.timing.drifted}
    assert quiet == {op: after.entries[op] for op in quiet}
    assert after.provenance["created"] == before.provenance["created"]


@needs_compiler
def test_search_with_the_table_ends_with_a_verified_front(lab: Lab, tmp_path: Path) -> None:
    output = _done(*SEARCH, "n_trials=9", "run.dir=r")
    assert "Verified front" in output
    assert "ms: measured (searched: table)" in output
    members = _rows(Path("r/front.csv"))
    assert members
    config = SearchConfig(target=replace(target("cpu"), name="lab"), search_space="few.yaml",
                          dataset=DatasetConfig("digits", validation=0.25))  # fmt: skip
    parts = components.parts(config, NullProgress())
    judge = Worker(config.target, TimingConfig(3, 1.0), Remote(), 120.0)
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
            outputs = judge.evaluate(files, images).outputs
            right = float(np.mean(outputs.argmax(axis=1) == labels))
            assert float(row["verified_accuracy_fp32"]) == right
            other = OrtSession(files[".onnx"].read_bytes()).run(images)
            assert np.abs(outputs - other).max() < 1e-3
    finally:
        judge.close()


def _checked_files(row: dict[str, str]) -> dict[str, Path]:
    """Return the files of a member by suffix; their digests must be right."""
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


def test_search_without_a_table_names_a_command_that_works() -> None:
    options = ("target.batch=3", "search_space=tiny", "table.dir=my tables")
    line = _refused("search", "+target=cpu", *options, "budget=none", "run.dir=r")
    assert "table.dir=my tables: there is no such folder" in line
    command = shlex.split(line.partition("measure one with: ")[2])
    assert command[:2] == ["hwnas", "profile"]
    assert set(options) <= set(command)
    assert "dir: my tables" in _run(*command[1:], "--cfg", "job")[1]
    assert not Path("r").exists()


def test_search_of_another_space_names_what_is_missing() -> None:
    line = _refused("search", *LAB[:2], "run.dir=r", "table.networks=0")
    assert "The latency table of target 'lab' lacks" in line
    assert "search_space=cpu_small" in line


def _of_another_cpu(table: Path) -> None:
    found = load_table(table)
    found.provenance["device"]["cpu"] = "model name=Another"
    found.save()


def test_table_of_another_cpu_is_refused_or_labelled(table: Path) -> None:
    _of_another_cpu(table)
    line = _refused(*SEARCH, "n_trials=4", "run.dir=r", "table.networks=0")
    assert (
        "was measured on another machine or version: cpu: model name=Another in the table" in line
    )
    assert "table.allow_other_machine=true" in line
    output = _done(*SEARCH, "n_trials=2", "run.dir=r", "table.allow_other_machine=true")
    assert (
        "Searched with a latency table of another machine: cpu: model name=Another in the table"
        in output
    )
    manifest = json.loads(Path("r/manifest.json").read_text())
    assert "Another" in manifest["latency_table"]["foreign"]


@needs_compiler
def test_search_begins_on_a_space_that_no_table_knows(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_table(table)
    _done(*SEARCH, "n_trials=4", "run.dir=few")
    search = [a for a in SEARCH if not a.startswith("search_space=")]
    search += ["search_space=tiny", "n_trials=4", "table.networks=10"]
    output = _done(*search, "run.dir=r")
    found = load_table(table)
    said = re.search(r"Latencies of tiny follow from (\d+) operators and .0 networks", output)
    assert said is not None
    n, new = len(found.plans()), found.plans().keys() - before.plans().keys()
    assert 0 < len(new) <= int(said[1]) <= n  # those of another space do not count
    assert {e.plan for op, e in found.entries.items() if op not in found.plans()} == {PREDICTED}
    assert before.entries.items() <= found.entries.items()
    assert found.calibration["few"] == before.calibration["few"]
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"table"}
    assert {row["verified_latency_ms_source"] for row in members} == {"measured"}
    _done("search", "run.resume=few", "n_trials=5")  # what it read of the table is as it was

    def forbidden(*arguments: object) -> None:
        raise AssertionError("something was measured again")

    for work in ("time_network", "time_operators"):
        monkeypatch.setattr(Worker, work, forbidden)
    _done(*search, "run.dir=again")
    told = [Path(name, "candidates.parquet").read_bytes() for name in ("r", "again")]
    assert told[0] == told[1]


def test_profile_of_few_operators_says_so(table: Path) -> None:
    options = [*LAB[:2], "search_space=tiny", *TIMING, "table.networks=10"]
    output = _done("profile", *options, "tolerance=0.9", "coverage=0.5")
    found = load_table(table)
    n = len(found.entries) - len(found.plans())
    assert f"{n} of them foretold" in output
    assert "Error on 10 networks, each left out in turn" in output
    assert (table / "error.png").stat().st_size > 10_000


@needs_compiler
def test_search_begins_from_the_table_of_another_cpu(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _of_another_cpu(table)
    search = (*SEARCH, "n_trials=6", "table.networks=12")
    output = _done(*search, "run.dir=r")
    assert "follow from the table of lab (model name=Another) and" in output
    (own,) = table.parent.glob(f"{SETTING}-*")
    found = load_table(own)
    assert set(found.taken_over()) == set(load_table(table).entries)
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"table"}
    assert {row["verified_latency_ms_source"] for row in members} == {"measured"}
    assert all(0 < float(row["latency_ms"]) < 10 for row in members)

    def forbidden(*arguments: object) -> None:
        raise AssertionError("a network was measured again")

    monkeypatch.setattr(Worker, "time_network", forbidden)
    _done(*search, "run.dir=again")
    told = [Path(name, "candidates.parquet").read_bytes() for name in ("r", "again")]
    assert told[0] == told[1]


def test_profile_stops_as_soon_as_it_foretells_well_enough(table: Path) -> None:
    _of_another_cpu(table)
    output = _done("profile", *LAB, *TIMING, *COUNTS, "tolerance=0.9", "coverage=0.5")
    assert "Error on 10 networks" in output
    (own,) = table.parent.glob(f"{SETTING}-*")
    assert load_table(own).plans() == {}
    output = _done("profile", *LAB, *TIMING, *COUNTS, "tolerance=0.000001", "coverage=0.99")
    assert (
        load_table(own).plans() == load_table(table).plans()
    )  # all operators timed, none tuned again
    assert "transfer" not in load_table(own).calibration["few"]


@pytest.mark.parametrize("name", FILES[:3])
def test_damaged_table_is_refused(table: Path, name: str) -> None:
    path = table / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    line = _refused(*SEARCH, "n_trials=4", "run.dir=r")
    assert f"{name} was changed" in line
    assert "remove the folder and profile again" in line
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "+target=npu", "cost=table"], "Unknown cost 'table'. Allowed: roofline, vela"),
        (["search", *LAB, "cost=vela"], "Unknown cost 'vela'"),
        (["search", *LAB, "table.networks=2"], "table.networks must be 0, or 10 or more, got 2"),
        (["search", *LAB, "table.dirs=x"], "Did you mean 'table.dir'?"),
        (["profile"], "No target. Give one with +target=<name>"),
        (["profile", "+target=npu"], "Target 'npu' needs no latency table"),
        (["profile", "+target=sketch"], "Target 'sketch' needs no latency table"),
        (["profile", *LAB, "genotype=nobody"], "genotype=nobody: no such file"),
        (["profile", *LAB, "networks.fit=3"], "networks.fit must be a whole number in"),
        (["profile", *LAB, "timing.repeats=1"], "timing.repeats must be a whole number in"),
        (["profile", *LAB, "tuning.n_plans=0"], "tuning.n_plans must be a whole number in"),
        (
            ["profile", *LAB, "networks.fit=60", "networks.interval=19"],
            "has 84 networks, too few",
        ),
        (["profile", *LAB, "transfer_from=nobody"], "no latency table of this target"),
        (["profile", *LAB, "transfer_from=lab"], "transfer_from=lab is the target itself"),
        (["profile", *LAB, "rpc.tracker=here"], "rpc.tracker must be HOST:PORT"),
        (["profile", *LAB, "target.dtype=int4"], "Unknown dtype 'int4'"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], message: str) -> None:
    assert message in _refused(*arguments)


def test_more_threads_than_cores_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    options = ("target.threads=99", "table.dir=new")
    assert "target.threads=99, but only" in _refused("profile", *LAB, *options, *COUNTS)
    assert not (tmp_path / "new").exists()
    line = _refused("search", *LAB, *options, "cost=measured", "run.dir=r", "budget=none")
    assert "target.threads=99, but only" in line


@pytest.mark.parametrize("name", ["npu", "sketch"])
def test_layers_of_a_network_that_is_not_measured(name: str) -> None:
    output = _done("profile", f"+target={name}", "search_space=tiny", "genotype=largest")
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


def test_layers_of_a_measured_network_come_from_the_table(table: Path, tmp_path: Path) -> None:
    output = _done("profile", *LAB, "genotype=smallest")
    assert "measured, each operator alone" in output
    times = {str(op): entry.timing.median_ms for op, entry in load_table(table).entries.items()}
    rows = _check_layers()
    assert rows[0]["name"] == "stem"
    for row in rows:
        assert float(row["latency_ms"]) == times[row["operator"]]


def test_layers_of_a_member_of_a_run_are_found(lab: Lab) -> None:
    """The record that verification leaves names the genotype."""
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
        assert genotype.id in _done("profile", *LAB, f"genotype={text}")
    record.write_text(json.dumps({"genotype": {"resolution": 999}, **rest}))
    assert "choice 'stages.0.depth' is missing" in _refused("profile", *LAB, f"genotype={record}")
    record.write_text("[]")
    assert "cannot be read" in _refused("profile", *LAB, f"genotype={record}")


def test_measured_search_keeps_what_it_tunes(tmp_path: Path) -> None:
    output = _done(*SEARCH, "n_trials=5", "run.dir=r", "cost=measured", "table.dir=own")
    assert "ms: measured." in output
    members = _rows(Path("r/front.csv"))
    assert {row["latency_ms_source"] for row in members} == {"measured"}
    kept = load_table(tmp_path / "own" / "lab" / SETTING)
    assert len(kept.entries) >= 5
    assert set(kept.plans()) == set(kept.entries)
    assert json.loads(Path("r/manifest.json").read_text())["n_candidates"] == 5


def test_help_lists_targets_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("+target=cpu ", "+target=raspi4 ", "search_space=tiny ", "networks.held_out=60",
                  "timing.repeats=", "table.dir=latency_tables", "transfer_from="):  # fmt: skip
        assert words in text
    assert "budget=" not in text
    assert "train.epochs" not in text
    assert "trained.fidelities" not in text


def test_transferred_table_is_searched_and_resumed(
    tiny: SearchSpace, task: Signature, tmp_path: Path
) -> None:
    options = ("+target=cpu", "target.name=other", "search_space=tiny")
    arguments = ("transfer_from=elsewhere", "n_samples=10", "seed=3")
    ops = subject(tiny, task).operators(0)
    source = Device().table(tmp_path / "latency_tables" / "elsewhere" / SETTING, ops)
    source.provenance["device"] = {"cpu": "made up"}
    source.save()
    output = _done("profile", *options, *TIMING, *arguments)
    assert "most of them transferred" in output
    path = tmp_path / "latency_tables" / "other" / SETTING
    found = load_table(path)
    plans = [entry.plan for entry in found.entries.values()]
    assert len(plans) == len(ops)
    assert 0 < plans.count(TRANSFERRED) < len(ops)
    assert found.provenance["transferred_from"]["device"] == {"cpu": "made up"}
    search = (
        "search",
        *options,
        "budget=none",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "sampler=random",
        *TIMING,
    )
    _done(*search, "n_trials=5", "run.dir=r")
    assert load_table(path).entries == found.entries  # though verification compiled some of them
    _done("search", "run.resume=r", "n_trials=6")


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


def test_profile_that_is_stopped_keeps_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "own" / "lab" / SETTING
    entries: dict[OpSpec, OperatorEntry] = {}
    for by in (signal.SIGKILL, signal.SIGINT):
        process = _start("profile", *LAB[:2], "search_space=tiny", *TIMING, "table.dir=own")
        _wait_for(process, path / "operators.csv", len(entries) + 3)
        os.kill(process.pid, by)
        _, err = process.communicate(timeout=60)
        if by == signal.SIGINT:
            assert process.returncode == 130
            assert err.splitlines() == [
                "hwnas: Interrupted; nothing is lost: the same command continues."
            ]
        found: LatencyTable = load_table(path)
        assert len(found.entries) >= len(entries) + 3
        assert {op: found.entries.get(op) for op in entries} == entries
        entries = dict(found.entries)
    assert len(entries) < 93


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_onnxruntime_is_profiled_and_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(profile, "_extras", lambda *arguments: [])
    options = ("+target=cpu", "target.name=lab", "target.runtime=onnxruntime",
               f"target.dtype={dtype}", "search_space=few.yaml", *TIMING)  # fmt: skip
    output = _done("profile", *options, *COUNTS)
    assert "Error on 10 networks" in output
    found = load_table(tmp_path / "latency_tables" / "lab" / f"onnxruntime-{dtype}-1t-b1")
    assert {op.dtype for op in found.entries} == {dtype}
    search = (
        "budget=none",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "sampler=random",
        "n_trials=6",
        "run.dir=r",
    )
    _done("search", *options, *search)
    for row in _rows(Path("r/front.csv")):
        assert row["verified_latency_ms_source"] == "measured"
        assert {"verified_accuracy_fp32", "onnx"} <= set(row)
        assert ("verified_accuracy_int8" in row) is (dtype == "int8")
        assert not {"so", "weights", "tflite"} & set(row)
