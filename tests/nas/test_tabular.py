import itertools
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from hwnas.core.errors import CompileError, ConfigError, TableError
from hwnas.nas.benchmark_table import Benchmark, load_benchmark
from hwnas.nas.options import BenchmarkConfig

COSTS = {"latency_ms": "ms_board", "energy_mj": "mj"}


def _rows() -> list[dict[str, Any]]:
    return [
        {"op": op, "k": k, "acc": 50.0 + 10 * i + k, "ms_board": k * (i + 1.0), "mj": 9.0 - k}
        for i, (op, k) in enumerate(itertools.product(("conv", "skip"), (3, 5, 7)))
    ]


def _write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


def _load(path: Path, **changes: Any) -> Benchmark:
    defaults: dict[str, Any] = {"genotype": ["op", "k"], "accuracy": "acc", "costs": COSTS}
    return load_benchmark(BenchmarkConfig(path=str(path), **defaults | changes))


@pytest.mark.parametrize("name", ["cells.parquet", "cells.csv"])
def test_benchmark_table_has_space_and_values(tmp_path: Path, name: str) -> None:
    benchmark = _load(_write_table(tmp_path / name, _rows()[::-1]))
    assert benchmark.space.name == "cells"
    assert benchmark.space.choices == {"op": ("conv", "skip"), "k": (3, 5, 7)}
    assert benchmark.names == ("accuracy", "latency_ms", "energy_mj")
    for row in _rows():
        genotype = benchmark.space.genotype({"op": row["op"], "k": row["k"]})
        assert benchmark.score(genotype).figure.value == row["acc"]
        figures = benchmark.cost(genotype).figures
        assert {n: f.value for n, f in figures.items()} == {
            "latency_ms": row["ms_board"], "energy_mj": row["mj"],
        }  # fmt: skip
        assert {f.source for f in figures.values()} == {"table"}


def test_share_of_maximised_cost_matches_hand_computation(tmp_path: Path) -> None:
    rows = [
        {"a": "x", "acc": 0.9, "ips": 1.0},
        {"a": "y", "acc": 0.6, "ips": 3.0},
        {"a": "z", "acc": 0.5, "ips": 0.5},
    ]
    path = _write_table(tmp_path / "t.parquet", rows)
    benchmark = _load(path, genotype=["a"], costs={"throughput_ips": "ips"})
    x, y, z = (benchmark.space.genotype({"a": name}) for name in "xyz")
    config = BenchmarkConfig()
    assert benchmark.share([x, y], config) == pytest.approx(1.0)
    # Beyond accuracy 0.5 and 0.5 images a second: x has 0.4 * 0.5, both have 0.2 + 0.1 * 2.
    assert benchmark.share([x], config) == pytest.approx(0.2 / 0.4)
    assert benchmark.share([z], config) == 0.0


def test_share_of_exact_front_matches_hand_computation(tmp_path: Path) -> None:
    rows = [
        {"a": "x", "acc": 0.9, "ms": 3.0},
        {"a": "y", "acc": 0.6, "ms": 1.0},
        {"a": "z", "acc": 0.5, "ms": 4.0},
    ]
    path = _write_table(tmp_path / "t.parquet", rows)
    benchmark = _load(path, genotype=["a"], costs={"latency_ms": "ms"})
    x, y, z = (benchmark.space.genotype({"a": a}) for a in "xyz")
    config = BenchmarkConfig(str(path), ["a"], "acc", {"latency_ms": "ms"})
    assert benchmark.share([x, y], config) == pytest.approx(1.0)
    # Up to accuracy 0.5 and 4 ms: x takes 0.4 * 1, y 0.1 * 3, both together 0.6.
    assert benchmark.share([y], config) == pytest.approx(0.3 / 0.6)
    assert benchmark.share([z], config) == 0.0
    config.reference = {"accuracy": 0.5, "latency_ms": 3.5}
    # x has 0.4 * 0.5, y 0.1 * 2.5, both together 0.4.
    assert list(benchmark.fitting({"latency_ms": 3.5})) == [0, 1]
    assert benchmark.share([x, y], config, {"latency_ms": 3.5}) == pytest.approx(1.0)
    assert benchmark.share([y], config, {"latency_ms": 2.0}) == pytest.approx(1.0)
    assert benchmark.share([y], config, {"latency_ms": 3.5}) == pytest.approx(0.25 / 0.4)
    assert math.isnan(benchmark.share([y], config, {"latency_ms": 0.5}))
    config.reference = {"accuracy": 0.8}
    assert benchmark.share([x], config) == pytest.approx(1.0)
    config.reference = {"accuracy": 0.95}
    assert math.isnan(benchmark.share([x], config))


def test_missing_rows_are_refused_or_infeasible(tmp_path: Path) -> None:
    path = _write_table(tmp_path / "t.parquet", _rows()[:-1])
    with pytest.raises(
        TableError, match=r"1 of 6 combinations .* example op=skip k=7.*benchmark.partial"
    ):
        _load(path)
    benchmark = _load(path, partial=True)
    with pytest.raises(CompileError, match="table has no row"):
        benchmark.cost(benchmark.space.genotype({"op": "skip", "k": 7}))


def _with(index: int, **values: Any) -> list[dict[str, Any]]:
    rows = _rows()
    rows[index] |= values
    return rows


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (_with(2, ms_board=math.nan), {}, "'ms_board' is nan in row 2.* 1 of 6"),
        (_with(4, mj=math.inf), {}, "'mj' is inf in row 4"),
        (_with(1, acc=None), {}, "'acc' is nan in row 1"),
        (_with(0, op=None), {}, "row 0 .* has no 'op'"),
        (_with(5, k=3), {}, r"rows 3 and 5 .*op=skip k=3; repeated rows: 1"),
        (
            _rows(),
            {"accuracy": "accu"},
            r"benchmark\.accuracy: Unknown column 'accu'.*Did you mean 'acc'",
        ),
        (_rows(), {"genotype": ["op", "edge"]}, "benchmark.genotype: Unknown column 'edge'"),
        (_rows(), {"costs": {"latency_ms": "op"}}, "'op' must have numbers"),
        (
            [{"op": "x", "k": 1, "acc": 1.0, "ms_board": 1.0, "mj": 1.0}][:0],
            {},
            "no rows|column|Empty",
        ),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_invalid_tables_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], changes: dict[str, Any], message: str, suffix: str
) -> None:
    path = _write_table(tmp_path / f"t.{suffix}", rows)
    with pytest.raises(TableError, match=message) as error:
        _load(path, **changes)
    assert str(path) in str(error.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"missing\.parquet: file not found"):
        _load(tmp_path / "missing.parquet")
    (tmp_path / "text.parquet").write_text("not a table")
    with pytest.raises(TableError, match="cannot be read as Parquet"):
        _load(tmp_path / "text.parquet")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": ""}, "benchmark.path=FILE"),
        ({"genotype": []}, "benchmark.genotype"),
        ({"costs": {}}, "benchmark.costs"),
        ({"costs": {"speed": "ms"}}, "Unknown cost in benchmark.costs 'speed'"),
        ({"reference": {"sram_kib": 1}}, "benchmark.reference 'sram_kib'"),
    ],
)
def test_invalid_options_are_refused(changes: dict[str, Any], message: str) -> None:
    defaults: dict[str, Any] = {"path": "t.csv", "genotype": ["op"], "costs": {"latency_ms": "ms"}}
    with pytest.raises(ConfigError, match=message):
        BenchmarkConfig(**defaults | changes).check()
