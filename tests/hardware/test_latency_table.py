import copy
import dataclasses
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hwnas.core.errors import RunError, TableError
from hwnas.hardware.latency_tables.latency_table import (
    TRANSFERRED,
    LatencyTable,
    OperatorEntry,
    find_table,
    load_table,
    missing_operators_error,
    table_name,
)
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec
from tests.conftest import few_of, target

FILES = ("operators.csv", "networks.csv", "calibration.json", "provenance.json")
KINDS = ("conv2d+bn+relu6", "conv2d+bn+add", "linear", "mean", "attention")
PLANS = ("8x2 weights none", "", 'a "quoted", plan; x=1', "größer", "1x14x1 weights inline")


def _op(rng: random.Random) -> OpSpec:
    shapes = [(rng.randint(1, 999), rng.randint(1, 99), rng.randint(1, 99)) for _ in range(2)]
    numbers = (rng.choice((1, 3, 5)), rng.choice((1, 2)), rng.choice((1, 8)))
    dtype = rng.choice(("float32", "int8"))
    return OpSpec(rng.choice(KINDS), shapes[0], shapes[1], *numbers, dtype, rng.randint(1, 64))


def _timing(rng: random.Random) -> Timing:
    ms = 10 ** rng.uniform(-6, 5)
    low, high = ms * rng.random(), ms * (1 + rng.random())
    return Timing(ms, low, high, rng.randint(3, 99), rng.random() < 0.5)


def _fill(table: LatencyTable, seed: int) -> LatencyTable:
    rng = random.Random(seed)
    table.entries = {
        _op(rng): OperatorEntry(rng.choice(PLANS), _timing(rng), rng.randint(1, 3))
        for _ in range(40)
    }
    times = {f"measured_ms{part}": "0.1" for part in ("", "_low", "_high")}
    rest = {"network": "0", "genotype": '{"a": 1}', "n_repeats": "9", "n_passes": "1"}
    known = {**rest, **times, "drifted": "False"}
    table.networks = [{"search_space": "s", "id": str(i), **known} for i in range(9)]
    numbers = dict.fromkeys(("scale", "operator_ms", "weights_ms_per_kib", "interval"), 0.5)
    coefficients = {**numbers, "n_fitted": 21, "n_interval": 59}
    table.calibration = {"s": {"coefficients": coefficients, "unit": "ms"}}
    table.provenance |= {"device": {"cpu": "made up"}, "seed": seed}
    return table


def _equal(a: LatencyTable, b: LatencyTable) -> bool:
    """Return whether the files of two tables are equal, floats to seven digits."""

    def shown(table: LatencyTable) -> object:
        rows = []
        for op, entry in table.entries.items():
            t = entry.timing
            floats = [f"{ms:.7g}" for ms in (t.median_ms, t.low_ms, t.high_ms)]
            rows.append((op, entry.plan, floats, t.n_repeats, t.drifted, entry.n_passes))
        return rows, table.networks, table.calibration, table.provenance

    return shown(a) == shown(b)


class _Killed(BaseException):
    """Simulated end of the process."""


