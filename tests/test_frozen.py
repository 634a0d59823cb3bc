"""Regression tests for search results, files of earlier versions and public names.

They use only ``import hwnas``, the command line and files, so modules may move. ``frozen.json``
has the expected results; ``frozen/made.zip`` has runs, an export, a plan, a latency table and a
measured device of an earlier version. After an intended change, record the results again with
``python -m tests.test_frozen`` and give the reason in the commit.
"""

import contextlib
import csv
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hwnas
from hwnas.__main__ import run
from hwnas.cli.help_texts import VERBS as ALL_VERBS
from hwnas.core import machine
from hwnas.workflows.config import SCHEMAS
from tests.conftest import few_of, options_with_defaults

Row = dict[str, Any]
FOUND = Path(__file__).with_name("frozen.json")
FROZEN = Path(__file__).with_name("frozen")
PROJECT = Path(__file__).parents[1]
COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")

#: Options of all searches: one epoch, one process, no fine-tuning.
SHORT = (
    "search", "budget=none", "train.epochs=1", "trained.fidelities=[1]", "finish.epochs=0",
    "finish.min_candidates=1", "finish.max_int8_drop=100", "study.workers=1",
)  # fmt: skip
SUPERNET = ("search_space=tiny", "accuracy=supernet", "n_trials=8")
ONNXRUNTIME = ("+target=cpu", "target.runtime=onnxruntime")
FOREIGN = ("search_space=mbconv_small", "table.allow_other_machine=true")
#: Candidates are only costed: no network meets the limit.
UNMET = ("n_trials=3", "sampler=random")
#: Searches by the random sampler: proposals and costs do not depend on the CPU.
DRAWN = {
    "mbconv": ("+target=npu", "search_space=mbconv_small", "n_trials=3"),
    "resnet": ("+target=ethos_u65_256", "search_space=resnet_small", "n_trials=3"),
    "vit": (*ONNXRUNTIME, "cost=roofline", f"search_space={FROZEN / 'vit.yaml'}", "n_trials=3"),
    "several_spaces": ("+target=ethos_u85_256", "search_space=baselines", "n_trials=6"),
    "several_targets": ("+target=[npu,sketch]", *SUPERNET, "link.to=sketch", "link.latency_ms=1"),
    "modelled": ("+target=sketch", "search_space=dense_small", "n_trials=3"),
    "bits": ("+target=npu", f"search_space={FROZEN / 'bits.yaml'}", "n_trials=4"),
    "exits": ("+target=npu", f"search_space={FROZEN / 'exits.yaml'}", "n_trials=4"),
    "precision": (
        *ONNXRUNTIME, "cost=roofline", f"search_space={FROZEN / 'precision.yaml'}", "n_trials=6",
    ),
    "int8_onnxruntime": (*ONNXRUNTIME, "target.dtype=int8", *FOREIGN, "n_trials=2"),
    "int8_tvm": ("+target=cpu", "target.dtype=int8", *FOREIGN, "n_trials=2"),
    "regression": ("+target=npu", "task=regression", "dataset=digit_angles", *SUPERNET),
}  # fmt: skip
#: Searches by the default sampler: proposals depend on accuracies, hence on the CPU.
PROPOSED = {"pareto": ("+target=npu", "search_space=tiny", "n_trials=10")}
SEARCHES = {name: (*arguments, "sampler=random") for name, arguments in DRAWN.items()} | PROPOSED
SLOW = {
    "bits",
    "int8_onnxruntime",
    "int8_tvm",
    "mbconv",
    "modelled",
    "precision",
    "regression",
    "resnet",
    "several_spaces",
    "several_targets",
    "vit",
}

#: Shipped tables: runtime and dtype.
TABLES = [(runtime, dtype) for runtime in ("tvm", "onnxruntime") for dtype in ("float32", "int8")]
#: Searches that read files of ``made.zip`` and only cost candidates.
READ = {
    "latency_table": (
        *ONNXRUNTIME, "target.batch=2", "search_space=tiny", "table.dir=tables",
        "table.allow_other_machine=true", *UNMET,
    ),
    "measured_device": (
        "+target=nvidia_t4", "cost=device_model", "target.offline.file=device.json",
        "search_space=tiny", *UNMET,
    ),
}  # fmt: skip
RUNS = ("npu", "supernet", "targets")
#: The ``pick`` of each export; the supernet's knee is at chance level and needs an id.
EXPORTED = {"npu": "pick=most_accurate", "supernet": "pick=21b3bebf82ca", "targets": "pick=all"}
FLEET = ("front=0", "n_seeds=1")


