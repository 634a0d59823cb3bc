import dataclasses
import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hwnas.core import machine
from hwnas.core.errors import TableError
from hwnas.hardware import backends
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    OperatorEntry,
    load_table,
    table_name,
)
from hwnas.hardware.latency_tables.provenance import (
    differences,
    open_table,
    provenance_facts,
    related_table,
    writable_table,
)
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec
from tests.conftest import target

HERE = Remote()
COMMAND = "hwnas profile +target=cpu"
OP = OpSpec("conv2d+bn", (8, 4, 4), (8, 4, 4), dtype="float32")

#: Differences from this machine and its versions, with the message for each.
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "cpu": (
        lambda f: f["device"].update(cpu="model name=Another"),
        "cpu: model name=Another in the table",
    ),
    "flags": (lambda f: f["device"].update(flags_digest="abc"), "flags_digest: abc in the table"),
    "board": (lambda f: f["device"].update(remote="rpi4"), "remote: rpi4 in the table, none here"),
    "version": (
        lambda f: f["versions"].update({"apache-tvm": "0.1"}),
        "apache-tvm: 0.1 in the table",
    ),
    "no version": (lambda f: f["versions"].clear(), "apache-tvm: none in the table"),
    "schedules": (lambda f: f.update(schedules="abc"), "compilation plans are of another version"),
    "mcpu": (lambda f: f["target"]["tvm"].update(mcpu="znver4"), "different target.tvm"),
    "meter": (lambda f: f["target"].update(meter="rapl"), "different target.meter"),
    "nothing known": (lambda f: f.clear(), "cpu: none in the table"),
}


@pytest.fixture
def cpu() -> Target:
    return target("cpu")


def _save_table(path: Path, cpu: Target, change: Callable[[dict[str, Any]], Any]) -> LatencyTable:
    """Save a table of one operator, measured on this machine except for a change."""
    result = provenance_facts(cpu, HERE)
    change(result)
    entries = {OP: OperatorEntry("plan", Timing(1.0, 0.9, 1.1, 5))}
    table = LatencyTable(path / cpu.name / table_name(cpu), entries, provenance=result)
    table.save()
    return table


def _no_change(facts: dict[str, Any]) -> None:
    pass


def test_table_of_this_machine_is_trusted(cpu: Target, tmp_path: Path) -> None:
    table = _save_table(tmp_path, cpu, _no_change)
    result = open_table(cpu, HERE, [tmp_path], False, COMMAND)
    assert (result.path, result.from_another_machine, list(result.entries)) == (
        table.path,
        "",
        [OP],
    )
    assert writable_table(cpu, HERE, tmp_path, tmp_path / "none").path == table.path


@pytest.mark.parametrize("what", CHANGES)
def test_foreign_table_is_refused_or_labelled(cpu: Target, tmp_path: Path, what: str) -> None:
    change, message = CHANGES[what]
    table = _save_table(tmp_path, cpu, change)
    with pytest.raises(TableError) as error:
        open_table(cpu, HERE, [tmp_path], False, COMMAND)
    for part in (str(table.path), message, COMMAND, "table.allow_other_machine=true"):
        assert part in str(error.value)
    accepted = open_table(cpu, HERE, [tmp_path], True, COMMAND)
    assert message in accepted.from_another_machine
    assert list(accepted.entries) == [OP]


def test_new_table_does_not_replace_that_of_another_machine(cpu: Target, tmp_path: Path) -> None:
    other = _save_table(tmp_path, cpu, CHANGES["cpu"][0])
    before = {path.name: path.read_bytes() for path in other.path.iterdir()}
    table = writable_table(cpu, HERE, tmp_path, tmp_path / "none")
    assert table.entries == {}
    assert re.fullmatch(rf"{table_name(cpu)}-[0-9a-f]{{8}}", table.path.name)
    table.entries[OP] = other.entries[OP]
    table.save()
    assert open_table(cpu, HERE, [tmp_path], False, COMMAND).path == table.path
    assert writable_table(cpu, HERE, tmp_path, tmp_path / "none").path == table.path
    assert {path.name: path.read_bytes() for path in other.path.iterdir()} == before