def _save_until(
    table: LatencyTable, k: int, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Save a table, interrupted before the ``k``-th file."""
    replaced: list[object] = []
    real = os.replace

    def replace(source: Path, destination: Path) -> None:
        if len(replaced) == k:
            raise error
        replaced.append(destination)
        real(source, destination)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replace)
        with pytest.raises(type(error)):
            table.save()


@pytest.mark.parametrize("seed", range(5))
def test_table_round_trips(tmp_path: Path, seed: int) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), seed)
    table.save()
    loaded = load_table(table.path)
    assert _equal(loaded, table)
    assert list(loaded.entries) == list(table.entries)
    assert {path.name for path in table.path.iterdir()} == set(FILES)
    before = {name: (table.path / name).read_bytes() for name in FILES[:3]}
    loaded.save()
    assert before == {name: (table.path / name).read_bytes() for name in FILES[:3]}
    assert _equal(load_table(table.path), loaded)


def test_empty_table_round_trips(tmp_path: Path) -> None:
    table = LatencyTable(tmp_path / "t")
    table.save()
    assert _equal(load_table(table.path), table)


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_operators_with_and_without_threads_are_distinct(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    table, op = _fill(LatencyTable(tmp_path / "t"), 0), _op(random.Random(1))
    table.entries = {
        dataclasses.replace(op, threads=n): OperatorEntry("", Timing(n + 1, 1, 9, 3)) for n in order
    }
    del table.networks[2:], table.networks[0]["genotype"]  # as written by earlier versions
    table.save()
    result = load_table(table.path)
    assert result.entries == table.entries
    assert [row["genotype"] for row in result.networks] == ["", '{"a": 1}']


def test_digest_depends_only_on_inputs_of_predictions(tmp_path: Path) -> None:
    table = _fill(LatencyTable(tmp_path), 0)
    op, other = [*table.entries][:2]
    table.calibration["t"] = copy.deepcopy(table.calibration["s"])

    def digest() -> str:
        return table.digest(["s"], [op])

    first = digest()
    table.networks, table.provenance = [], {"seed": 3}
    table.entries[other] = dataclasses.replace(table.entries[other], plan="another")
    table.calibration["t"]["coefficients"]["scale"] = 2.0
    assert digest() == first
    table.entries[op] = dataclasses.replace(table.entries[op], plan="another")
    second = digest()
    assert second != first
    table.calibration["s"]["coefficients"]["scale"] = 2.0
    third = digest()
    assert third not in (first, second)
    del table.entries[op]
    assert digest() not in (first, second, third)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "a digit": lambda content: content.replace(b"1", b"7", 1),
    "no text": lambda content: b"\xff\xfe" + content,
    "empty": lambda content: b"",
    "other JSON": lambda content: b"[]",
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in FILES
        for kind in DAMAGE
        if (name, kind) != ("provenance.json", "a digit")
    ],
)
def test_damaged_or_edited_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), 1)
    table.save()
    path = table.path / name
    path.write_bytes(DAMAGE[kind](path.read_bytes()))
    with pytest.raises(TableError) as error:
        load_table(table.path)
    text = str(error.value)
    assert str(table.path) in text
    assert "profile again" in text
    assert "\n" not in text
    if kind == "a digit":
        assert f"{name} was changed" in text


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), 1)
    table.save()
    (table.path / name).unlink()
    with pytest.raises(TableError, match="profile again"):
        load_table(table.path)


@pytest.mark.parametrize("k", range(4))
def test_interrupted_save_leaves_valid_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    old, new = (_fill(LatencyTable(tmp_path / "t"), seed) for seed in (1, 2))
    old.save()
    _save_until(new, k, monkeypatch, _Killed())
    result = load_table(tmp_path / "t")
    assert list(result.entries) in (list(old.entries), list(new.entries))
    new.save()
    assert _equal(load_table(tmp_path / "t"), new)


@pytest.mark.parametrize("k", range(4))
def test_interrupted_first_save_leaves_no_partial_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    device = target("cpu")
    path = tmp_path / device.name / table_name(device)
    table = _fill(LatencyTable(path), 1)
    _save_until(table, k, monkeypatch, _Killed())
    if find_table(device, [tmp_path]) is not None:
        load_table(path)
    _fill(LatencyTable(path), 2).save()
    load_table(path)


@pytest.mark.parametrize("error", few_of([_Killed(), OSError(28, "No space left on device")], 1))
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("second", range(4))
def test_two_interrupted_saves_leave_valid_table(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    second: int,
    reopened: bool,
    error: BaseException,
) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), 1)
    table.save()
    for seed, k in ((2, first), (3, second)):
        _save_until(_fill(table, seed), k, monkeypatch, error)
        result = load_table(table.path)
        table = result if reopened else table
    table.save()
    load_table(table.path)


@pytest.mark.parametrize("k", range(4))
def test_full_disk_leaves_valid_table_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, k: int
) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), 1)
    table.save()
    written: list[Path] = []
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        written.append(self)
        if len(written) > k:
            real(self, data[:10])
            raise OSError(28, "No space left on device", str(self))
        return real(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space left"):
            _fill(table, 2).save()
    load_table(table.path)
    assert {path.name for path in table.path.iterdir()} == set(FILES)


def test_folder_without_measurements_is_removed(tmp_path: Path) -> None:
    table = LatencyTable(tmp_path / "new" / "cpu" / "t")
    with table.locked(), pytest.raises(RunError, match="Another process"), table.locked():
        pass
    assert [*tmp_path.iterdir()] == []
    with table.locked():
        _fill(table, 1).save()
    assert len(load_table(table.path).entries) == len(table.entries)


def test_transferred_operators_count_as_missing() -> None:
    rng = random.Random(0)
    measured, transferred, unknown = (_op(rng) for _ in range(3))
    entries = {
        measured: OperatorEntry("", _timing(rng)),
        transferred: OperatorEntry(TRANSFERRED, _timing(rng)),
    }
    table = LatencyTable(Path("t"), entries)
    assert table.plans() == {measured: ""}
    wanted = [unknown, measured, transferred, unknown]
    assert table.missing(wanted) == [unknown, transferred]
    assert table.missing([measured]) == []


def test_first_root_with_table_is_used(tmp_path: Path) -> None:
    device = target("cpu")
    assert find_table(device, [tmp_path / "a", tmp_path / "b"]) is None
    paths = {root: tmp_path / root / "cpu" / table_name(device) for root in "abc"}
    for root in "bc":
        LatencyTable(paths[root]).save()
    paths["a"].mkdir(parents=True)  # a folder is not a table yet
    assert find_table(device, [tmp_path / root for root in "abc"]) == paths["b"]
    assert find_table(device, [tmp_path / root for root in "cba"]) == paths["c"]
    other = dataclasses.replace(device, batch=2)
    assert find_table(other, [tmp_path / root for root in "abc"]) is None


def test_table_name_has_all_settings() -> None:
    device = target("cpu")
    assert table_name(device) == "tvm-float32-1t-b1"
    other = dataclasses.replace(device, runtime="onnxruntime", dtype="int8", threads=4, batch=16)
    assert table_name(other) == "onnxruntime-int8-4t-b16"


def test_error_names_some_operators_and_command() -> None:
    ops = [_op(random.Random(i)) for i in range(5)]
    text = str(missing_operators_error(ops, target("cpu"), "hwnas profile +target=cpu"))
    assert text.startswith("The latency table of target 'cpu' lacks 5 operators")
    assert [str(op) in text for op in ops] == [True, True, True, False, False]
    assert "; ..." in text
    assert "Measure them with: hwnas profile +target=cpu" in text
    assert "..." not in str(missing_operators_error(ops[:3], target("cpu"), ""))


def test_provenance_has_only_digests_of_current_files(tmp_path: Path) -> None:
    table = _fill(LatencyTable(tmp_path / "t"), 1)
    for seed in range(4):
        _fill(table, seed).save()
    recorded = json.loads((table.path / "provenance.json").read_text())["digests"]
    assert all(len(digests) <= 2 for digests in recorded.values())
