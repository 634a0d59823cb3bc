"""Pins search results, files of earlier runs and public names, whatever modules are called.

Only ``import hwnas``, its command line and its files are used. What is expected is in
``frozen.json``; ``frozen/made.zip`` holds runs, an export, a plan, a latency table and a measured
device that were written before the modules moved. After an intended change, record again with
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
#: Candidates are costed, and none is trained or verified: with a limit that no network meets.
UNMET = ("n_trials=3", "sampler=random")
#: Searches by the random sampler: what is proposed and its costs do not depend on the CPU.
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
#: Searches by the default sampler: what is proposed rests on accuracies, hence on the CPU.
PROPOSED = {"pareto": ("+target=npu", "search_space=tiny", "n_trials=10")}
SEARCHES = {name: (*words, "sampler=random") for name, words in DRAWN.items()} | PROPOSED
SLOW = {
    "mbconv",
    "int8_onnxruntime",
    "int8_tvm",
    "modelled",
    "precision",
    "several_spaces",
    "vit",
}

#: Tables that are shipped: runtime and dtype.
TABLES = [(runtime, dtype) for runtime in ("tvm", "onnxruntime") for dtype in ("float32", "int8")]
#: Searches that read what ``made.zip`` holds, and only cost candidates.
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
#: By ``pick``; the knee of the supernet's run is at chance level, which only an id exports.
EXPORTED = {"npu": "pick=most_accurate", "supernet": "pick=21b3bebf82ca", "targets": "pick=all"}
FLEET = ("front=0", "n_seeds=1")


def cpu() -> str:
    """Return the CPU as tables of this machine name it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    names = ("model name", "vendor_id", "cpu family", "model", "stepping", "CPU part")
    return " ".join(f"{name}={facts[name]}" for name in names if name in facts)


def number(value: object) -> str:
    """Return a value as it is compared: of numbers six digits."""
    try:
        return f"{float(str(value)):.6g}"
    except ValueError:
        return str(value)


def line(row: Row, names: Sequence[str]) -> str:
    """Return some columns of a row; empty ones are left out."""
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


def costed(folder: Path) -> list[str]:
    """Return what a search proposed, in order, with the costs of each candidate."""
    rows = candidates(folder)
    return [line(row, [n for n in row if n.rpartition(".")[2] in COSTS]) for row in rows]


def identity(folder: Path) -> Row:
    """Return the digests by which a run is resumed; those of versions are left out."""
    digests = read_json(folder / "manifest.json")["digests"]
    return {k: v for k, v in digests.items() if k != "versions" and not k.startswith("supernet")}


def front(folder: Path, name: str) -> list[str]:
    """Return accuracies of candidates and the verified front.

    Costs on a CPU are measured when they are verified, and decide the front: it is left out there.
    """
    on_cpu = "+target=cpu" in SEARCHES[name]
    accuracy = re.compile(r"(verified_)?(\w+\.)?(accuracy|mae)(_int8|_fp32)?")
    if on_cpu:
        return [line(row, [n for n in row if accuracy.fullmatch(n)]) for row in candidates(folder)]
    cost = re.compile(rf"verified_(\w+\.)?({'|'.join(COSTS)}|on_front)")
    found = [line(row, [n for n in row if accuracy.fullmatch(n)]) for row in candidates(folder)]
    for row in csv_rows(folder / "front.csv"):
        names = [n for n in row if accuracy.fullmatch(n) or cost.fullmatch(n)]
        found.append(f"front: {line(row, names)}")
    places = sorted(path for path in folder.rglob("*.csv") if path.name != "front.csv")
    return found + [f"{path.relative_to(folder)}: {digest(path)}" for path in places]