def cpu() -> str:
    """Return the name of the CPU as in tables of this machine."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    names = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU part")
    return " ".join(f"{name}={facts[name]}" for name in names if name in facts)


def number(value: object) -> str:
    """Return a value for comparison: numbers have six digits."""
    try:
        return f"{float(str(value)):.6g}"
    except ValueError:
        return str(value)


def line(row: Row, names: Sequence[str]) -> str:
    """Return some columns of a row, without empty ones."""
    return " ".join([row["id"], *(number(row[n]) for n in names if row.get(n) not in (None, ""))])


def candidates(folder: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(folder / "candidates.parquet").to_pylist()
    return rows


def csv_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def candidate_costs(folder: Path) -> list[str]:
    """Return the candidates of a search in order, with their costs."""
    rows = candidates(folder)
    return [line(row, [n for n in row if n.rpartition(".")[2] in COSTS]) for row in rows]


def identity(folder: Path) -> Row:
    """Return the digests that a resume checks, without those of versions and of this machine."""
    digests = read_json(folder / "manifest.json")["digests"]
    return {
        k: v
        for k, v in digests.items()
        if k not in ("versions", "device") and not k.startswith("supernet")
    }


def accuracies_and_front(folder: Path, name: str) -> list[str]:
    """Return accuracies of candidates and the verified front.

    On a CPU, verification measures costs, which decide the front: it is omitted there.
    """
    on_cpu = "+target=cpu" in SEARCHES[name]
    accuracy = re.compile(r"(verified_)?(\w+\.)?(accuracy|mae)(_int8|_fp32)?")
    if on_cpu:
        return [line(row, [n for n in row if accuracy.fullmatch(n)]) for row in candidates(folder)]
    cost = re.compile(rf"verified_(\w+\.)?({'|'.join(COSTS)}|on_front)")
    lines = [line(row, [n for n in row if accuracy.fullmatch(n)]) for row in candidates(folder)]
    for row in csv_rows(folder / "front.csv"):
        names = [n for n in row if accuracy.fullmatch(n) or cost.fullmatch(n)]
        lines.append(f"front: {line(row, names)}")
    paths = sorted(path for path in folder.rglob("*.csv") if path.name != "front.csv")
    return lines + [f"{path.relative_to(folder)}: {digest(path)}" for path in paths]


def output_of(arguments: Sequence[str], code: int = 0) -> str:
    """Run a command and return its output."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert run(arguments) == code
    return output.getvalue()


def run_search(name: str) -> Path:
    """Run a search in the working directory and return its folder."""
    output_of([*SHORT, *SEARCHES[name], "run.dir=run"])
    return Path("run")


def search_costs_only(options: Sequence[str], folder: str) -> None:
    """Search with a limit just below the cheapest candidate, so that trials are only costed."""
    search = [*SHORT, *options, f"run.dir={folder}"]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        output_of([*search, "budget.latency_ms=1e-9"], code=2)
    cheapest = re.search(r"cheapest candidate, \w+, needs ([0-9.e-]+) ms", errors.getvalue())
    assert cheapest is not None
    output_of([*search, f"budget.latency_ms={0.9 * float(cheapest[1])}"], code=2)


def shipped_table_facts(runtime: str, dtype: str) -> Row:
    """Return the facts and costs that a search reads from a shipped table."""
    options = ("+target=cpu", f"target.runtime={runtime}", f"target.dtype={dtype}")
    search_costs_only([*options, *FOREIGN, *UNMET], f"{runtime}-{dtype}")
    folder = Path(f"{runtime}-{dtype}")
    manifest = read_json(folder / "manifest.json")
    table = manifest["latency_table"]
    reasons = {
        change.split()[0].rstrip(":") for change in (table["foreign"] or "").split("; ") if change
    }
    assert reasons <= {"cpu", "flags_digest"}, table["foreign"]
    table_folder = Path(table["path"])
    files = {path.name: digest(path) for path in sorted(table_folder.glob("*.[cj]s*"))}
    return {
        "place": "/".join(table_folder.parts[-3:]),
        "digest": manifest["digests"]["latency_table"],
        "schedules": read_json(table_folder / "provenance.json").get("schedules"),
        "files": files,
        "costs": candidate_costs(folder),
    }