def test_gpus_of_machine_have_separate_tables(
    cpu: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_table(tmp_path, cpu, CHANGES["cpu"][0])
    plain, here = writable_table(cpu, HERE, tmp_path, tmp_path / "none"), machine.describe()
    paths = {plain.path}
    for gpu, driver in (("H100", "1"), ("H200", "1"), ("H200", "2")):
        device = {**here, "gpu": gpu, "driver": driver}
        monkeypatch.setattr(machine, "describe", lambda device=device: device)
        paths.add(writable_table(cpu, HERE, tmp_path, tmp_path / "none").path)
    assert len(paths) == 4


def test_table_of_this_machine_is_preferred(cpu: Target, tmp_path: Path) -> None:
    _save_table(tmp_path / "own", cpu, CHANGES["cpu"][0])
    here = _save_table(tmp_path / "shipped", cpu, _no_change)
    roots = [tmp_path / "own", tmp_path / "shipped"]
    assert open_table(cpu, HERE, roots, True, COMMAND).path == here.path


@pytest.mark.parametrize(
    ("what", "follows"),
    [("cpu", True), ("flags", True), ("version", True), ("schedules", False), ("board", True)],
)
def test_tables_for_transfer_have_equal_schedules(
    cpu: Target, tmp_path: Path, what: str, follows: bool
) -> None:
    _save_table(tmp_path, cpu, CHANGES[what][0])
    assert (related_table(cpu, HERE, [tmp_path]) is not None) is follows


def test_table_for_transfer_may_be_in_second_root(cpu: Target, tmp_path: Path) -> None:
    _save_table(tmp_path / "own", cpu, _no_change)
    other = _save_table(tmp_path / "shipped", cpu, CHANGES["cpu"][0])
    result = related_table(cpu, HERE, [tmp_path / "own", tmp_path / "shipped"])
    assert result is not None
    assert result.path == other.path


def test_no_transfer_from_other_architecture_or_itself(cpu: Target, tmp_path: Path) -> None:
    assert related_table(cpu, HERE, [tmp_path]) is None
    _save_table(tmp_path / "a", cpu, lambda f: f["device"].update(architecture="riscv64", cpu="x"))
    assert related_table(cpu, HERE, [tmp_path / "a"]) is None
    _save_table(tmp_path / "b", cpu, _no_change)
    assert related_table(cpu, HERE, [tmp_path / "b"]) is None


def test_table_of_other_cpu_is_refused(
    cpu: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_table(tmp_path, cpu, _no_change)
    here = machine.describe()
    monkeypatch.setattr(machine, "describe", lambda: {**here, "cpu": "model name=New"})
    with pytest.raises(TableError, match="model name=New here"):
        open_table(cpu, HERE, [tmp_path], False, COMMAND)


def test_table_of_other_compiler_version_is_refused(
    cpu: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save_table(tmp_path, cpu, _no_change)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    with pytest.raises(TableError, match=r"apache-tvm: 0\.27.* in the table, 9\.9 here"):
        open_table(cpu, HERE, [tmp_path], False, COMMAND)


def test_facts_without_effect_on_latency_may_differ(cpu: Target) -> None:
    here = provenance_facts(cpu, HERE)
    there = provenance_facts(dataclasses.replace(cpu, description="another", clock_mhz=1.0), HERE)
    there["device"] |= {"governor": "powersave", "system": "another", "cores": 1}
    assert differences({**there, "hwnas": "0", "seed": 3}, here) == []


def test_onnxruntime_has_versions_but_no_schedules(cpu: Target) -> None:
    result = provenance_facts(dataclasses.replace(cpu, runtime="onnxruntime"), HERE)
    assert list(result["versions"]) == ["onnxruntime"]
    assert "schedules" not in result


@pytest.mark.parametrize(
    ("modules", "same"),
    [
        ({"a": "import x\nONE = 1\n", "b": "def f(x):\n    return x + ONE\n"}, True),
        ({"a": "def f(x):\n    'Add.'\n    return x - ONE\nONE = 1\n"}, False),
        ({"a": '# One.\nONE = 1\ndef f(x):\n    """Add one."""\n    return x+ONE\n'}, True),
        ({"a": "ONE = 2\ndef f(x):\n    return x + ONE\n"}, False),
    ],
    ids=["another place", "another function", "other words", "another constant"],
)
def test_digest_of_schedules_ignores_place_and_comments(
    cpu: Target,
    modules: dict[str, str],
    same: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = backends.get("tvm")

    def digest(folder: str, sources: dict[str, str]) -> Any:
        package = tmp_path / f"{folder}_{tmp_path.name}"  # imported once, by its name
        package.mkdir()
        for name, source in {"__init__": "", **sources}.items():
            (package / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        described = dataclasses.replace(
            usual, schedules={cpu.dtype: [f"{package.name}.{name}" for name in sources]}
        )
        monkeypatch.setattr(backends, "get", lambda _name: described)
        return provenance_facts(cpu, HERE)["schedules"]

    before = digest("before", {"b": "def f(x):\n    return x + ONE\nONE = 1\n"})
    assert (digest("after", modules) == before) is same


def test_remote_device_is_identified_by_key(cpu: Target) -> None:
    board = provenance_facts(cpu, Remote("host:9190", "rpi4"))
    assert board["device"] == {"remote": "rpi4"}
    assert differences(board, provenance_facts(cpu, Remote("elsewhere:1", "rpi4"))) == []
    other = differences(board, provenance_facts(cpu, Remote("host:9190", "rpi5")))
    assert other == ["remote: rpi4 in the table, rpi5 here"]
    assert differences(provenance_facts(cpu, HERE), board) != []


def test_error_for_missing_table_names_folders_and_command(cpu: Target, tmp_path: Path) -> None:
    roots = [tmp_path / "own", tmp_path / "shipped"]
    with pytest.raises(TableError) as error:
        open_table(cpu, HERE, roots, True, COMMAND)
    for part in ("'cpu'", "tvm-float32-1t-b1", *map(str, roots), f"Measure one with: {COMMAND}"):
        assert part in str(error.value)


def test_new_table_starts_from_shipped_one_of_this_machine(cpu: Target, tmp_path: Path) -> None:
    folder, shipped = tmp_path / "own", tmp_path / "shipped"
    there = _save_table(shipped, cpu, _no_change).path
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    table = writable_table(cpu, HERE, folder, shipped)
    assert list(table.entries) == [OP]
    table.entries[dataclasses.replace(OP, kernel=3)] = table.entries[OP]
    table.save()
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before
    assert len(load_table(folder / "cpu" / table_name(cpu)).entries) == 2
    assert len(writable_table(cpu, HERE, folder, shipped).entries) == 2  # now the user's table


def test_new_table_is_empty_if_shipped_one_is_foreign(cpu: Target, tmp_path: Path) -> None:
    _save_table(tmp_path / "shipped", cpu, CHANGES["cpu"][0])
    table = writable_table(cpu, HERE, tmp_path / "own", tmp_path / "shipped")
    assert table.entries == {}
    assert table.path == tmp_path / "own" / "cpu" / table_name(cpu)
    assert differences(table.provenance, provenance_facts(cpu, HERE)) == []
    assert not table.path.exists()