def words_of(arguments: Sequence[str], code: int = 0) -> str:
    """Run a command and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert run(arguments) == code
    return printed.getvalue()


def searched(name: str) -> Path:
    """Run a search in the working directory and return its folder."""
    words_of([*SHORT, *SEARCHES[name], "run.dir=run"])
    return Path("run")


def cost_candidates(options: Sequence[str], folder: str) -> None:
    """Search with a limit that the cheapest candidate just misses, so that trials are costed."""
    search = [*SHORT, *options, f"run.dir={folder}"]
    with contextlib.redirect_stderr(io.StringIO()) as refused:
        words_of([*search, "budget.latency_ms=1e-9"], code=2)
    cheapest = re.search(r"cheapest candidate, \w+, needs ([0-9.e-]+) ms", refused.getvalue())
    assert cheapest is not None
    words_of([*search, f"budget.latency_ms={0.9 * float(cheapest[1])}"], code=2)


def read_table(runtime: str, dtype: str) -> Row:
    """Return what a search reads of a shipped table."""
    options = ("+target=cpu", f"target.runtime={runtime}", f"target.dtype={dtype}")
    cost_candidates([*options, *FOREIGN, *UNMET], f"{runtime}-{dtype}")
    folder = Path(f"{runtime}-{dtype}")
    manifest = read_json(folder / "manifest.json")
    table = manifest["latency_table"]
    reasons = {
        words.split()[0].rstrip(":") for words in (table["foreign"] or "").split("; ") if words
    }
    assert reasons <= {"cpu", "flags_digest"}, table["foreign"]
    place = Path(table["path"])
    files = {path.name: digest(path) for path in sorted(place.glob("*.[cj]s*"))}
    return {
        "place": "/".join(place.parts[-3:]),
        "digest": manifest["digests"]["latency_table"],
        "schedules": read_json(place / "provenance.json").get("schedules"),
        "files": files,
        "costs": costed(folder),
    }


def explained(name: str) -> list[str]:
    """Return the rows of networks that ``why`` prints of a front."""
    printed = words_of(["why", f"run=runs/{name}", "id=front"])
    return [" ".join(row.split()) for row in re.findall(r"^[0-9a-f]{12} .*", printed, re.M)]


def compared() -> list[str]:
    runs = "runs=[runs/npu,runs/supernet,runs/targets/npu]"
    objectives = "objectives={accuracy: max, latency_ms: min}"
    words_of(["compare", runs, objectives, "n_bootstrap=100", "run.dir=both"])
    names = ("n_points", "hypervolume", "igd_plus", "epsilon_additive", "r2")
    rows = csv_rows(Path("both/indicators.csv"))
    return [line({**row, "id": row["run"]}, names) for row in rows]


def exported(name: str) -> Row:
    """Return what an export of a run finds: costs, and figures that depend on the CPU."""
    kept = sorted(Path("runs/supernets").rglob("*.safetensors"))
    options = (EXPORTED[name], "max_int8_drop=100", f"dir=out/{name}")
    words_of(["export", f"run=runs/{name}", *options])
    assert sorted(Path("runs/supernets").rglob("*.safetensors")) == kept  # nothing is trained
    found: Row = {"costs": [], "accuracies": []}
    for path in sorted(Path("out", name).rglob("proof.json")):
        proof, place = read_json(path), str(path.parent.relative_to(f"out/{name}"))
        assert all(check["holds"] for check in proof["checks"])
        row = {"id": place} | {k: v[0] for k, v in proof["figures"].items()}
        found["costs"].append(line(row, COSTS))
        figures = {k: v["accuracy"][0] for k, v in proof["artefacts"].items() if "accuracy" in v}
        found["accuracies"].append(line({"id": place, **figures}, sorted(figures)))
    return found


def replanned() -> Row:
    """Return what ``plan`` finds for the service and the fleet, and ``replan`` for the old plan."""
    files = ("service=fleet/service.yaml", "fleet=fleet/fleet.yaml")
    words_of(["plan", *files, *FLEET, "run.dir=fleet/new"])
    words_of(["replan", "plan=fleet/plan", "telemetry=fleet/seen.csv", "n_seeds=1", "run.dir=next"])
    pools = [[*row.values()][:8] for row in csv_rows(Path("fleet/new/pools.csv"))]
    return {
        "plan": [" ".join(map(number, row)) for row in pools],
        "moves": [" ".join(row.values()) for row in csv_rows(Path("next/decisions.csv"))],
    }


def started_from(target: str) -> list[str]:
    """Return what a search proposes that begins with the candidates of an earlier one."""
    before = {row["id"]: row["accuracy_read"] for row in candidates(Path("runs/npu"))}
    kept = {*Path("runs/supernets").rglob("*.safetensors")}
    options = (f"+target={target}", "search_space=tiny", "start_from=runs/npu", "n_trials=8")
    words_of([*SHORT, *options, "sampler=random", f"run.dir={target}"])
    rows = candidates(Path(target))
    assert [row["id"] for row in rows][: len(before)] == [*before]
    assert all(row["accuracy_read"] == before.get(row["id"], row["accuracy_read"]) for row in rows)
    new = {*Path("runs/supernets").rglob("*.safetensors")} - kept
    assert len(new) == len({row["id"] for row in rows} - {*before})  # the others are kept
    return costed(Path(target))


def costed_from(name: str) -> list[str]:
    cost_candidates(READ[name], name)
    return costed(Path(name))


def public() -> dict[str, list[str] | None]:
    """Return the public names of ``hwnas`` with the parameters of all but exceptions."""
    found: dict[str, list[str] | None] = {}
    for name in dir(hwnas):
        value = getattr(hwnas, name)
        if name.startswith("_") or name == "TYPE_CHECKING" or inspect.ismodule(value):
            continue
        is_error = isinstance(value, type) and issubclass(value, Exception)
        known = callable(value) and not is_error
        found[name] = [*inspect.signature(value).parameters] if known else None
    return found


def names_in_project() -> dict[str, list[str]]:
    """Return the names in ``pyproject.toml`` that users and other packages know."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"scripts": project["scripts"], "extras": project["optional-dependencies"]}
    return {key: sorted(names) for key, names in (groups | project["entry-points"]).items()}