def front_rows_of_why(name: str) -> list[str]:
    """Return the rows of networks that ``why`` prints for a front."""
    printed = output_of(["why", f"run=runs/{name}", "id=front"])
    return [" ".join(row.split()) for row in re.findall(r"^[0-9a-f]{12} .*", printed, re.M)]


def compare_runs() -> list[str]:
    runs = "runs=[runs/npu,runs/supernet,runs/targets/npu]"
    objectives = "objectives={accuracy: max, latency_ms: min}"
    output_of(["compare", runs, objectives, "n_bootstrap=100", "run.dir=both"])
    names = ("n_points", "hypervolume", "igd_plus", "epsilon_additive", "r2")
    rows = csv_rows(Path("both/indicators.csv"))
    return [line({**row, "id": row["run"]}, names) for row in rows]


def export_run(name: str) -> Row:
    """Export a run; return its costs and the accuracies, which depend on the CPU."""
    weights = sorted(Path("runs/supernets").rglob("*.safetensors"))
    options = (EXPORTED[name], "max_int8_drop=100", f"dir=out/{name}")
    output_of(["export", f"run=runs/{name}", *options])
    assert sorted(Path("runs/supernets").rglob("*.safetensors")) == weights  # no training
    result: Row = {"costs": [], "accuracies": []}
    for path in sorted(Path("out", name).rglob("proof.json")):
        proof, export_name = read_json(path), str(path.parent.relative_to(f"out/{name}"))
        assert all(check["holds"] for check in proof["checks"])
        row = {"id": export_name} | {k: v[0] for k, v in proof["figures"].items()}
        result["costs"].append(line(row, COSTS))
        figures = {k: v["accuracy"][0] for k, v in proof["artefacts"].items() if "accuracy" in v}
        result["accuracies"].append(line({"id": export_name, **figures}, sorted(figures)))
    return result


def plan_and_replan() -> Row:
    """Return the pools of a new plan and the moves of replanning the old plan."""
    files = ("service=fleet/service.yaml", "fleet=fleet/fleet.yaml")
    output_of(["plan", *files, *FLEET, "run.dir=fleet/new"])
    output_of(
        ["replan", "plan=fleet/plan", "telemetry=fleet/seen.csv", "n_seeds=1", "run.dir=next"]
    )
    pools = [[*row.values()][:8] for row in csv_rows(Path("fleet/new/pools.csv"))]
    return {
        "plan": [" ".join(map(number, row)) for row in pools],
        "moves": [" ".join(row.values()) for row in csv_rows(Path("next/decisions.csv"))],
    }


def search_from_earlier_run(target: str) -> list[str]:
    """Return the candidates of a search that starts from an earlier one."""
    before = {row["id"]: row["accuracy_read"] for row in candidates(Path("runs/npu"))}
    weights = {*Path("runs/supernets").rglob("*.safetensors")}
    options = (f"+target={target}", "search_space=tiny", "start_from=runs/npu", "n_trials=8")
    output_of([*SHORT, *options, "sampler=random", f"run.dir={target}"])
    rows = candidates(Path(target))
    assert [row["id"] for row in rows][: len(before)] == [*before]
    assert all(row["accuracy_read"] == before.get(row["id"], row["accuracy_read"]) for row in rows)
    new = {*Path("runs/supernets").rglob("*.safetensors")} - weights
    assert len(new) == len({row["id"] for row in rows} - {*before})  # the others are reused
    return candidate_costs(Path(target))


def costs_from_measurements(name: str) -> list[str]:
    search_costs_only(READ[name], name)
    return candidate_costs(Path(name))


def public() -> dict[str, list[str] | None]:
    """Return the public names of ``hwnas`` with the parameters of all but exceptions."""
    names: dict[str, list[str] | None] = {}
    for name in dir(hwnas):
        value = getattr(hwnas, name)
        if name.startswith("_") or name == "TYPE_CHECKING" or inspect.ismodule(value):
            continue
        is_error = isinstance(value, type) and issubclass(value, Exception)
        has_signature = callable(value) and not is_error
        names[name] = [*inspect.signature(value).parameters] if has_signature else None
    return names