def options_of(verb: str) -> list[str]:
    """Return the options of a verb with their defaults."""
    return [f"{n}={'' if v is None else v}" for n, v in options_with_defaults(verb)]


VERBS = [verb for verb in ALL_VERBS if verb in SCHEMAS]


def unpacked(folder: Path) -> None:
    shutil.unpack_archive(FROZEN / "made.zip", folder)


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    monkeypatch.setenv("COLUMNS", "200")
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Return a folder with files of an earlier edition, as its user left it."""
    unpacked(tmp_path)
    return tmp_path


@pytest.fixture
def same_versions(made: Path) -> None:
    """Skip where other versions are installed: kept networks are of the versions of a run."""
    known = read_json(made / "runs/npu/manifest.json")["versions"]
    for name in ("torch", "numpy", "ethos-u-vela", "ai-edge-litert"):
        here = torch.__version__ if name == "torch" else importlib.metadata.version(name)
        if str(here) != known[name]:
            pytest.skip(f"the files were made with {name} {known[name]}, here is {here}")


@pytest.fixture(scope="module")
def frozen() -> Row:
    found: Row = read_json(FOUND)
    return found


def of_this_cpu(frozen: Row) -> Row:
    """Return what is known of this CPU; skip if it is none."""
    known: Row = frozen["by_cpu"]
    if (here := cpu()) not in known:
        pytest.skip(f"accuracies are known of {', '.join(known)}, not of {here}")
    found: Row = known[here]
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SEARCHES]
)
def test_search_finds_the_same_front(name: str, frozen: Row) -> None:
    folder = searched(name)
    if name in DRAWN:
        assert costed(folder) == frozen["costs"][name]
    assert identity(folder) == frozen["identities"][name]
    assert front(folder, name) == of_this_cpu(frozen)["fronts"][name]


@pytest.mark.parametrize(
    ("runtime", "dtype"),
    [TABLES[0], *(pytest.param(*t, marks=pytest.mark.slow) for t in TABLES[1:])],
)
def test_shipped_table_is_foreign_by_its_cpu_alone(runtime: str, dtype: str, frozen: Row) -> None:
    assert read_table(runtime, dtype) == frozen["tables"][f"{runtime}-{dtype}"]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", RUNS)
def test_earlier_run_is_explained(name: str, frozen: Row) -> None:
    assert explained(name) == frozen["explained"][name]


@pytest.mark.usefixtures("made")
def test_earlier_runs_are_compared(frozen: Row) -> None:
    assert compared() == frozen["compared"]


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("name", EXPORTED)
def test_earlier_run_is_exported(name: str, frozen: Row) -> None:
    found = exported(name)
    assert found["costs"] == frozen["exported"][name]
    assert found["accuracies"] == of_this_cpu(frozen)["exported"][name]


def test_earlier_export_is_verified(made: Path) -> None:
    (folder,) = (path for path in (made / "exports").iterdir() if path.is_dir())
    printed = " ".join(words_of(["verify", str(folder), "+target=npu"]).split())
    assert "All repeated checks passed." in printed
    assert "The compiler gave the same file." in printed


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("name", RUNS)
def test_earlier_run_is_resumed(name: str) -> None:
    before = candidates(Path("runs", name))
    words_of(["search", f"run.resume=runs/{name}", "n_trials=8"])
    after = candidates(Path("runs", name))
    assert len(after) == 8
    assert [row["id"] for row in after[:6]] == [row["id"] for row in before]
    reads = [n for n in before[0] if n == "accuracy_read" or n.rpartition(".")[2] in COSTS]
    assert [line(row, reads) for row in after[:6]] == [line(row, reads) for row in before]


@pytest.mark.usefixtures("same_versions")
@pytest.mark.parametrize("target", few_of(["npu", "ethos_u85_256"], 1))
def test_search_starts_from_an_earlier_run(target: str, frozen: Row) -> None:
    assert started_from(target) == frozen["started_from"][target]


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_earlier_plan_goes_on(frozen: Row) -> None:
    assert replanned() == frozen["replanned"]


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("name", READ)
def test_earlier_measurements_say_the_same_costs(name: str, frozen: Row) -> None:
    found, known = (
        [(row.split()[0], [float(cost) for cost in row.split()[1:]]) for row in rows]
        for rows in (costed_from(name), frozen["measurements"][name])
    )
    assert [key for key, _ in found] == [key for key, _ in known]
    for (_, here), (_, there) in zip(found, known, strict=True):
        assert here == pytest.approx(there, rel=1e-3)  # fits depend on the CPU's arithmetic


def test_public_names_are_the_same(frozen: Row) -> None:
    assert public() == frozen["public"]
    for name in frozen["public"]:  # an imported submodule would take the place of the function
        assert importlib.util.find_spec(f"hwnas.{name}") is None


def test_verbs_have_the_same_options(frozen: Row) -> None:
    assert {verb: options_of(verb) for verb in VERBS} == frozen["options"]


def test_entry_points_have_the_same_names_and_lead_somewhere(frozen: Row) -> None:
    assert names_in_project() == frozen["project"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"console_scripts": project["scripts"], **project["entry-points"]}
    for group, entries in groups.items():
        for name, value in entries.items():
            assert importlib.metadata.EntryPoint(name, value, group).load() is not None


@pytest.mark.slow
def test_job_of_a_cluster_is_pickled_and_runs(tmp_path: Path) -> None:
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
    done = subprocess.run(
        [sys.executable, "-m", "hwnas", *arguments],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (manifest,) = tmp_path.glob("runs/multirun/*/0/manifest.json")
    assert read_json(manifest)["status"] == "finished"
    assert read_json(manifest)["config"]["seed"] == 7
    assert len(candidates(manifest.parent)) == 4


def _record() -> None:
    """Write what is found here; what is known of other CPUs stays."""
    found = read_json(FOUND) if FOUND.exists() else {"by_cpu": {}}
    own: Row = {"fronts": {}, "exported": {}}
    found |= {"costs": {}, "identities": {}, "exported": {}}
    for name in SEARCHES:
        folder = _apart(lambda name=name: searched(name))  # type: ignore[misc]
        if name in DRAWN:
            found["costs"][name] = costed(folder)
        found["identities"][name], own["fronts"][name] = identity(folder), front(folder, name)
    found["tables"] = {f"{r}-{d}": _apart(lambda r=r, d=d: read_table(r, d)) for r, d in TABLES}  # type: ignore[misc]
    found["explained"] = {name: _apart(lambda name=name: explained(name)) for name in RUNS}  # type: ignore[misc]
    found["compared"] = _apart(compared)
    for name in EXPORTED:
        made = _apart(lambda name=name: exported(name))  # type: ignore[misc]
        found["exported"][name], own["exported"][name] = made["costs"], made["accuracies"]
    found["started_from"] = {
        name: _apart(lambda name=name: started_from(name))  # type: ignore[misc]
        for name in ("npu", "ethos_u85_256")
    }
    found["replanned"] = _apart(replanned)
    found["measurements"] = {name: _apart(lambda name=name: costed_from(name)) for name in READ}  # type: ignore[misc]
    found |= {"public": public(), "project": names_in_project()}
    found["options"] = {verb: options_of(verb) for verb in VERBS}
    found["by_cpu"][cpu()] = own
    FOUND.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _apart(do: Callable[[], Any]) -> Any:
    """Return what a function finds in a new folder with the files of the earlier edition."""
    folder = tempfile.mkdtemp()
    unpacked(Path(folder))
    os.chdir(folder)
    found = do()
    return found.absolute() if isinstance(found, Path) else found


if __name__ == "__main__":
    sys.argv = ["hwnas"]
    os.environ["COLUMNS"] = "200"
    torch.set_num_threads(1)
    _record()