def names_in_project() -> dict[str, list[str]]:
    """Return the public names in ``pyproject.toml``: scripts, extras and entry points."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"scripts": project["scripts"], "extras": project["optional-dependencies"]}
    return {key: sorted(names) for key, names in (groups | project["entry-points"]).items()}


def options_of(verb: str) -> list[str]:
    """Return the options of a verb with their defaults."""
    return [f"{n}={'' if v is None else v}" for n, v in options_with_defaults(verb)]


VERBS = [verb for verb in ALL_VERBS if verb in SCHEMAS]


def unpack_earlier_files(folder: Path) -> None:
    shutil.unpack_archive(FROZEN / "made.zip", folder)


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    monkeypatch.setenv("COLUMNS", "200")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def earlier_files(tmp_path: Path) -> Path:
    """Return a folder with files of an earlier version."""
    unpack_earlier_files(tmp_path)
    return tmp_path


@pytest.fixture
def same_versions(earlier_files: Path) -> None:
    """Skip the test if installed versions differ from those of the earlier runs."""
    recorded = read_json(earlier_files / "runs/npu/manifest.json")["versions"]
    for name in ("torch", "numpy", "ethos-u-vela", "ai-edge-litert"):
        installed = torch.__version__ if name == "torch" else importlib.metadata.version(name)
        if str(installed) != recorded[name]:
            pytest.skip(f"the files were made with {name} {recorded[name]}, here is {installed}")


@pytest.fixture(scope="module")
def expected() -> Row:
    content: Row = read_json(FOUND)
    return content


def expected_for_this_cpu(expected: Row) -> Row:
    """Return the expected results for this CPU; skip the test if there are none."""
    by_cpu: Row = expected["by_cpu"]
    if (this_cpu := cpu()) not in by_cpu:
        pytest.skip(f"accuracies are known of {', '.join(by_cpu)}, not of {this_cpu}")
    result: Row = by_cpu[this_cpu]
    return result


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SEARCHES]
)
def test_search_gives_same_front(name: str, expected: Row) -> None:
    if name == "int8_tvm" and not {"avx512_vnni", "avx_vnni"} & {*machine.describe()["flags"]}:
        pytest.skip("the shipped table has plans that need VNNI, which this CPU lacks")
    folder = run_search(name)
    if name in DRAWN:
        assert candidate_costs(folder) == expected["costs"][name]
    assert identity(folder) == expected["identities"][name]
    assert accuracies_and_front(folder, name) == expected_for_this_cpu(expected)["fronts"][name]


@pytest.mark.parametrize(
    ("runtime", "dtype"),
    [TABLES[0], *(pytest.param(*t, marks=pytest.mark.slow) for t in TABLES[1:])],
)
def test_shipped_table_gives_same_costs(runtime: str, dtype: str, expected: Row) -> None:
    assert shipped_table_facts(runtime, dtype) == expected["tables"][f"{runtime}-{dtype}"]


@pytest.mark.usefixtures("earlier_files")
@pytest.mark.parametrize("name", RUNS)
def test_earlier_run_can_be_explained(name: str, expected: Row) -> None:
    assert front_rows_of_why(name) == expected["explained"][name]


@pytest.mark.usefixtures("earlier_files")
def test_earlier_runs_can_be_compared(expected: Row) -> None:
    assert compare_runs() == expected["compared"]


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("name", EXPORTED)
def test_earlier_run_can_be_exported(name: str, expected: Row) -> None:
    result = export_run(name)
    assert result["costs"] == expected["exported"][name]
    assert result["accuracies"] == expected_for_this_cpu(expected)["exported"][name]


def test_earlier_export_can_be_verified(earlier_files: Path) -> None:
    (folder,) = (path for path in (earlier_files / "exports").iterdir() if path.is_dir())
    printed = " ".join(output_of(["verify", str(folder), "+target=npu"]).split())
    assert "All repeated checks passed." in printed
    assert "The compiler gave the same file." in printed


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("name", RUNS)
def test_earlier_run_can_be_resumed(name: str) -> None:
    before = candidates(Path("runs", name))
    output_of(["search", f"run.resume=runs/{name}", "n_trials=8"])
    after = candidates(Path("runs", name))
    assert len(after) == 8
    assert [row["id"] for row in after[:6]] == [row["id"] for row in before]
    columns = [n for n in before[0] if n == "accuracy_read" or n.rpartition(".")[2] in COSTS]
    assert [line(row, columns) for row in after[:6]] == [line(row, columns) for row in before]


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("target", few_of(["npu", "ethos_u85_256"], 1))
def test_search_starts_from_earlier_run(target: str, expected: Row) -> None:
    assert search_from_earlier_run(target) == expected["started_from"][target]


@pytest.mark.slow
@pytest.mark.usefixtures("earlier_files")
def test_earlier_plan_can_be_replanned(expected: Row) -> None:
    assert plan_and_replan() == expected["replanned"]


@pytest.mark.usefixtures("earlier_files")
@pytest.mark.parametrize("name", READ)
def test_earlier_measurements_give_same_costs(name: str, expected: Row) -> None:
    costs, expected_costs = (
        [(row.split()[0], [float(cost) for cost in row.split()[1:]]) for row in rows]
        for rows in (costs_from_measurements(name), expected["measurements"][name])
    )
    assert [key for key, _ in costs] == [key for key, _ in expected_costs]
    for (_, cost), (_, expected_cost) in zip(costs, expected_costs, strict=True):
        assert cost == pytest.approx(
            expected_cost, rel=1e-3
        )  # fits depend on the arithmetic of the CPU


def test_public_names_are_unchanged(expected: Row) -> None:
    assert public() == expected["public"]
    for name in expected["public"]:  # an imported submodule would replace the function
        assert importlib.util.find_spec(f"hwnas.{name}") is None


def test_options_of_verbs_are_unchanged(expected: Row) -> None:
    assert {verb: options_of(verb) for verb in VERBS} == expected["options"]


def test_entry_points_are_unchanged_and_load(expected: Row) -> None:
    assert names_in_project() == expected["project"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    for group, entries in groups.items():
        for name, value in entries.items():
            assert importlib.metadata.EntryPoint(name, value, group).load() is not None


@pytest.mark.slow
def test_cluster_job_is_pickled_and_runs(tmp_path: Path) -> None:
    rows = [
        {"a": a, "b": b, "acc": 40 + 5 * a + b, "ms": 1.0 + a} for a in range(4) for b in (0, 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "cells.parquet")
    arguments = [
        "search", "-m", "hydra/launcher=submitit_local", "seed=7", "sampler=random", "n_trials=4",
        "accuracy=table", "cost=table", "benchmark.path=cells.parquet", "benchmark.genotype=[a,b]",
        "benchmark.accuracy=acc", "benchmark.costs={latency_ms: ms}",
    ]  # fmt: skip
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    completed = subprocess.run(
        [sys.executable, "-m", "hwnas", *arguments],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    (manifest,) = tmp_path.glob("runs/multirun/*/0/manifest.json")
    assert read_json(manifest)["status"] == "finished"
    assert read_json(manifest)["config"]["seed"] == 7
    assert len(candidates(manifest.parent)) == 4


def _record() -> None:
    """Write the results of this machine; those of other CPUs are kept."""
    content = read_json(FOUND) if FOUND.exists() else {"by_cpu": {}}
    for_this_cpu: Row = {"fronts": {}, "exported": {}}
    content |= {"costs": {}, "identities": {}, "exported": {}}
    for name in SEARCHES:
        os.chdir(tempfile.mkdtemp())  # without weights of the earlier version
        folder = run_search(name).absolute()
        if name in DRAWN:
            content["costs"][name] = candidate_costs(folder)
        content["identities"][name] = identity(folder)
        for_this_cpu["fronts"][name] = accuracies_and_front(folder, name)
    content["tables"] = {
        f"{r}-{d}": _run_in_new_folder(shipped_table_facts, r, d) for r, d in TABLES
    }
    content["explained"] = {name: _run_in_new_folder(front_rows_of_why, name) for name in RUNS}
    content["compared"] = _run_in_new_folder(compare_runs)
    for name in EXPORTED:
        export_result = _run_in_new_folder(export_run, name)
        content["exported"][name] = export_result["costs"]
        for_this_cpu["exported"][name] = export_result["accuracies"]
    content["started_from"] = {
        name: _run_in_new_folder(search_from_earlier_run, name) for name in ("npu", "ethos_u85_256")
    }
    content["replanned"] = _run_in_new_folder(plan_and_replan)
    content["measurements"] = {
        name: _run_in_new_folder(costs_from_measurements, name) for name in READ
    }
    content |= {"public": public(), "project": names_in_project()}
    content["options"] = {verb: options_of(verb) for verb in VERBS}
    content["by_cpu"][cpu()] = for_this_cpu
    FOUND.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _run_in_new_folder(function: Callable[..., Any], *arguments: str) -> Any:
    """Return the result of a function in a new folder with files of the earlier version."""
    folder = tempfile.mkdtemp()
    unpack_earlier_files(Path(folder))
    os.chdir(folder)
    result = function(*arguments)
    return result.absolute() if isinstance(result, Path) else result


if __name__ == "__main__":
    sys.argv = ["hwnas"]
    os.environ["COLUMNS"] = "200"
    torch.set_num_threads(1)
    _record()
